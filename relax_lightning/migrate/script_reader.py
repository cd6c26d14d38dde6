"""A script followed from its first statement to its last: what is assigned, and which commands may start training."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from relax_lightning.config.faults import fault
from relax_lightning.migrate.script_state import Call, Note, ScriptState
from relax_lightning.migrate.shell_tests import Verdict, decided, matching
from relax_lightning.migrate.shell_text import Text, Unknown, as_source, joined, literal, shown
from relax_lightning.migrate.shell_tree import (
    between,
    clauses,
    may_fail,
    parse,
    source,
    unread_parts,
)
from relax_lightning.migrate.shell_words import OWN_ARGUMENTS

if TYPE_CHECKING:
    from tree_sitter import Node

_STEPS = 20_000
_DEPTH = 40
_SHELL = re.compile(r"(^|/)(ba|z|da|k)?sh$")
_SILENT = ("let", ":", "echo", "printf", "exit", "return", "trap")
_REMOTE = ("ssh", "srun", "sbatch", "su", "tmux", "screen")


@dataclass
class ScriptReader(ScriptState):
    """Reads a script and the files that it sources."""

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
        if verdict.is_true is None and wanted and not may_fail(left):
            self._run(right)
        elif verdict.is_true == wanted:
            self._run_decided(right, verdict)
        elif verdict.is_true is None or verdict.defaults:
            with self._branch():
                self._run(right)

    def _run_if_statement(self, node: Node) -> None:
        verdict = Verdict(False)
        for tests, body, line in clauses(node):
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

    # --- commands ---------------------------------------------------------------------------------------------

    def _run_command(self, node: Node) -> None:
        self._command(node, None, [], [])

    def _command(self, node: Node, here: Node | None, files: list[Node], more: list[Node]) -> None:
        name = node.child_by_field_name("name")
        own = [child for child in node.named_children if child.type == "variable_assignment"]
        if (
            name is not None
            and own
            and (not source(name) or re.search(r"(?<!\\)\n", between(node, own[-1], name)))
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
