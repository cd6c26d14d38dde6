"""Every key of the configuration, section by section: the walk that help, explanations, schema and documents share."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from relax_lightning.config.faults import Rule, rule_of
from relax_lightning.config.tree import Config

ANY_NAME = "<name>"
"""Stands in a dotted key for a name that the user chooses."""


@dataclass(frozen=True)
class Entry:
    """One key."""

    key: str
    """Dotted, with `<name>` where the user chooses a name."""
    config: type
    """The dataclass that it is a field of."""
    field: Field[Any]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.field.name

    @property
    def kind(self) -> Any:
        """The type that a value must have."""
        return field_types(self.config)[self.name]

    @property
    def meaning(self) -> str:
        """The sentence that goes with it."""
        return self.field.metadata["help"]

    @property
    def default(self) -> Any:
        """The value when it is left out; MISSING for a field without a default."""
        return self.field.default if self.field.default_factory is MISSING else self.field.default_factory()

    @property
    def rule(self) -> Rule | None:
        """What its dataclass lets pass, where that is a number or a word."""
        is_scalar = {int, float, str}.intersection(union_members(self.kind))
        return rule_of(self.config, self.name) if is_scalar else None

    @property
    def section(self) -> type | None:
        """The dataclass below it: its own, or that of every name in it."""
        inside = typing.get_args(self.kind) or (self.kind,)
        return next((kind for kind in inside if isinstance(kind, type) and is_dataclass(kind)), None)

    @property
    def section_key(self) -> str:
        """Key of the section below it."""
        return f"{self.key}.{ANY_NAME}" if typing.get_origin(self.kind) is dict else self.key

    @property
    def is_only_a_title(self) -> bool:
        """Whether a list of keys needs no line for it: it is a section that is there by default, and has keys."""
        return self.section is not None and self.default is not None and bool(fields(self.section))


@dataclass(frozen=True)
class Section:
    """The keys of one dataclass, at one place in the tree."""

    key: str
    """Dotted; empty at the top."""
    config: type
    meaning: str
    entries: tuple[Entry, ...]
    same_as: str | None = None
    """Key of the section where the same keys are listed, if that is another one."""


@cache
def sections() -> tuple[Section, ...]:
    """Every section in the order of the tree, each before those inside it."""
    found = list(_sections(Config, "", "the whole tree"))
    places: dict[type, str] = {}
    for section in sorted(found, key=lambda section: section.key.count(".")):
        places.setdefault(section.config, section.key)
    return tuple(s if places[s.config] == s.key else replace(s, same_as=places[s.config]) for s in found)


def listed_sections() -> list[Section]:
    """The sections that have keys, without those inside a section whose keys are listed elsewhere."""
    elsewhere = tuple(f"{section.key}." for section in sections() if section.same_as)
    return [s for s in sections() if s.entries and not s.key.startswith(elsewhere)]


@cache
def entries() -> dict[str, Entry]:
    """Every key of every section, dotted."""
    return {entry.key: entry for section in sections() for entry in section.entries}


@cache
def field_types(config: type) -> dict[str, Any]:
    """The resolved type of every field of a dataclass."""
    return typing.get_type_hints(config)


def union_members(kind: Any) -> tuple[Any, ...]:
    """The types that a type is the union of; the type itself where it is none."""
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def _sections(config: type, key: str, meaning: str) -> Iterator[Section]:
    found = tuple(Entry(f"{key}.{f.name}".lstrip("."), config, f) for f in fields(config))
    yield Section(key, config, meaning, found)
    for entry in found:
        if entry.section is not None:
            yield from _sections(entry.section, entry.section_key, entry.meaning)
