"""All about one key, as `relax-lightning config --explain` prints it."""

from __future__ import annotations

import re
import textwrap
import typing
from collections.abc import Iterator

from relax_lightning.config.building import describe
from relax_lightning.config.faults import fault, show
from relax_lightning.config.help import WIDTH, default_text, entry_lines, type_text
from relax_lightning.config.names import DERIVED_TRAINER_KEYS, FOREIGN_NAMES, REFERENCE_FLAGS, meant
from relax_lightning.config.readers import readers_of
from relax_lightning.config.sections import ANY_NAME, Entry, entries, sections

_LABEL = 18
_NULL = re.compile(r"(?:^|; )null(?:: | (?=follows ))(.+)$")


def explain(written: str) -> str:
    """What a key is: meaning, type, default, who reads it, and what others call it; of a section also its keys.

    Args:
        written: a dotted key, a name of another system, or a flag of the reference.

    Raises:
        ValueError: There is no such key; the nearest is named.
    """
    name = written.lstrip("-")
    key = name if _rows(name) else _ours_for(written)
    lines = [f"{written} is {key} here.", ""] if key != name else []
    lines.append(key)
    for label, text in _rows(key):
        start = f"  {label:<{_LABEL - 2}}"
        lines += textwrap.wrap(start + text, WIDTH, subsequent_indent=" " * _LABEL, break_on_hyphens=False)
    place = _in_tree(key)
    for section in [s for s in sections() if s.entries and s.key in (place, f"{place}.{ANY_NAME}")]:
        lines += ["", "  its keys" if section.key == place else f"  the keys of each {ANY_NAME}"]
        lines += [line for entry in section.entries for line in entry_lines(entry)]
    return "\n".join(lines)


def null_meaning(entry: Entry) -> str | None:
    """What null stands for, from the end of a key's meaning, with the key that it follows in full; None without."""
    match = _NULL.search(entry.meaning)
    if match is None:
        return None
    followed = match[1].removeprefix("follows ")
    beside = f"{entry.key.rpartition('.')[0]}.{followed}"
    if followed == "the actor's":
        return f"follows {re.sub(r'^model[.][a-z]+', 'model.actor', entry.key)}"
    return f"follows {beside}" if beside in entries() else match[1]


def reference_flags(key: str) -> list[str]:
    """The flags of the reference that a key replaces."""
    return [flag for flag, ours in REFERENCE_FLAGS.items() if ours == key]


def _rows(key: str) -> list[tuple[str, str]]:
    """What there is to say of a key, each with its label; empty for an unknown one."""
    place = _in_tree(key)
    mapping = next((entry for entry in entries().values() if _is_inside(entry, place)), None)
    if place in entries():
        rows = [*_own_rows(entries()[place])]
    elif mapping is not None:
        rows = [*_inner_rows(mapping, key.removeprefix(f"{mapping.key}."))]
    else:
        return []
    names = [name for name, ours in FOREIGN_NAMES.items() if ours == place]
    rows += [("reference flag", ", ".join(reference_flags(place)))] if reference_flags(place) else []
    return rows + ([("other names", ", ".join(names))] if names else [])


def _is_inside(mapping: Entry, place: str) -> bool:
    """Whether a key, which is none of the tree's own, has its place in an open mapping."""
    if typing.get_origin(mapping.kind) is not dict:
        return False
    return place == mapping.section_key or (mapping.section is None and place.startswith(f"{mapping.key}."))


def _own_rows(entry: Entry) -> Iterator[tuple[str, str]]:
    null = null_meaning(entry)
    yield "meaning", _NULL.sub("", entry.meaning)
    yield "type", type_text(entry)
    if entry.rule is not None:
        yield "allowed", entry.rule.wanted
    if default_text(entry) != type_text(entry):
        yield "default", default_text(entry)
    if null is not None:
        yield "null", null
    yield from _reader_rows(entry)


def _inner_rows(mapping: Entry, name: str) -> Iterator[tuple[str, str]]:
    yield "meaning", f"{name!r} in the mapping {mapping.key}: {mapping.meaning}"
    if mapping.section is None and "." not in name:
        yield "type", describe(typing.get_args(mapping.kind)[1])
        yield "default", show(mapping.default[name]) if name in mapping.default else "none"
    yield from _reader_rows(mapping)


def _reader_rows(entry: Entry) -> Iterator[tuple[str, str]]:
    if entry.section is None or readers_of(entry):
        readers = readers_of(entry) or ["nothing yet, beyond the checks"]
        yield from zip(["read by", *[""] * len(readers)], readers, strict=False)


def _in_tree(key: str) -> str:
    """The same key with `<name>` for a name of the user's own."""
    for entry in entries().values():
        if entry.section_key != entry.key and entry.section is not None and key.startswith(f"{entry.key}."):
            return ".".join([entry.section_key, *key.removeprefix(f"{entry.key}.").split(".")[1:]])
    return key


def _ours_for(written: str) -> str:
    """The key that somebody else's name stands for.

    Raises:
        ValueError: It is no name that we know.
    """
    name = written.lstrip("-")
    flag = f"--{name.replace('_', '-')}"
    if flag in REFERENCE_FLAGS:
        return REFERENCE_FLAGS[flag]
    ends = [key for key in entries() if key.endswith(f".{name}") and ANY_NAME not in key]
    outermost = [key for key in ends if key.count(".") == min(end.count(".") for end in ends)]
    if len(outermost) == 1:
        return outermost[0]
    parent, _, last = name.rpartition(".")
    place = _in_tree(parent)
    beside = next((s.entries for s in sections() if s.key == place), ())
    near = meant(name, [entry.name for entry in beside])
    if near is not None and last.replace("-", "_") in FOREIGN_NAMES:
        return near
    change = f"did you mean `{near}`?" if near else "relax-lightning fit --help lists all keys"
    if parent == "trainer" and last in DERIVED_TRAINER_KEYS:
        ours, reason = DERIVED_TRAINER_KEYS[last]
        change = f"this is {reason}: use {ours}"
    raise ValueError(f"--explain: {fault('a known key', written, change)}")
