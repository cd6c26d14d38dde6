"""The list of every key with its default and meaning, made from the dataclasses."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, dataclass
from types import NoneType

import yaml

from relax_lightning.config.building import describe
from relax_lightning.config.loader import REQUIRED, to_dict
from relax_lightning.config.sections import Entry, Section, listed_sections, union_members

WIDTH = 100
_NAME, _DEFAULT = 28, 18


@dataclass(frozen=True)
class Group:
    """The keys of one section, as lines of text."""

    title: str
    lines: tuple[str, ...]


def key_groups() -> list[Group]:
    """Every section with its keys, in the order of the tree; a section that is there twice is listed once."""
    groups = [Group(_title(section), tuple(_lines_of(section))) for section in listed_sections()]
    return [group for group in groups if group.lines]


def entry_lines(entry: Entry) -> list[str]:
    """Name, default and meaning of a key, as wrapped lines of text."""
    default = default_text(entry)
    start = f"  {entry.name:<{_NAME - 3}} {default:<{_DEFAULT - 1}} "
    meaning = entry.meaning
    if len(start) > _NAME + _DEFAULT:
        meaning = f"default {default}: {meaning}"
        start = f"  {entry.name:<{_NAME - 3}} ".ljust(_NAME + _DEFAULT)
    return textwrap.wrap(
        start + meaning, WIDTH, subsequent_indent=" " * (_NAME + _DEFAULT), break_long_words=False
    )


def default_text(entry: Entry) -> str:
    """A key's default as one writes it in YAML, or `required`."""
    if entry.key in REQUIRED or entry.default is MISSING:
        return "required"
    if entry.is_only_a_title and entry.section_key == entry.key:
        return "a section"
    text = yaml.safe_dump(to_dict(entry.default), default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def type_text(entry: Entry) -> str:
    """The type of a key's value in the words of a user of YAML."""
    if entry.section is None:
        words = [describe(kind) for kind in union_members(entry.kind) if kind is not NoneType]
    else:
        words = ["a section" if entry.section_key == entry.key else "a mapping of names to sections"]
    is_nullable = NoneType in union_members(entry.kind) and entry.key not in REQUIRED
    return " or ".join([*words, "null"] if is_nullable else words)


def _title(section: Section) -> str:
    title = f"{section.key or 'the top'}: {section.meaning}"
    return textwrap.fill(title, WIDTH, subsequent_indent="    ")


def _lines_of(section: Section) -> list[str]:
    if section.same_as is not None:
        return [f"  the keys of {section.same_as}"]
    return [line for e in section.entries if not e.is_only_a_title for line in entry_lines(e)]
