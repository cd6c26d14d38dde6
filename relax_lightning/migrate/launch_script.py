"""From a launch script to the flags that it starts training with. The script is read, never run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relax_lightning.config.faults import fault
from relax_lightning.migrate.flag_words import Flag, is_flag, read_flags
from relax_lightning.migrate.flags import rule_of
from relax_lightning.migrate.script_reader import ScriptReader
from relax_lightning.migrate.script_state import Call
from relax_lightning.migrate.shell_text import Text, Unknown, Variable, shown, variable_names
from relax_lightning.migrate.shell_words import Scope

_PYTHON = re.compile(r"(^|[/{-])(python[\d.]*|torchrun|accelerate|deepspeed|uv)\}?$|PYTHON\w*\}?$")
_LAUNCHERS = re.compile(r"torch\.distributed|accelerate\.commands|debugpy|cProfile|pdb|coverage")
_NO_LAUNCH = re.compile(r"-|(.*/)?(pkill|pgrep|ps|grep|kill|killall|ls|cd|mkdir|rm|cp|mv|export|sed)$")


@dataclass
class LaunchScript:
    """What a script starts training with, and what could not be told without running it."""

    flags: list[Flag]
    notes: list[str] = field(default_factory=list)
    """Each about a part of the script whose flags may be missing."""
    unused: list[tuple[str, str]] = field(default_factory=list)
    """Flags of arrays that the launch has no use for, each with the array's name."""


@dataclass
class _Launch:
    """A command that is given flags: a Python program, or one whose flags are known here."""

    call: Call
    program: str
    is_python: bool
    words: list[Text]

    @property
    def size(self) -> int:
        return sum(map(is_flag, self.words))


def read_launch_script(path: Path) -> LaunchScript:
    """The flags of the command that starts training.

    Args:
        path: a bash script; files that it sources are read as well where they are found.

    Raises:
        ValueError: It cannot be read, is no bash, or holds no flag.
    """
    reader = ScriptReader(Scope(path))
    try:
        reader.read(path)
        launches = _launches(reader)
        if not launches:
            reader.read_functions()
            launches = _launches(reader)
    except RecursionError:
        raise ValueError(fault("a script that is nested less deeply", str(path), "flatten it")) from None
    script = _of_launch(reader, launches) if launches else _of_arrays(reader)
    if not script.flags:
        wanted, change = (
            "a launch script with flags such as --hf-checkpoint",
            "give the script that starts training",
        )
        raise ValueError(fault(wanted, f"none in {path}", change))
    script.notes = list(dict.fromkeys(script.notes))
    return script


def _of_launch(reader: ScriptReader, launches: list[_Launch]) -> LaunchScript:
    """Of the launches with at least half of the most flags the first that surely runs, and of these the longest."""
    most = max(launch.size for launch in launches)
    chosen = max(
        (launch for launch in launches if launch.size * 2 >= most),
        key=lambda launch: (not launch.call.uncertain, launch.size),
    )
    words = [word for word in chosen.words if not _are_own_arguments(word)]
    flags, strays = read_flags(words)
    used = reader.used(chosen.call.used)
    notes = [
        note.text
        for note in reader.notes
        if (note.name is None or note.name in used) and note.branch not in chosen.call.branches
    ]
    notes += [*_notes_on_launches(chosen, launches), *_notes_on_lost_lines(reader.calls)]
    if len(words) < len(chosen.words):
        notes.append("the script hands its own arguments on: give them to fit, as keys")
    notes += _notes_on_variables(reader, used, flags, strays)
    unused = {name: value for name, value in _arrays(reader).items() if name not in used}
    return LaunchScript(
        flags, notes, [(str(flag), name) for name, value in unused.items() for flag in read_flags(value)[0]]
    )


def _of_arrays(reader: ScriptReader) -> LaunchScript:
    """Where no launch is found: all arrays of flags."""
    arrays = _arrays(reader)
    flags, _ = read_flags([text for value in arrays.values() for text in value])
    notes = [*(note.text for note in reader.notes), *_notes_on_lost_lines(reader.calls)]
    notes.append(f"no command that starts training was found: the flags of {', '.join(arrays)} were read")
    return LaunchScript(flags, notes)


