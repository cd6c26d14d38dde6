"""From a launch script to the flags that it starts training with. The script is read, never run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relax_lightning.config.faults import fault
from relax_lightning.migrate.flag_words import Flag, is_flag, read_flags
from relax_lightning.migrate.shell_expansion import Scope, expand, expand_one
from relax_lightning.migrate.shell_text import Text, Unknown, Variable, literal, shown, variable_names
from relax_lightning.migrate.shell_words import Command, read_commands


@dataclass
class LaunchScript:
    """What a script starts training with, and what could not be told without running it."""

    flags: list[Flag]
    notes: list[str] = field(default_factory=list)
    """Each about a part of the script whose flags may be missing."""


def read_launch_script(path: Path) -> LaunchScript:
    """The flags of the command that starts training.

    Args:
        path: a bash script; files that it sources are read as well where they are found.

    Raises:
        ValueError: It cannot be read, is no bash, or holds no flag.
    """
    reader = _Reader(Scope(path))
    reader.read(path)
    words = reader.launch_words()
    if not any(is_flag(word) for word in words):
        change = "give the script that starts training"
        raise ValueError(
            fault("a launch script with flags such as --hf-checkpoint", f"none in {path}", change)
        )
    flags, strays = read_flags(words)
    return LaunchScript(flags, list(dict.fromkeys([*reader.notes, *reader.notes_on(flags, strays)])))


_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<append>\+)?=(?P<value>.*)", re.S)
_OWN_ARGUMENTS: tuple[Text, ...] = ((Unknown("${@}"),), (Unknown("${*}"),))
_DECLARING = ("export", "declare", "local", "readonly", "typeset")


@dataclass
class _Launch:
    """A Python program that is started, with what was looked up for its words."""

    call: Command
    program: str
    words: list[Text]
    unset_arrays: list[str]
    looked_up: set[str]

    @property
    def size(self) -> int:
        return sum(map(is_flag, self.words))


class _Reader:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.notes: list[str] = []
        self._calls: list[Command] = []
        self._sourced: set[Path] = set()
        self._conditional: dict[str, int] = {}
        self._overridden: dict[str, str] = {}
        self._uses: dict[str, set[str]] = {}

    def read(self, path: Path) -> None:
        """Take the assignments of a file, and remember its commands.

        Raises:
            ValueError: It cannot be read, or is no bash.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ValueError(fault("a bash script", str(path), f"{message}; change the path")) from None
        try:
            commands = read_commands(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        for command in commands:
            self._take(command)

    def launch_words(self) -> list[Text]:
        """The words behind the program that starts training; where none is found, all arrays of flags."""
        launches = [launch for launch in map(self._launch, self._calls) if launch.size]
        if not launches:
            arrays = [value for value in self.scope.variables.values() if isinstance(value, list)]
            self.scope.looked_up = {*self.scope.variables}
            return [text for value in arrays for text in value]
        chosen = _chosen(launches)
        self.scope.unset_arrays += chosen.unset_arrays
        self.scope.looked_up = chosen.looked_up
        self.notes += _notes_on_launches(chosen, launches)
        kept = [word for word in chosen.words if word not in _OWN_ARGUMENTS]
        if len(kept) < len(chosen.words):
            self.notes.append("the script hands its own arguments on: give them to fit, as keys")
        return kept

    def notes_on(self, flags: list[Flag], strays: list[Text]) -> list[str]:
        """Notes on variables that are not what they seem: those of these flags, and those that stand for flags."""
        names = {name for flag in flags for value in flag.values for name in variable_names(value)}
        missing = [*self.scope.unset_arrays, *(w[0].name for w in strays if isinstance(w[0], Variable))]
        notes = [f"{name} is not set in the script: its flags are unknown" for name in missing]
        notes += [
            f"{shown(word)} is known to bash only: its flags are unknown"
            for word in strays
            if isinstance(word[0], Unknown)
        ]
        for name in sorted((names | set(missing)) & self._conditional.keys()):
            line = self._conditional[name]
            notes.append(
                f"line {line} sets {name} only under a condition: here it comes from the environment"
            )
        for name in sorted(self._used() & self._overridden.keys()):
            notes.append(f"{self._overridden[name]}, only under a condition, was left out")
        return notes

    def _used(self) -> set[str]:
        """The variables that the launch is made of."""
        used, new = set[str](), set(self.scope.looked_up)
        while new:
            used |= new
            new = {inner for name in new for inner in self._uses.get(name, ())} - used
        return used

    def _launch(self, call: Command) -> _Launch:
        scope = self.scope
        before, scope.unset_arrays, scope.looked_up = scope.unset_arrays, [], set()
        program, words = _behind_program(self._expanded(call))
        launch = _Launch(call, program, words, scope.unset_arrays, scope.looked_up)
        scope.unset_arrays = before
        return launch

    def _take(self, command: Command) -> None:
        words, first = command.words, 0
        if words[0] in _DECLARING:
            first = next((n for n, word in enumerate(words) if n and not word.startswith("-")), len(words))
        assignments = [_ASSIGNMENT.fullmatch(word) for word in words[first:]]
        if all(assignments):
            for number, found in enumerate(assignments, start=first):
                assert found is not None
                self._assign(found, command.arrays.get(number), command)
        elif words[0] in ("source", "."):
            self._source(words[1:2], command)
        elif words[0] == ":":
            self._expanded(command)  # `: "${NAME:=default}"` assigns
        elif words[0] not in _DECLARING:
            self._calls.append(command)

    def _assign(self, found: re.Match[str], elements: list[str] | None, command: Command) -> None:
        name, variables = found["name"], self.scope.variables
        self.scope.looked_up = self._uses.setdefault(name, set())
        if elements is None:
            value: Text | list[Text] = expand_one(found["value"], self.scope)
        else:
            value = [text for word in elements for text in expand(word, self.scope)]
        if command.conditional:
            self._note_condition(name, value, command)
            return
        before = variables.get(name)
        if found["append"] and isinstance(value, list):
            variables[name] = [*(before if isinstance(before, list) else []), *value]
        elif found["append"] and isinstance(before, tuple):
            assert isinstance(value, tuple)
            variables[name] = (*before, *value)
        else:
            variables[name] = value

    def _note_condition(self, name: str, value: Text | list[Text], command: Command) -> None:
        if not isinstance(value, list):
            self._conditional.setdefault(name, command.line)
            if name in self.scope.variables and self.scope.variables[name] != value:
                self._overridden[name] = f"line {command.line}: {name}={shown(value)}"
        elif value:
            flags = " ".join(map(str, read_flags(value)[0]))
            self.notes.append(f"line {command.line}, only under a condition, was left out: {name} {flags}")

    def _source(self, words: list[str], command: Command) -> None:
        # Sourcing only sets variables here, so a condition before it (is another entry point at work?) does not matter.
        target = expand_one(words[0], self.scope) if words else ()
        path = self._found(literal(target), shown(target))
        if path is None:
            self.notes.append(
                f"line {command.line}: source {shown(target)}: no such file was found; its flags are unknown"
            )
        elif path not in self._sourced:
            self._sourced.add(path)
            outer, self.scope.file, before = self.scope.file, path, dict(self.scope.variables)
            try:
                self.read(path)
            except ValueError as error:
                self.notes.append(
                    f"line {command.line}: source {shown(target)}: {error}; its flags are unknown"
                )
            self.scope.file = outer
            anew = [name for name, value in before.items() if self.scope.variables[name] != value]
            if command.uncertain and anew:
                says = f"source {shown(target)}, which sets {', '.join(anew)} anew"
                self.notes.append(f"line {command.line}, only under a condition, was read: {says}")

    def _found(self, target: str | None, written: str) -> Path | None:
        """The file that `source` names: as it is, else of that name beside the script or in its `models` folder."""
        name, beside = written.rpartition("/")[2], self.scope.file.resolve().parent
        candidates = [Path(target), beside / target] if target else []
        candidates += [folder / name for folder in (beside, beside / "models")]
        return next((path.resolve() for path in candidates if name and path.is_file()), None)

    def _expanded(self, command: Command) -> list[Text]:
        return [text for word in command.words for text in expand(word, self.scope)]


def _chosen(launches: list[_Launch]) -> _Launch:
    """Of those with at least half of the most flags the first that surely runs, and of these the one with most."""
    most = max(launch.size for launch in launches)
    return max(
        (launch for launch in launches if launch.size * 2 >= most),
        key=lambda launch: (not launch.call.uncertain, launch.size),
    )


def _notes_on_launches(chosen: _Launch, launches: list[_Launch]) -> Iterator[str]:
    if chosen.call.uncertain:
        where = "only under a condition or in a function"
        yield f"line {chosen.call.line} starts training {where}: its flags were read"
    known = {str(flag) for flag in read_flags(chosen.words)[0]}
    for other in launches:
        if other is not chosen and (other.program == chosen.program or other.size * 2 >= chosen.size):
            rest = [str(flag) for flag in read_flags(other.words)[0] if str(flag) not in known]
            says = f": {' '.join(rest)}" if rest else ""
            yield f"line {other.call.line}, one more launch of {other.program}, was left out{says}"


def _behind_program(words: list[Text]) -> tuple[str, list[Text]]:
    """`train.py` or the module of a Python program, and the words behind; nothing where it is no Python program."""
    has_python = False
    for number, word in enumerate(literal(word) or "" for word in words):
        has_python = has_python or re.search(r"(^|/)(python[\d.]*|torchrun)$", word) is not None
        if has_python and (word.endswith(".py") or word == "-m"):
            behind = words[number + (word == "-m") :]
            return (shown(behind[0]), behind[1:]) if behind else ("", [])
    return "", []
