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
from relax_lightning.migrate.shell_tree import line_of, source
from relax_lightning.migrate.shell_words import LIMIT, OWN_ARGUMENTS, Scope

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Call:
    """A command with its words, where it stands, and what was looked up for it."""

    words: list[Text]
    line: int
    uncertain: bool
    """Under a condition that cannot be decided here, or in a function."""
    branches: tuple[int, ...]
    """The undecided branches around it."""
    unset_arrays: list[str]
    looked_up: set[str]


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
    _files: dict[str, Text] = field(default_factory=dict)
    _sourced: set[Path] = field(default_factory=set)
    _outer: list[dict[str, Text | list[Text]]] = field(default_factory=list)
    """The variables outside the undecided branches around what is read."""
    _branches: tuple[int, ...] = ()
    _num_branches: int = 0
    _depth: int = 0
    _in_function: int = 0
    _steps: int = 0
    _inherited: frozenset[str] = frozenset()
    """Variables that were looked up for the text that is read once more."""
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
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        assert name is not None
        target = source(name).replace('"', "").replace("'", "")
        own = re.match(r"\w*", target)
        assert own is not None
        before, self.scope.looked_up = self.scope.looked_up, self.uses.setdefault(own[0], set())
        if value is not None and value.type == "array":
            self._assign_array(target, value, node)
        else:
            text = self.scope.text(value)
            old = self.scope.variables.get(target)
            if "+=" in source(node)[: len(source(name)) + 2] and old is not None:
                text = joined([old, text], "") if isinstance(old, tuple) else text
            self._assign(target, text, node)
        self.scope.looked_up = before

    def _assign_array(self, name: str, value: Node, node: Node) -> None:
        plain: list[Node] = []
        for element in value.named_children:
            keyed = re.match(r"\[(.+?)\]=", source(element))
            if keyed is not None:
                key = keyed[1].strip("'\"")
                text = self.scope.text(element)
                first = text[0] if text and isinstance(text[0], str) else ""
                self._assign(f"{name}[{key}]", (first.partition("]=")[2], *text[1:]), node)
            elif element.type != "comment":
                plain.append(element)
        texts = self.scope.words(value, plain)
        before = self.scope.variables.get(name)
        if "+=" in source(node)[: len(name) + 2]:
            own: list[Text] = before if isinstance(before, list) else [] if before is None else [before]
            self._assign(name, [*own, *texts], node, texts)
        else:
            self._assign(name, texts, node)

    def _assign(
        self, name: str, value: Text | list[Text], node: Node, added: list[Text] | None = None
    ) -> None:
        size = (
            len(value) if isinstance(value, list) else sum(len(p) for p in value if isinstance(p, str)) // 100
        )
        if size > LIMIT:
            raise ValueError(
                f"line {self._line_of(node)}: wanted at most {LIMIT} words in {name}, got more; shorten it"
            )
        variables, element = self.scope.variables, re.fullmatch(r"(\w+)\[(\d+)\]", name)
        if element is not None and isinstance(value, tuple):
            name, at = element[1], int(element[2])
            old = variables.get(name)
            items = list(old) if isinstance(old, list) else []
            value = [*items[:at], value, *items[at + 1 :]]
        if self._branches:
            self._note_condition(name, value, node, added)
        variables[name] = value

    def _note_condition(
        self, name: str, value: Text | list[Text], node: Node, added: list[Text] | None
    ) -> None:
        line, outside = self._line_of(node), self._outer[-1].get(name)
        says = f"line {line}, only under a condition, was left out: {name}"
        if isinstance(value, list):
            texts = value if added is None else added
            if texts and outside != value:
                flags, strays = read_flags(texts)
                words = [*map(str, flags), *map(shown, strays)] or [shown(text) for text in texts]
                self._say_of(name, f"{says} {' '.join(words)}")
        else:
            self.conditional.setdefault(name, line)
            if outside is not None and outside != value:
                self._say_of(
                    name, f"line {line}: {name}={shown(value)}, only under a condition, was left out"
                )

    def _run_declaration_command(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._run_variable_assignment(child)

    def _run_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.scope.variables.pop(source(child), None)

    # --- what commands set

    def _arithmetic(self, node: Node) -> None:
        for name in re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", source(node)):
            self._assign(name, (Unknown(source(node)),), node)

    def _read_input(self, words: list[Text], node: Node, here: Node | None) -> None:
        given = next((c for c in node.named_children if c.type == "herestring_redirect"), None)
        known = [literal(word) or "" for word in words[1:]]
        options = "".join(word[1:] for word in known if word.startswith("-"))
        names = [word for word in known if word.isidentifier()]
        used = set[str]()
        text = None if given is None else self._here_text(given.named_children[-1], used)
        if here is not None and "d" not in options:
            text = self._here_text(here, used)
        for name in names:
            self.uses.setdefault(name, set()).update(used)
        lines = literal(words[0]) != "read"
        if text is None or "d" in options or not names:
            if here is None:
                for name in names:
                    self._assign(name, (Unknown(f"${{{name}}}"),), node)
        elif lines:
            parts = [
                part for piece in text for part in (piece.splitlines() if isinstance(piece, str) else [piece])
            ]
            self._assign(names[-1], [(part,) for part in parts], node)
        elif "a" in options:
            self._assign(names[0], self.scope.split(text), node)
        else:
            fields = self.scope.split(text)
            for number, name in enumerate(names):
                rest = joined(fields[number:], " ")
                self._assign(
                    name, rest if name == names[-1] else fields[number] if number < len(fields) else (), node
                )

    def _set_arguments(self, name: str, call: Call) -> None:
        if name == "set" and ("--",) in call.words:
            self.scope.arguments = call.words[call.words.index(("--",)) + 1 :]
            self._inherited |= call.looked_up
        elif name == "shift" and self.scope.arguments != [(OWN_ARGUMENTS,)]:
            self.scope.arguments = self.scope.arguments[1:]

    def _here_text(self, here: Node, looked_up: set[str]) -> Text:
        before, self.scope.looked_up = self.scope.looked_up, looked_up
        text = self.scope.text(here)
        self.scope.looked_up = before
        return text

    def _found(self, target: str | None, written: str) -> Path | None:
        """The file that `source` names: as it is, else of that name beside the script or in its `models` folder."""
        name, beside = written.rpartition("/")[2], self.scope.file.resolve().parent
        candidates = [Path(target), beside / target] if target else []
        candidates += [folder / name for folder in (beside, beside / "models")]
        return next((path.resolve() for path in candidates if name and path.is_file()), None)

    # --- branches ---------------------------------------------------------------------------------------------

    @contextmanager
    def _branch(self, *, really: bool = True) -> Iterator[None]:
        """What is read inside may not run: its variables hold only there."""
        if not really:
            yield
            return
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

    @property
    def _is_uncertain(self) -> bool:
        return bool(self._branches) or self._in_function > 0

    def _line_of(self, node: Node) -> int:
        return self._line or line_of(node)

    def _say(self, node: Node, text: str) -> None:
        self.notes.append(Note(f"line {self._line_of(node)}: {text}"))

    def _say_of(self, name: str, text: str) -> None:
        self.notes.append(Note(text, name, self._branches[-1]))
