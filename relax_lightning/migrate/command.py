"""The command `relax-lightning migrate`."""

from __future__ import annotations

import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from pathlib import Path

from relax_lightning.config.faults import fault
from relax_lightning.config.loader import read_tree
from relax_lightning.config.yaml_text import parse_yaml
from relax_lightning.migrate.document import write_document
from relax_lightning.migrate.launch_script import read_launch_script
from relax_lightning.migrate.translation import Translation, translate
from relax_lightning.plan import check

USAGE = """\
usage: relax-lightning migrate SCRIPT.sh [-o CONFIG.yaml] [--strict]

Translates a launch script of Relax or slime, flag by flag. The script is read, never run.

  -o CONFIG.yaml   where the configuration is written; without it, standard output
  --strict         exit with 2 when something was not translated
"""


def migrate(words: list[str]) -> int:
    """Run the command.

    Args:
        words: what follows `migrate`.

    Returns:
        The exit status: 0; 2 for an unreadable command line, or with `--strict` for an incomplete translation.

    Raises:
        ValueError: The script cannot be read, or the output is there already or cannot be written.
    """
    if "--help" in words or "-h" in words:
        print(USAGE, end="")
        return 0
    arguments = _parsed(words)
    if arguments is None:
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
        _write(Path(arguments.output), text)
    _report(translation, text)
    return 2 if arguments.strict and translation.not_translated else 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        change = f"{error.strerror}; change the path"
        raise ValueError(f"-o: {fault('a file that can be written', str(path), change)}") from None


def _parsed(words: list[str]) -> Namespace | None:
    parser = ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("script", nargs="?")
    parser.add_argument("-o", "--output")
    parser.add_argument("--strict", action="store_true")
    try:
        arguments, unknown = parser.parse_known_args(words)
    except ArgumentError:
        return None
    return None if unknown or arguments.script is None else arguments


def _report(translation: Translation, text: str) -> None:
    for difference in translation.differences:
        print(f"relax-lightning: warning: {difference}", file=sys.stderr)
    _print_list("not translated", [str(remark) for remark in translation.not_translated])
    _print_list("to be done", _to_be_done(text))


def _to_be_done(text: str) -> list[str]:
    """What is wrong with the configuration as far as it can be told without its files and its environment."""
    config, faults = read_tree(parse_yaml(text), keep_missing_variables=True)
    errors = [p for p in check(config, check_files=False, subcommand="plan") if p.severity == "error"]
    # A finding that rests on a faulty key says nothing: the key has its default there.
    sound = [p for p in errors if not any(faults.concern(key) for key in (p.key, *p.involves))]
    # A number that only the environment knows cannot be checked before a run.
    return [line for line in (*faults.lines(), *map(str, sound)) if "'${" not in line]


def _print_list(title: str, lines: list[str]) -> None:
    if lines:
        print(f"relax-lightning: {title}: {len(lines)}", file=sys.stderr)
    for line in lines:
        print(f"  - {' '.join(line.split())}", file=sys.stderr)
