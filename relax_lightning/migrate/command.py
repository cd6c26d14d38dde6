"""The command `relax-lightning migrate`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from relax_lightning.config.faults import fault
from relax_lightning.config.loader import read_tree
from relax_lightning.config.yaml_text import parse_yaml
from relax_lightning.migrate.document import write_document
from relax_lightning.migrate.launch_script import read_launch_script
from relax_lightning.migrate.translation import Translation, translate

USAGE = """\
usage: relax-lightning migrate SCRIPT.sh [-o CONFIG.yaml] [--strict]

Translates a launch script of Relax or slime, flag by flag. The script is read, never run.

  -o CONFIG.yaml   where the configuration is written; without it, standard output
  --strict         exit with 2 when something was not translated
"""


@dataclass
class Arguments:
    """What follows `migrate`."""

    script: str | None = None
    output: str | None = None
    strict: bool = False


def migrate(words: list[str]) -> int:
    """Run the command.

    Args:
        words: what follows `migrate`.

    Returns:
        The exit status: 0; 2 for an unreadable command line, or with `--strict` for an incomplete translation.

    Raises:
        ValueError: The script cannot be read, or the output is there already.
    """
    if "--help" in words or "-h" in words:
        print(USAGE, end="")
        return 0
    arguments = _parsed(words)
    if arguments is None or arguments.script is None:
        got = " ".join(words) or "nothing after migrate"
        message = f"wanted migrate SCRIPT.sh [-o CONFIG.yaml] [--strict], got {got}"
        print(f"relax-lightning: {message}; see relax-lightning migrate --help", file=sys.stderr)
        return 2
    if arguments.output is not None and Path(arguments.output).exists():
        raise ValueError(f"-o: {fault('a new file', arguments.output, 'remove it or give another name')}")
    translation = translate(read_launch_script(Path(arguments.script)))
    text = write_document(translation, Path(arguments.script).name)
    if arguments.output is None:
        print(text, end="")
    else:
        Path(arguments.output).write_text(text, encoding="utf-8")
    _report(translation, text)
    return 2 if arguments.strict and translation.not_translated else 0


def _parsed(words: list[str]) -> Arguments | None:
    arguments, rest = Arguments(), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--strict":
            arguments.strict = True
        elif word in ("-o", "--output") and rest and arguments.output is None:
            arguments.output = rest.pop(0)
        elif not word.startswith("-") and arguments.script is None:
            arguments.script = word
        else:
            return None
    return arguments


def _report(translation: Translation, text: str) -> None:
    for difference in translation.differences:
        print(f"relax-lightning: warning: {difference}", file=sys.stderr)
    _print_list("not translated", [str(remark) for remark in translation.not_translated])
    # A number that only the environment knows cannot be checked before a run.
    _, problems = read_tree(parse_yaml(text), keep_missing_variables=True)
    _print_list("to be done", [line for line in problems.lines() if "'${" not in line])


def _print_list(title: str, lines: list[str]) -> None:
    if lines:
        print(f"relax-lightning: {title}: {len(lines)}", file=sys.stderr)
    for line in lines:
        print(f"  - {' '.join(line.split())}", file=sys.stderr)