def _arrays(reader: ScriptReader) -> dict[str, list[Text]]:
    return {name: value for name, value in reader.scope.variables.items() if isinstance(value, list)}


def _notes_on_variables(
    reader: ScriptReader, used: set[str], flags: list[Flag], strays: list[Text]
) -> Iterator[str]:
    """On variables that are not what they seem: those of these flags, and those that stand for flags."""
    names = {name for flag in flags for value in flag.values for name in variable_names(value)}
    missing = [name for name in reader.scope.unset_arrays if name in used - reader.scope.variables.keys()]
    missing += [word[0].name for word in strays if isinstance(word[0], Variable)]
    yield from (f"{name} is not set in the script: its flags are unknown" for name in missing)
    for word in strays:
        if isinstance(word[0], Unknown):
            yield f"{shown(word)} is known to bash only: its flags are unknown"
    for name in sorted((names | set(missing)) & reader.conditional.keys()):
        line = reader.conditional[name]
        yield f"line {line} sets {name} only under a condition: here it comes from the environment"


def _notes_on_launches(chosen: _Launch, launches: list[_Launch]) -> Iterator[str]:
    if chosen.call.uncertain:
        where = "only under a condition or in a function"
        yield f"line {chosen.call.line} starts training {where}: its flags were read"
    known = {str(flag) for flag in read_flags(chosen.words)[0]}
    for other in launches:
        is_tool = other.is_python and other.program != chosen.program and other.size * 2 < chosen.size
        if other is not chosen and not is_tool:
            rest = [str(flag) for flag in read_flags(other.words)[0] if str(flag) not in known]
            says = f": {' '.join(rest)}" if rest else ""
            yield f"line {other.call.line}, one more launch of {other.program}, was left out{says}"


def _notes_on_lost_lines(calls: list[Call]) -> Iterator[str]:
    for call in calls:
        if shown(call.words[0]).startswith("-"):
            flags = " ".join(str(flag) for flag in read_flags(call.words)[0]) or shown(call.words[0])
            why = "bash takes it for a command: is a \\ missing at the end of the line before?"
            yield f"line {call.line} begins with a flag, and {why} {flags} was left out"


def _launches(reader: ScriptReader) -> list[_Launch]:
    return [launch for launch in map(_launch, reader.calls) if launch is not None and launch.size]


def _launch(call: Call) -> _Launch | None:
    """The program that a command starts, and the words behind it."""
    written = [shown(word) for word in call.words]
    if _NO_LAUNCH.match(written[0]):
        return None
    python = next((n for n, word in enumerate(written) if _PYTHON.search(word)), None)
    if (at := _program_at(written, python)) is not None:
        return _Launch(call, written[at], True, call.words[at + 1 :])
    first = next((n for n, word in enumerate(call.words) if is_flag(word)), len(written))
    is_opaque = not isinstance((*call.words[0], "")[0], str)
    flags, _ = read_flags(call.words[first:])
    if python is None and not is_opaque and not any(rule_of(flag.name) for flag in flags):
        return None
    return _Launch(call, " ".join(written[:first]), python is not None, call.words[first:])


def _program_at(written: list[str], python: int | None) -> int | None:
    """Where `train.py`, or the module behind `-m`, stands."""
    for number, word in enumerate(written):
        if re.search(r"\.py[\"'}]*$", word) and not word.startswith("--"):
            return number
        is_module = word in ("-m", "--module") and python is not None and number > python
        if is_module and number + 1 < len(written) and not _LAUNCHERS.match(written[number + 1]):
            return number + 1
    return None


def _are_own_arguments(word: Text) -> bool:
    return (
        len(word) == 1 and isinstance(word[0], Unknown) and re.match(r"\$\{?[@*]", word[0].source) is not None
    )
