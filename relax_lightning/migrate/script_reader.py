"""A script followed from its first statement to its last: what is assigned, and which commands may start training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from relax_lightning.config.faults import fault
from relax_lightning.migrate.flag_words import read_flags
from relax_lightning.migrate.shell_tests import Verdict, decided, matching
from relax_lightning.migrate.shell_text import Text, Unknown, as_source, joined, literal, shown
from relax_lightning.migrate.shell_tree import line_of, parse, source, unread_parts
from relax_lightning.migrate.shell_words import LIMIT, OWN_ARGUMENTS, Scope

if TYPE_CHECKING:
    from tree_sitter import Node

_STEPS = 20_000
_DEPTH = 40
_SHELL = re.compile(r"(^|/)(ba|z|da|k)?sh$")
_SILENT = ("let", ":", "echo", "printf", "exit", "return", "trap")
_REMOTE = ("ssh", "srun", "sbatch", "su", "tmux", "screen")


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
class ScriptReader:
    """Reads a script and the files that it sources."""

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

    def read(self, path: Path) -> None:
        """Follow a file.

        Raises:
            ValueError: It cannot be read, or is no bash.
        """
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            message = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ValueError(fault("a bash script", str(path), f"{message}; change the path")) from None
        try:
            self._read_text(text.replace("\r\n", "\n"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def read_functions(self) -> None:
        """Follow the functions that nothing calls, as if something might."""
        for name in [name for name in self._functions if name not in self._called]:
            with self._branch():
                self._call(name, [(OWN_ARGUMENTS,)], set())

    def used(self, names: set[str]) -> set[str]:
        """These variables, and all that they are made of."""
        used, new = set[str](), set(names)
        while new:
            used |= new
            new = {inner for name in new for inner in self.uses.get(name, ())} - used
        return used

    def _read_text(self, text: str) -> None:
        root = parse(text)
        for node in unread_parts(root):
            self._say(node, f"`{shown((source(node),))[:200]}` cannot be read as bash: its flags are unknown")
        self._run(root)

    # --- statements -------------------------------------------------------------------------------------------

    def _run(self, node: Node) -> None:
        self._steps += 1
        if self._steps > _STEPS or self._depth > _DEPTH:
            raise ValueError(
                f"line {self._line_of(node)}: wanted a script of at most {_STEPS} steps, got more; shorten its loops"
            )
        handle = getattr(self, f"_run_{node.type}", None)
        self._depth += 1
        if handle is not None:
            handle(node)
        elif node.type.startswith("((") or source(node).startswith("(("):
            self._arithmetic(node)
        else:
            self._run_all(node.named_children)
        self._depth -= 1

    def _run_all(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._run(node)

    def _run_comment(self, node: Node) -> None:
        pass

    _run_test_command = _run_word = _run_string = _run_file_redirect = _run_comment

    def _run_subshell(self, node: Node) -> None:
        with self._inner():
            self._run_all(node.named_children)

    def _run_function_definition(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[source(name)] = body
            self._called.discard(source(name))

    def _run_list(self, node: Node) -> None:
        left, operator, right = node.children[0], node.children[1].type, node.children[-1]
        verdict = decided(left, self.scope)
        self._run(left)
        wanted = operator == "&&"
        if verdict.is_true is None and wanted and not _may_fail(left):
            self._run(right)
        elif verdict.is_true == wanted:
            self._run_decided(right, verdict)
        elif verdict.is_true is None or verdict.defaults:
            with self._branch():
                self._run(right)

    def _run_if_statement(self, node: Node) -> None:
        verdict = Verdict(False)
        for tests, body, line in _clauses(node):
            if verdict.is_true and not verdict.defaults:
                return
            now = Verdict(True) if not tests else decided(tests[-1], self.scope)
            with self._branch(really=verdict.is_true is not False):
                self._run_all(tests)
                if now.is_true and verdict.is_true is False:
                    self._run_decided(body, replace(now, defaults=now.defaults | verdict.defaults), line)
                elif now.is_true is not False or now.defaults:
                    with self._branch():
                        self._run_all(body)
            if verdict.is_true is False:
                verdict = replace(now, defaults=now.defaults | verdict.defaults)
            elif verdict.is_true is None and now.is_true and not now.defaults:
                return

    def _run_decided(self, body: Node | list[Node], verdict: Verdict, line: int | None = None) -> None:
        nodes = body if isinstance(body, list) else [body]
        before = dict(self.scope.variables)
        self._run_all(nodes)
        if verdict.defaults and nodes:
            names = ", ".join(sorted(verdict.defaults))
            says = f"line {line or self._line_of(nodes[0])} is read as the default of {names} says"
            for name, value in self.scope.variables.items():
                if before.get(name) != value:
                    self.notes.append(Note(says, name))

    def _run_case_statement(self, node: Node) -> None:
        value = node.child_by_field_name("value")
        verdict, items = matching(
            value, [c for c in node.named_children if c.type == "case_item"], self.scope
        )
        for item, is_chosen in items:
            body = [c for c in item.named_children if c not in item.children_by_field_name("value")]
            if is_chosen and verdict.is_true:
                self._run_decided(body, verdict)
            else:
                with self._branch():
                    self._run_all(body)

    def _run_for_statement(self, node: Node) -> None:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        assert variable is not None and body is not None
        values = node.children_by_field_name("value")
        before, self.scope.looked_up = self.scope.looked_up, self.uses.setdefault(source(variable), set())
        texts = (
            [text for value in values for text in self.scope.fields(value)]
            if values
            else [*self.scope.arguments]
        )
        self.scope.looked_up = before
        if node.children[0].type == "select" or any(
            isinstance(piece, Unknown) for text in texts for piece in text
        ):
            self._assign(source(variable), (Unknown(f"${{{source(variable)}}}"),), node)
            with self._branch():
                self._run(body)
            return
        for text in texts:
            self._assign(source(variable), text, node)
            self._run(body)

    def _run_while_statement(self, node: Node) -> None:
        self._run_all(node.children_by_field_name("condition"))
        with self._branch():
            self._run_all([node.children[-1]])

    def _run_c_style_for_statement(self, node: Node) -> None:
        for name in re.findall(r"(\w+)\s*=", source(node).partition("{")[0].partition("do")[0]):
            self.scope.variables[name] = (Unknown(f"${{{name}}}"),)
        with self._branch():
            self._run_all(node.children_by_field_name("body"))

    def _arithmetic(self, node: Node) -> None:
        for name in re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", source(node)):
            self._assign(name, (Unknown(source(node)),), node)

    def _run_redirected_statement(self, node: Node) -> None:
        redirects = node.children_by_field_name("redirect")
        here = next(
            (
                c
                for r in redirects
                if r.type == "heredoc_redirect"
                for c in r.named_children
                if c.type == "heredoc_body"
            ),
            None,
        )
        body = node.child_by_field_name("body")
        files = [c for r in redirects for c in (r, *r.named_children) if c.type == "file_redirect"]
        if body is not None and body.type == "command":
            more = [
                c
                for r in redirects
                if r.type == "heredoc_redirect"
                for c in r.children_by_field_name("argument")
            ]
            self._command(body, here, files, more)
        elif body is not None:
            self._run(body)
        for redirect in redirects:
            self._run_all([c for c in redirect.named_children if c.type in ("pipeline", "command", "list")])

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
                self._run(child)

    def _run_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.scope.variables.pop(source(child), None)

    # --- commands ---------------------------------------------------------------------------------------------

    def _run_command(self, node: Node) -> None:
        self._command(node, None, [], [])

    def _command(self, node: Node, here: Node | None, files: list[Node], more: list[Node]) -> None:
        name = node.child_by_field_name("name")
        own = [child for child in node.named_children if child.type == "variable_assignment"]
        if (
            name is not None
            and own
            and (not source(name) or re.search(r"(?<!\\)\n", _between(node, own[-1], name)))
        ):
            self._run_all(own)  # assignments of a line of their own, which the parser takes for the command's
            own = []
        scope = self.scope
        before = scope.unset_arrays, scope.looked_up
        scope.unset_arrays, scope.looked_up = [], set(self._inherited)
        nodes = [
            *([name] if name is not None and source(name) else []),
            *node.children_by_field_name("argument"),
        ]
        words = [*scope.words(node, nodes), *(text for word in more for text in scope.fields(word))]
        call = Call(
            words,
            self._line_of(name or node),
            self._is_uncertain,
            self._branches,
            scope.unset_arrays,
            scope.looked_up,
        )
        scope.unset_arrays, scope.looked_up = before
        old = dict(scope.variables)
        self._run_all(own)
        if words and not self._builtin(call, node, here, files):
            self.calls.append(call)
        for assignment in own:
            key = source(assignment).partition("=")[0].rstrip("+")
            if key in old:
                scope.variables[key] = old[key]
            else:
                scope.variables.pop(key, None)

    def _builtin(self, call: Call, node: Node, here: Node | None, files: list[Node]) -> bool:
        """Follow a command that is no program of its own; whether it was one."""
        words, name = call.words, literal(call.words[0])
        if name in self._functions:
            self._call(name, words[1:], call.looked_up)
        elif name in ("source", "."):
            self._source(words[1:2], call.line)
        elif name == "eval":
            self._again(joined(words[1:], " "), call)
        elif name in ("set", "shift"):
            self._set_arguments(name, call)
        elif name in ("read", "mapfile", "readarray"):
            self._read_input(words, node, here)
        elif name == "printf" and words[1:2] == [("-v",)]:
            self._assign(shown(words[2]) if len(words) > 2 else "_", (Unknown(source(node)),), node)
        elif name in ("cat", "tee") and here is not None:
            targets = [self.scope.text(file.child_by_field_name("destination")) for file in files] + words[1:]
            for target in targets:
                self._files[shown(target)] = self._here_text(
                    here, self.uses.setdefault(f"<{shown(target)}", set())
                )
        else:
            return name in _SILENT or self._shell(call, here)
        return True

    def _here_text(self, here: Node, looked_up: set[str]) -> Text:
        before, self.scope.looked_up = self.scope.looked_up, looked_up
        text = self.scope.text(here)
        self.scope.looked_up = before
        return text

    def _set_arguments(self, name: str, call: Call) -> None:
        if name == "set" and ("--",) in call.words:
            self.scope.arguments = call.words[call.words.index(("--",)) + 1 :]
            self._inherited |= call.looked_up
        elif name == "shift" and self.scope.arguments != [(OWN_ARGUMENTS,)]:
            self.scope.arguments = self.scope.arguments[1:]

    def _shell(self, call: Call, here: Node | None) -> bool:
        """Follow what another shell is given: a text, a here-document, or a script."""
        known = [literal(word) or "" for word in call.words]
        at = next((n for n, word in enumerate(known) if _SHELL.search(word)), None)
        remote = known[0].rpartition("/")[2] in _REMOTE
        if at is not None and (
            inline := next((n for n, w in enumerate(known) if n > at and re.fullmatch(r"-\w*c", w)), None)
        ):
            self._again(joined(call.words[inline + 1 :], " "), call)
        elif (at is not None or remote) and here is not None:
            self._again(self._here_text(here, call.looked_up), call)
        elif remote and (
            text := next(
                (w for w in reversed(call.words) if any(isinstance(p, str) and " " in p.strip() for p in w)),
                None,
            )
        ):
            self._again(text, call)
        elif at is not None or known[0] == "sbatch" or known[0].endswith(".sh"):
            return self._script(call, 0 if at is None and known[0].endswith(".sh") else (at or 0) + 1)
        else:
            return False
        return True

    def _script(self, call: Call, at: int) -> bool:
        first = next(
            (n for n, word in enumerate(call.words) if n >= at and not shown(word).startswith("-")), None
        )
        if first is None:
            return False
        target = call.words[first]
        if (text := self._files.get(shown(target))) is not None:
            call.looked_up.add(f"<{shown(target)}")
            with self._inner(call.words[first + 1 :]):
                self._again(text, call)
            return True
        path = self._found(literal(target), shown(target))
        if path is None or path in self._sourced:
            return False
        self._sourced.add(path)
        inherited, self._inherited = self._inherited, self._inherited | call.looked_up
        with self._inner(call.words[first + 1 :]):
            self._read_file(path, target, call.line)
        self._inherited = inherited
        return True

    def _again(self, text: Text, call: Call) -> None:
        before = self._line, self._inherited
        self._line, self._inherited = call.line, frozenset(call.looked_up)
        try:
            self._read_text(as_source(text))
        except ValueError as error:
            self.notes.append(Note(f"line {call.line}: {shown(text)[:200]}: {error}; its flags are unknown"))
        self._line, self._inherited = before

    def _call(self, name: str, arguments: list[Text], looked_up: set[str]) -> None:
        self._called.add(name)
        before, self.scope.arguments = self.scope.arguments, arguments
        inherited, self._inherited = self._inherited, self._inherited | looked_up
        self._in_function += 1
        self._run(self._functions[name])
        self._in_function -= 1
        self.scope.arguments, self._inherited = before, inherited

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

    # --- files ------------------------------------------------------------------------------------------------

    def _source(self, words: list[Text], line: int) -> None:
        # Sourcing only sets variables here, so a condition before it (is another entry point at work?) does not matter.
        target = words[0] if words else ()
        path = self._found(literal(target), shown(target))
        if path is None:
            if (text := self._files.get(shown(target))) is not None:
                self._read_text(as_source(text))
                return
            self.notes.append(
                Note(f"line {line}: source {shown(target)}: no such file was found; its flags are unknown")
            )
        elif path not in self._sourced:
            self._sourced.add(path)
            before, branches = dict(self.scope.variables), self._branches
            self._branches = ()
            self._read_file(path, target, line)
            self._branches = branches
            now = self.scope.variables
            for outside in self._outer:
                outside.update({name: value for name, value in now.items() if before.get(name) != value})
            anew = [name for name, value in before.items() if name in now and now[name] != value]
            if branches and anew:
                says = f"source {shown(target)}, which sets {', '.join(anew)} anew"
                self.notes.append(Note(f"line {line}, only under a condition, was read: {says}"))

    def _read_file(self, path: Path, target: Text, line: int) -> None:
        outer, self.scope.file, inside, self._line = self.scope.file, path, self._line, None
        try:
            self.read(path)
        except ValueError as error:
            self.notes.append(Note(f"line {line}: source {shown(target)}: {error}; its flags are unknown"))
        self.scope.file, self._line = outer, inside

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


def _clauses(node: Node) -> Iterator[tuple[list[Node], list[Node], int]]:
    """The tests and the body of `if` and of every `elif`; `else` has no test."""
    for part in (
        node,
        *(child for child in node.named_children if child.type in ("elif_clause", "else_clause")),
    ):
        inside = [
            child
            for child in part.named_children
            if child.type not in ("elif_clause", "else_clause", "comment")
        ]
        then = next((child.start_byte for child in part.children if child.type == "then"), part.start_byte)
        yield (
            [c for c in inside if c.start_byte < then],
            [c for c in inside if c.start_byte >= then],
            line_of(part),
        )


def _may_fail(node: Node) -> bool:
    """Whether `node && next` stands for a condition: a test, or one of several ways."""
    if node.type == "list":
        return "||" in [child.type for child in node.children] or any(
            _may_fail(c) for c in node.named_children
        )
    return node.type in ("test_command", "negated_command") or source(node).startswith("test ")


def _between(parent: Node, first: Node, second: Node) -> str:
    text = parent.text or b""
    return text[first.end_byte - parent.start_byte : second.start_byte - parent.start_byte].decode()
