"""What is known of a script at one of its statements: its variables, the branches around it, what has been found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from relax_lightning.migrate.flag_words import read_flags
from relax_lightning.migrate.shell_text import Text, Unknown, joined, literal, shown
from relax_lightning.migrate.shell_tree import names_in, source
from relax_lightning.migrate.shell_words import LIMIT, OWN_ARGUMENTS, Scope

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Call:
    """A command with its words, and where it stands."""

    words: list[Text]
    line: int
    uncertain: bool
    """Under a condition that cannot be decided here, or in a function."""
    branches: tuple[int, ...]
    """The undecided branches around it."""
    used: set[str]
    """The variables that it is made of."""
    given: Text | None
    """What its input is, in the script itself."""
    files: list[Text]
    """Where its output goes."""


@dataclass(frozen=True)
class Note:
    """What could not be told: about a variable, where it matters to those who use it, else about the script."""

    text: str
    name: str | None = None
    branch: int | None = None
    """The branch that it is about: within it, it is no news."""


@dataclass
class ScriptState:
    """Assigns, and takes note of what may not run."""

    scope: Scope
    calls: list[Call] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    conditional: dict[str, int] = field(default_factory=dict)
    """Variables that are set only under a condition, with the line."""
    uses: dict[str, set[str]] = field(default_factory=dict)
    """The variables that a variable is made of."""
    _functions: dict[str, Node] = field(default_factory=dict)
    _called: set[str] = field(default_factory=set)
    _files: dict[str, tuple[Text, set[str]]] = field(default_factory=dict)
    """What the script writes to files, with the variables in it."""
    _sourced: set[Path] = field(default_factory=set)
    _outer: list[dict[str, Text | list[Text]]] = field(default_factory=list)
    """The variables outside the undecided branches around what is read."""
    _branches: tuple[int, ...] = ()
    _num_branches: int = 0
    _in_function: int = 0
    _steps: int = 0
    _inherited: set[str] = field(default_factory=set)
    """The variables that the text, or the arguments, of what is read are made of."""
    _line: int | None = None
    """The line to name for a text that is read once more, as in `bash -c`."""

    def used(self, names: set[str]) -> set[str]:
        """These variables, and all that they are made of."""
        used, new = set[str](), set(names)
        while new:
            used |= new
            new = {inner for name in new for inner in self.uses.get(name, ())} - used
        return used

    # --- assignments ------------------------------------------------------------------------------------------

    def _run_variable_assignment(self, node: Node) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert target is not None
        name = re.split(r"\W", source(target))[0]
        self.uses.setdefault(name, set()).update(names_in(node), self._inherited)
        old = self.scope.variables.get(name) if source(node)[len(source(target)) :].startswith("+=") else None
        if target.type == "subscript":
            self._assign(name, [(Unknown(f"${{{name}[@]}}"),)], node)
        elif value is not None and value.type == "array":
            elements = [child for child in value.named_children if child.type != "comment"]
            has_keys = any(re.match(r"\[.+?\]=", source(element)) for element in elements)
            texts = self.scope.words(value, elements)
            if has_keys:
                texts: list[Text] = [(Unknown(f"${{{name}[@]}}"),)]
            own = old if isinstance(old, list) else [] if old is None else [old]
            self._assign(name, [*own, *texts], node, texts)
        else:
            text = self.scope.text(value)
            self._assign(name, joined([old, text], "") if isinstance(old, tuple) else text, node)

    def _assign(
        self, name: str, value: Text | list[Text], node: Node, added: list[Text] | None = None
    ) -> None:
        known = value if isinstance(value, list) else [""] * (len(shown(value)) // 100)
        if len(known) > LIMIT:
            wanted = f"wanted at most {LIMIT} words in {name}, got more; shorten it"
            raise ValueError(f"line {self._line_of(node)}: {wanted}")
        if self._branches:
            self._note_condition(name, value, self._line_of(node), added)
        self.scope.variables[name] = value

    def _note_condition(
        self, name: str, value: Text | list[Text], line: int, added: list[Text] | None
    ) -> None:
        outside = self._outer[-1].get(name)
        if isinstance(value, list):
            flags, strays = read_flags(value if added is None else added)
            left_out = f"line {line}, only under a condition, was left out: {name}"
            if outside != value and (added or added is None):
                self._say(f"{left_out} {' '.join([*map(str, flags), *map(shown, strays)])}", name)
            return
        self.conditional.setdefault(name, line)
        if outside is not None and outside != value:
            self._say(f"line {line}: {name}={shown(value)}, only under a condition, was left out", name)

    def _run_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.scope.variables.pop(source(child), None)

    def _forget(self, names: list[str], node: Node) -> None:
        for name in names:
            self._assign(name, (Unknown(f"${{{name}}}"),), node)

    def _forget_counted(self, text: str, node: Node) -> None:
        """Nothing is counted here: what arithmetic sets is not known."""
        counted = text.partition("((")[2]
        self._forget(re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", counted), node)

    def _read_input(self, call: Call, node: Node) -> None:
        """Follow `read -a` and `mapfile`, of a text that the script itself gives."""
        command, *known = [literal(word) or "" for word in call.words]
        options = "".join(word for word in known if word.startswith("-"))
        names = [word for word in known if word.isidentifier()]
        for name in names:
            self.uses.setdefault(name, set()).update(call.used)
        if call.given is None or (command == "read" and not re.search("[ad]", options)):
            self._forget(names, node)
        elif "d" not in options and names:
            separators = None if command == "read" else "\n"
            self._assign(names[-1], self.scope.split(call.given, separators), node)

    def _set_arguments(self, name: str, call: Call) -> None:
        if name == "set" and ("--",) in call.words:
            self.scope.arguments = call.words[call.words.index(("--",)) + 1 :]
            self._inherited = self._inherited | call.used
        elif name == "shift" and (OWN_ARGUMENTS,) not in self.scope.arguments:
            count = literal(call.words[1]) or "" if len(call.words) > 1 else "1"
            is_known = re.fullmatch("[0-9]{1,4}", count)
            self.scope.arguments = self.scope.arguments[int(count) :] if is_known else [(Unknown("${@}"),)]

    def _found(self, target: Text) -> Path | None:
        """The file that `source` names: as it is, else of that name beside the script or in its `models` folder."""
        known, name = literal(target), shown(target).rpartition("/")[2]
        beside = self.scope.file.resolve().parent
        candidates = [Path(known), beside / known] if known else []
        candidates += [folder / name for folder in (beside, beside / "models")]
        return next((path.resolve() for path in candidates if name and path.is_file()), None)

    # --- branches ---------------------------------------------------------------------------------------------

    @contextmanager
    def _branch(self) -> Iterator[None]:
        """What is read inside may not run: its variables hold only there."""
        before = self._branches
        self._num_branches += 1
        self._branches = (*before, self._num_branches)
        with self._inner():
            yield
        self._branches = before

    @contextmanager
    def _inner(self, arguments: list[Text] | None = None) -> Iterator[None]:
        variables, before = dict(self.scope.variables), self.scope.arguments
        self._outer.append(variables)
        self.scope.arguments = before if arguments is None else arguments
        yield
        self._outer.pop()
        self.scope.variables, self.scope.arguments = variables, before

    def _line_of(self, node: Node) -> int:
        return self._line or node.start_point[0] + 1

    def _say(self, text: str, name: str | None = None) -> None:
        about = self._branches[-1] if name is not None and self._branches else None
        self.notes.append(Note(text, name, about))
