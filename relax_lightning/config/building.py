"""From a plain tree to the dataclasses: every fault of every key is collected, none stops the search."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

import yaml

from relax_lightning.config.faults import FieldError, fault, show
from relax_lightning.config.names import DERIVED_TRAINER_KEYS, meant
from relax_lightning.config.sections import field_types, union_members
from relax_lightning.config.yaml_text import parse_yaml

INVALID: Any = object()
"""Stands for a value that was refused; the fault is recorded already."""


class FromEnvironment(str):
    """Text that came out of an interpolation: where a number is wanted, it is read as YAML first."""


@dataclass
class Problems:
    """The faults found so far, in the order of the tree."""

    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, key: str, message: str) -> None:
        """Record a fault of `key`, once."""
        if (key, message) not in self.found:
            self.found.append((key, message))

    def concern(self, key: str) -> bool:
        """Whether `key`, a key above it or a key below it is at fault."""
        return any(f"{key}.".startswith(f"{k}.") or k.startswith(f"{key}.") for k, _ in self.found)

    def lines(self) -> list[str]:
        """One line a fault."""
        return [f"{key}: {message}" for key, message in self.found]


def build(config: type, tree: Any, key: str, problems: Problems) -> Any:
    """An instance of the dataclass `config` from a plain mapping, or INVALID.

    Args:
        config: a dataclass.
        tree: a plain mapping; null is an empty section.
        key: dotted key of the section, empty at the top.
        problems: faults are added here; a faulty field gets its default, so that the rest can be checked.
    """
    tree = {str(name): value for name, value in (tree or {}).items()}
    known = {f.name: f for f in fields(config)}
    for name in [name for name in tree if name not in known]:
        problems.add(_join(key, name), _unknown(_join(key, name), list(known), tree[name]))
    given = {}
    for name in [name for name in known if name in tree]:
        value = convert(field_types(config)[name], tree[name], _join(key, name), problems, known[name])
        if value is not INVALID:
            given[name] = value
    for name in [f.name for f in known.values() if _is_required(f) and f.name not in tree]:
        problems.add(_join(key, name), f"wanted a value, got nothing; add it: {known[name].metadata['help']}")
    return _construct(config, given, key, problems)


def convert(kind: Any, value: Any, key: str, problems: Problems, where: Field[Any] | None = None) -> Any:
    """`value` as the type `kind` wants it, or INVALID with the fault recorded."""
    members = union_members(kind)
    if value is None and (type(None) in members or any(is_dataclass(m) for m in members)):
        return None if type(None) in members else build(members[0], {}, key, problems)
    if isinstance(value, FromEnvironment) and str not in members:
        value = _decoded(value)
    for member in members:
        if _fits(member, value):
            return _convert_member(member, value, key, problems)
    problems.add(key, fault(describe(kind), value, _change(members, value, where)))
    return INVALID


def describe(kind: Any) -> str:
    """What a type wants, in the words of a user of YAML."""
    return " or ".join(_describe_member(member) for member in union_members(kind))


def _fits(kind: Any, value: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    if origin is Any:
        return True
    if is_dataclass(origin) or origin is dict:
        return isinstance(value, Mapping)
    if origin in (list, tuple):
        size = len(typing.get_args(kind)) if origin is tuple else None
        return isinstance(value, list | tuple) and size in (None, len(value))
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, origin) and (origin is bool or not isinstance(value, bool))


def _convert_member(kind: Any, value: Any, key: str, problems: Problems) -> Any:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if is_dataclass(origin):
        return build(typing.cast(type, origin), value, key, problems)
    if origin is dict:
        items = {
            str(name): convert(inner[1], v, _join(key, str(name)), problems) for name, v in value.items()
        }
        return {name: v for name, v in items.items() if v is not INVALID}
    if origin in (list, tuple):
        kinds = inner if origin is tuple else inner * len(value)
        items = [
            convert(k, v, _join(key, str(n)), problems)
            for n, (k, v) in enumerate(zip(kinds, value, strict=True))
        ]
        return INVALID if any(item is INVALID for item in items) else origin(items)
    return origin(value) if origin in (float, str) else _plain(value)


def _construct(config: type, given: dict[str, Any], key: str, problems: Problems) -> Any:
    try:
        return config(**given)
    except FieldError as error:
        for found in error.faults:
            if any(problems.concern(_join(key, name)) for name in (found.field, *found.also)):
                continue
            problems.add(_join(key, found.field), found.message)
    except TypeError:
        assert problems.found, "a dataclass refused arguments that passed"
        return INVALID
    left = {name: v for name, v in given.items() if not problems.concern(_join(key, name))}
    try:
        return config(**left)
    except (FieldError, TypeError):
        return INVALID


def _unknown(key: str, siblings: list[str], value: Any) -> str:
    parent, _, name = key.rpartition(".")
    if parent == "trainer" and name in DERIVED_TRAINER_KEYS:
        ours, reason = DERIVED_TRAINER_KEYS[name]
        return f"wanted nothing, got {show(value)}; this is {reason}: use {ours}"
    near = meant(key, siblings)
    hint = f"did you mean `{near}`?" if near else f"known here: {', '.join(siblings) or 'no key at all'}"
    return f"wanted a known key, got {show(name)} with the value {show(value)}; {hint}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, str) else value


def _decoded(value: FromEnvironment) -> Any:
    try:
        return parse_yaml(value)
    except yaml.YAMLError:
        return str(value)


def _is_required(f: Field[Any]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def _describe_member(kind: Any) -> str:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is tuple:
        return f"a list of {len(inner)} values, each {describe(inner[0])}"
    if origin is list:
        return "a list"
    if origin is dict:
        return "a mapping"
    if is_dataclass(origin):
        return f"a mapping with the keys {', '.join(f.name for f in fields(origin))}"
    return _WORDS.get(kind, "a value")


def _change(members: tuple[Any, ...], value: Any, where: Field[Any] | None) -> str:
    if str in members and not isinstance(value, list | dict) and value is not None:
        return "put it in quotes"
    if isinstance(value, str) and (written := _as_of_yaml_1_1(value, members)) is not None:
        return written
    if int in members and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if where is None or _is_required(where) or where.default is MISSING:
        return "change it"
    return f"change it, or leave it out for the default, {show(where.default)}"


def _as_of_yaml_1_1(text: str, members: tuple[Any, ...]) -> str | None:
    """What to do with text that is a number in quotes, or was a number or a truth value in YAML 1.1."""
    if bool in members and text.lower() in ("yes", "on", "y", "no", "off", "n"):
        return f"write {'true' if text.lower() in ('yes', 'on', 'y') else 'false'}"
    plain = text.replace("_", "")
    number = _decoded(FromEnvironment(plain))
    if not {int, float}.intersection(members) or not _fits(float, number):
        return None
    if not any(_fits(member, number) for member in members):
        return "change it"
    return f"write {plain}" if plain != text else "remove the quotes"
