"""The YAML of a translation: every key with the flag that it comes from beside it."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from relax_lightning.config.names import known_keys
from relax_lightning.config.yaml_text import dump_in_one_line
from relax_lightning.migrate.rules import Setting
from relax_lightning.migrate.translation import Remark, Translation

_WIDTH = 110


def write_document(translation: Translation, source: str) -> str:
    """The configuration as text.

    Args:
        translation: of the script.
        source: name of the script.
    """
    parts = [f"# Made from {source} by `relax-lightning migrate`.\n"]
    parts.append(
        _comments("Where the script's system (there) and this one (here) differ:", translation.differences)
    )
    parts.append(_comments("Not translated; set by hand what matters:", _grouped(translation.not_translated)))
    parts.append("\n".join(_lines(_tree(translation.settings), 0)) + "\n")
    parts.append(_comments("Left out on purpose:", _grouped(translation.left_out)))
    return "\n".join(part for part in parts if part)


def _comments(title: str, entries: list[str]) -> str:
    wrapped = [
        textwrap.fill(
            " ".join(entry.split()),
            _WIDTH,
            initial_indent="#   * ",
            subsequent_indent="#     ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for entry in entries
    ]
    return "\n".join([f"# {title}", *wrapped]) + "\n" if entries else ""


def _grouped(remarks: list[Remark]) -> list[str]:
    """One entry a reason."""
    flags: dict[str, list[str]] = {}
    for remark in remarks:
        flags.setdefault(remark.reason, []).append(remark.flag)
    return [str(Remark(", ".join(filter(None, names)), reason)) for reason, names in flags.items()]


def _tree(settings: list[Setting]) -> dict[str, Any]:
    places = {key: place for place, key in enumerate(known_keys())}

    def place(setting: Setting) -> int:
        key = re.sub(r"^(data\.rollout\.validation)\.\w+", r"\1", setting.key)
        while key not in places:
            key = key.rpartition(".")[0]
        return places[key]

    tree: dict[str, Any] = {}
    for setting in sorted(settings, key=place):
        *sections, name = setting.key.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = setting
    return tree


def _lines(tree: dict[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    for name, node in tree.items():
        start = f"{'  ' * depth}{dump_in_one_line(name)}:"
        if isinstance(node, Setting):
            origin = " ".join((node.origin or "").split())
            lines.append(f"{start} {dump_in_one_line(node.value)}  # {origin}")
        else:
            lines += [start, *_lines(node, depth + 1)]
    return lines
