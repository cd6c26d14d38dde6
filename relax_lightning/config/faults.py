"""What is wrong with a field of a configuration, and the checks that say so."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

_SHOWN = 400


@dataclass(frozen=True)
class Rule:
    """What a check lets pass."""

    wanted: str
    """In words."""
    schema: dict[str, Any]
    """As keywords of JSON Schema; null is left to the field's type."""


@dataclass(frozen=True)
class Fault:
    """One fault of one field: where, and what was wanted, what came, what to change."""

    field: str
    message: str
    also: tuple[str, ...] = ()
    """Other fields that the fault depends on: where one of them is at fault, this one says nothing new."""
    rule: Rule | None = None
    """What the field must be whatever the others are; None where they have a say."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True)
class Problem:
    """One finding over a whole configuration."""

    key: str
    message: str
    severity: Literal["error", "warning"] = "error"
    involves: tuple[str, ...] = ()
    """Other keys that the finding depends on."""
    is_of_field: bool = False
    """Whether the key itself is unknown or has a bad value, so that the tree cannot be used."""

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class FieldError(ValueError):
    """All faults of one dataclass instance, so that a reader of them can put the whole key in front."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


class ConfigurationError(ValueError):
    """All faults of a configuration, one line each in `problems`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def refuse(*found: Iterable[Fault]) -> None:
    """Raise when any check found something.

    Raises:
        FieldError: Some check found a fault; all are held.
    """
    faults = [fault for group in found for fault in group]
    if faults:
        raise FieldError(faults)


def fault(wanted: str, got: Any, change: str) -> str:
    """The words of a fault, in the order every message of ours has: wanted, came, change."""
    return f"wanted {wanted}, got {show(got)}; {change}"


def show(value: Any) -> str:
    """A value as a YAML reader would write it, and no more of it than a line holds."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def at_least(config: Any, bound: float, *names: str) -> list[Fault]:
    """Fields that must be `bound` or more; null is left to the field's type."""
    rule = Rule(f"a number of at least {bound:g}", {"minimum": bound})
    return _numbers(config, names, lambda x: x >= bound, rule)


def finite(config: Any, *names: str) -> list[Fault]:
    """Fields that may be any finite number; null is left to the field's type."""
    return _numbers(config, names, lambda _: True, Rule("a finite number", {}))


def above(config: Any, bound: float, *names: str) -> list[Fault]:
    """Fields that must be more than `bound`."""
    rule = Rule(f"a number above {bound:g}", {"exclusiveMinimum": bound})
    return _numbers(config, names, lambda x: x > bound, rule)


def within(config: Any, low: float, high: float, *names: str) -> list[Fault]:
    """Fields that must lie from `low` to `high`, both allowed."""
    rule = Rule(f"a number from {low:.12g} to {high:.12g}", {"minimum": low, "maximum": high})
    return _numbers(config, names, lambda x: low <= x <= high, rule)


def half_open(config: Any, low: float, high: float, *names: str) -> list[Fault]:
    """Fields that must be more than `low` and at most `high`."""
    rule = Rule(f"a number above {low:g} and at most {high:g}", {"exclusiveMinimum": low, "maximum": high})
    return _numbers(config, names, lambda x: low < x <= high, rule)


def one_of(config: Any, choices: tuple[str, ...], *names: str) -> list[Fault]:
    """Fields that must be one of the words; null is left to the field's type."""
    wanted = "one of " + ", ".join(choices) if len(choices) > 1 else f"`{next(iter(choices))}`"
    return _refused(config, names, lambda word: word in choices, Rule(wanted, {"enum": list(choices)}))


def rule_of(config: type, name: str) -> Rule | None:
    """What the check of a dataclass lets pass in one number or word; None where its type is all it looks at.

    The check itself is asked, with NaN, which no rule lets pass.
    """
    others = {f.name: 1 for f in fields(config) if f.default is MISSING and f.default_factory is MISSING}
    try:
        config(**others | {name: math.nan})
    except FieldError as error:
        return next((found.rule for found in error.faults if found.field == name and found.rule), None)
    return None


def _numbers(config: Any, names: tuple[str, ...], allowed: Any, rule: Rule) -> list[Fault]:
    return _refused(config, names, lambda value: is_finite_number(value) and allowed(value), rule)


def _refused(config: Any, names: tuple[str, ...], passes: Any, rule: Rule) -> list[Fault]:
    values = {name: getattr(config, name) for name in names}
    return [
        Fault(name, fault(rule.wanted, value, _default_hint(config, name)), rule=rule)
        for name, value in values.items()
        if value is not None and not passes(value)
    ]


def is_finite_number(value: Any) -> bool:
    """True for an int or a finite float; a bool is no number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _default_hint(config: Any, name: str) -> str:
    default = next(f.default for f in fields(config) if f.name == name)
    if default is MISSING:
        return "change it"
    return f"change it, or leave it out for the default, {show(default)}"
