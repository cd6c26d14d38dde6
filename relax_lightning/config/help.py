"""The list of every key with its default and meaning, made from the dataclasses."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

import yaml

from relax_lightning.config.loader import REQUIRED, to_dict
from relax_lightning.config.names import field_types
from relax_lightning.config.tree import Config

WIDTH = 100
_NAME, _DEFAULT = 28, 18


@dataclass(frozen=True)
class Group:
    """The keys of one section, as lines of text."""

    title: str
    lines: tuple[str, ...]


def key_groups() -> list[Group]:
    """Every section with its keys, in the order of the tree; a section that is there twice is listed once."""
    return list(_groups(Config, "", "the whole tree", _first_places()))


def key_help() -> str:
    """The groups as one text of at most 100 columns."""
    return "\n\n".join("\n".join((group.title, *group.lines)) for group in key_groups())


def _groups(config: type, prefix: str, meaning: str, places: dict[type, str]) -> Iterator[Group]:
    nested = [(f, *found) for f in fields(config) if (found := _section(config, f)) is not None]
    open_sections = [f for f, section, _ in nested if f.default is not None and fields(section)]
    place, title = prefix.removesuffix("."), "the top" if not prefix else prefix.removesuffix(".")
    if places[config] != place:
        yield Group(_wrapped(f"{title}: {meaning}"), (f"  the keys of {places[config]}",))
        return
    lines = tuple(line for f in fields(config) if f not in open_sections for line in _lines(f, prefix))
    if lines:
        yield Group(_wrapped(f"{title}: {meaning}"), lines)
    for f, section, name in nested:
        if fields(section):
            yield from _groups(
                section, f"{prefix}{name}.", f.metadata["help"].removeprefix("required: "), places
            )


def _first_places() -> dict[type, str]:
    places: dict[type, list[str]] = {}

    def visit(config: type, place: str) -> None:
        places.setdefault(config, []).append(place)
        for f in fields(config):
            if (found := _section(config, f)) is not None:
                visit(found[0], f"{place}.{found[1]}" if place else found[1])

    visit(Config, "")
    return {config: min(found, key=lambda place: place.count(".")) for config, found in places.items()}


def _wrapped(title: str) -> str:
    return textwrap.fill(title, WIDTH, subsequent_indent="    ")


def _section(config: type, f: Field[Any]) -> tuple[type, str] | None:
    kind = field_types(config)[f.name]
    members = typing.get_args(kind) or (kind,)
    sections = [member for member in members if isinstance(member, type) and is_dataclass(member)]
    if not sections:
        return None
    return sections[0], f"{f.name}.<name>" if typing.get_origin(kind) is dict else f.name


def _lines(f: Field[Any], prefix: str) -> list[str]:
    default = "required" if prefix + f.name in REQUIRED else _default(f)
    start = f"  {f.name:<{_NAME - 3}} {default:<{_DEFAULT - 1}} "
    meaning = f.metadata["help"].removeprefix("required: ")
    if len(start) > _NAME + _DEFAULT:
        meaning = f"default {default}: {meaning}"
        start = f"  {f.name:<{_NAME - 3}} ".ljust(_NAME + _DEFAULT)
    return textwrap.wrap(
        start + meaning, WIDTH, subsequent_indent=" " * (_NAME + _DEFAULT), break_long_words=False
    )


def _default(f: Field[Any]) -> str:
    if f.default is MISSING and f.default_factory is MISSING:
        return "required"
    value = f.default if f.default_factory is MISSING else f.default_factory()
    text = yaml.safe_dump(to_dict(value), default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")
