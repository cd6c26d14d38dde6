"""What may become of a flag, and the simple rules: one key, left out for a reason, not translated for a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from relax_lightning.config.yaml_text import parse_yaml
from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.shell_text import Text, default_of, interpolation, literal, unknown_source


@dataclass(frozen=True)
class Setting:
    """A key of ours with its value."""

    key: str
    value: Any
    origin: str | None = None
    """Where it comes from, when that is not the flag alone."""


@dataclass(frozen=True)
class LeftOut:
    """Nothing to set: what the flag asks for is so here anyway, or is decided in another way."""

    reason: str


@dataclass(frozen=True)
class NotTranslated:
    """Something that the flag asks for and that this configuration does not do."""

    reason: str


Outcome = Setting | LeftOut | NotTranslated


class CannotTranslate(ValueError):
    """A value that has no counterpart; the message says what was wanted."""


class Flags:
    """The flags of a launch, the last one of a name counting, as the reference's own parser has it."""

    def __init__(self, flags: list[Flag]) -> None:
        self.by_name = {flag.name: flag for flag in flags}

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def text(self, name: str) -> Text | None:
        """The one value of a flag; None where it is not given, or not one."""
        flag = self.by_name.get(name)
        return flag.values[0] if flag is not None and len(flag.values) == 1 else None

    def known(self, name: str) -> str | None:
        """The same where it is known without the environment."""
        text = self.text(name)
        return None if text is None else literal(text)

    def likely(self, name: str, otherwise: str) -> str | None:
        """The same where every variable has its default; `otherwise` where the flag is not given."""
        text = self.text(name)
        return otherwise if name not in self else None if text is None else default_of(text)[0]

    def whole_number(self, name: str, otherwise: int | None = None) -> int | None:
        """The same as a whole number; `otherwise` where the flag is not given."""
        if name not in self:
            return otherwise
        known = self.known(name)
        return int(known) if known is not None and known.isdigit() else None


Rule = Callable[[Flag, Flags], Iterator[Outcome]]
Reader = Callable[[Flag], Any]
"""Raises CannotTranslate where a value is missing, or only bash knows it."""


def to(*keys: str, read: Reader | None = None) -> Rule:
    """The rule of a flag that is one key of ours, or the same for several; without `read` one number or word."""

    def rule(flag: Flag, flags: Flags) -> Iterator[Outcome]:
        value = (read or one_value)(flag)
        yield from (Setting(key, value) for key in keys)

    return rule


def left_out(reason: str) -> Rule:
    """The rule of a flag that needs no key."""
    return lambda flag, flags: iter([LeftOut(reason)])


def not_translated(reason: str) -> Rule:
    """The rule of a flag that has no counterpart."""
    return lambda flag, flags: iter([NotTranslated(reason)])


def expected(*values: str, because: str, otherwise: str) -> Rule:
    """The rule of a flag that asks for what is so here anyway, as long as it says one of `values`."""

    def rule(flag: Flag, flags: Flags) -> Iterator[Outcome]:
        yield LeftOut(because) if flags.known(flag.name) in values else NotTranslated(otherwise)

    return rule


def with_value(key: str, switch: str, value: str, *, otherwise: float) -> Rule:
    """The rule of a switch, and of the flag with its value: `otherwise` where only the switch is given."""

    def rule(flag: Flag, flags: Flags) -> Iterator[Outcome]:
        text = flags.text(value)
        if flag.name == switch:
            yield Setting(key, otherwise if text is None else scalar(text))
        elif switch not in flags:
            yield LeftOut(f"no effect there without {switch}")

    return rule


def one_value(flag: Flag) -> Any:
    """The one value of a flag, as YAML reads it: a number, else text."""
    return scalar(_only(flag))


def text_value(flag: Flag) -> str:
    """The one value of a flag, as text, digits included."""
    return as_text(_only(flag))


def text_values(flag: Flag) -> list[str]:
    """All values as text."""
    return [as_text(value) for value in flag.values]


def all_values(flag: Flag) -> list[Any]:
    """All values, each as YAML reads it."""
    return [scalar(value) for value in flag.values]


def always(value: Any) -> Reader:
    """A reader of a flag without a value."""
    return lambda flag: value


def one_of(*same: str, **other: str) -> Reader:
    """A reader of the reference's words, of which some are others here."""
    words = {word: word for word in same} | other

    def read(flag: Flag) -> str:
        word = text_value(flag)
        if word not in words:
            raise CannotTranslate(f"wanted one of {', '.join(words)}, got {word}; choose and set it by hand")
        return words[word]

    return read


def as_text(text: Text) -> str:
    """A text as it stands in YAML, variables as `${oc.env:NAME}`."""
    source = unknown_source(text)
    if source is not None:
        raise CannotTranslate(f"its value is known to bash only: {' '.join(source.split())}; set it by hand")
    return interpolation(text)


def scalar(text: Text) -> Any:
    """A text as YAML reads it: a number where it is one; text that begins a list, a date or the like stays text."""
    written = as_text(text)
    try:
        value = parse_yaml(written) if literal(text) is not None else written
    except yaml.YAMLError:
        return written
    return value if isinstance(value, int | float) and not isinstance(value, bool) else written


def _only(flag: Flag) -> Text:
    if len(flag.values) != 1:
        got = f"{len(flag.values)} values" if flag.values else "none"
        raise CannotTranslate(f"wanted one value, got {got}; set it by hand")
    return flag.values[0]
