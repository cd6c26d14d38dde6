"""The page of all keys, docs/configuration.md, made from the dataclasses."""

from __future__ import annotations

import re

from relax_lightning.config.explain import reference_flags
from relax_lightning.config.help import default_text, type_text
from relax_lightning.config.sections import Entry, Section, listed_sections

_HEAD = """\
# Configuration

Every key, section by section. A key that is left out has its default.

* `relax-lightning config --explain KEY` says more of one key: the values that are allowed, what null means, the code
  that reads it. It also takes the names that others use, such as `gae_lambda`, and the flags of the reference.
* `relax-lightning config --schema > schema.json` writes a JSON Schema. An editor completes and checks a configuration
  that begins with the line `# yaml-language-server: $schema=schema.json`.
* The reference is the system whose published description this project follows; [differences.md](differences.md) says
  what is different here.

This page is made from the code, by `relax-lightning config --markdown > docs/configuration.md`.
"""


def markdown() -> str:
    """The page: a table for every section, in the order of the tree."""
    return "\n".join([_HEAD, *(text for section in listed_sections() if (text := _section(section)))])


def _section(section: Section) -> str:
    title = f"## `{section.key}`" if section.key else "## The top"
    meaning = f"{section.meaning[:1].upper()}{_escaped(section.meaning[1:])}."
    if section.same_as is not None:
        anchor = re.sub(r"[^\w-]", "", section.same_as)
        own = "".join(f" `{f}` is `{e.key}`." for e in section.entries for f in reference_flags(e.key))
        return f"{title}\n\n{meaning} The keys of [`{section.same_as}`](#{anchor}).{own}\n"
    rows = [_row(entry) for entry in section.entries if not entry.is_only_a_title]
    head = "| key | type | default | meaning | reference flag |\n|---|---|---|---|---|\n"
    return f"{title}\n\n{meaning}\n\n{head}{''.join(rows)}" if rows else ""


def _row(entry: Entry) -> str:
    default, flags = default_text(entry), [f"`{flag}`" for flag in reference_flags(entry.key)]
    cells = [
        f"`{entry.key}`",
        type_text(entry),
        default if default == "required" else f"`{default}`",
        _escaped(entry.meaning),
        ", ".join(flags),
    ]
    return f"| {' | '.join(cells)} |\n"


def _escaped(text: str) -> str:
    return re.sub(r"([|*<])", r"\\\1", text)
