"""A script followed from its first statement to its last: what is assigned, and which commands may start training."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relax_lightning.config.faults import fault
from relax_lightning.migrate.script_state import Call, ScriptState
from relax_lightning.migrate.shell_tests import Verdict, decided, matches, may_fail
from relax_lightning.migrate.shell_text import Text, Unknown, as_source, default_of, joined, literal, shown
from relax_lightning.migrate.shell_tree import between, names_in, parse, source, unread_parts
from relax_lightning.migrate.shell_words import OWN_ARGUMENTS, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

_STEPS = 20_000
_IGNORED = ("comment", "test_command", "word", "string", "file_redirect")
_SHELL = re.compile(r"(^|/)(ba|z|da|k)?sh$")
_SILENT = (":", "echo", "printf", "exit", "return", "trap")
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
            unread = " ".join(source(node).split())[:200]
            self._say(f"line {self._line_of(node)}: `{unread}` cannot be read as bash: its flags are unknown")
        self._run(root)

    # --- statements -------------------------------------------------------------------------------------------

    def _run(self, *nodes: Node) -> None:
        for node in nodes:
            self._steps += 1
            if self._steps > _STEPS:
                wanted = f"wanted a script of at most {_STEPS} steps, got more; shorten its loops"
                raise ValueError(f"line {self._line_of(node)}: {wanted}")
            follow = getattr(self, f"_run_{node.type}", None)
            if follow is not None:
                follow(node)
            elif source(node).startswith("(("):
                self._forget_counted(source(node), node)
            elif node.type not in _IGNORED:
                self._run(*node.named_children)

    def _run_subshell(self, node: Node) -> None:
        with self._inner():
            self._run(*node.named_children)

    def _run_function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[source(name)] = body
            self._called.discard(source(name))

    def _run_list(self, node: Node) -> None:
        left, operator, right = node.children[0], node.children[1].type, node.children[-1]
        verdict = decided(left, self.scope)
        self._run(left)
        if verdict.is_true is None and operator == "&&" and not may_fail(left):
            self._run(right)
        elif verdict.is_true == (operator == "&&"):
            self._run_decided([right], verdict.defaults)
        elif verdict.is_true is None or verdict.defaults:
            with self._branch():
                self._run(right)

    def _run_if_statement(self, node: Node) -> None:
        """Follow the part that runs; where that is not known, or a default decides, the others may run as well."""
        has_run: bool | None = False
        defaults = frozenset[str]()
        for part in (node, *(c for c in node.named_children if c.type in ("elif_clause", "else_clause"))):
            inside = [c for c in part.named_children if c.type not in ("elif_clause", "else_clause")]
            then = next((c.start_byte for c in part.children if c.type == "then"), part.start_byte)
            tests = [c for c in inside if c.start_byte < then]
            body = inside[len(tests) :]
            verdict = decided(tests[-1], self.scope) if tests else Verdict(True)
            defaults |= verdict.defaults
            with nullcontext() if has_run is False else self._branch():
                self._run(*tests)
                if verdict.is_true and has_run is False:
                    self._run_decided(body, defaults, self._line_of(part))
                elif verdict.is_true is not False or verdict.defaults:
                    with self._branch():
                        self._run(*body)
            if verdict.is_true and not defaults:
                return
            has_run = has_run or verdict.is_true

    def _run_decided(self, nodes: list[Node], defaults: frozenset[str], line: int | None = None) -> None:
        before = dict(self.scope.variables)
        self._run(*nodes)
        if defaults and nodes:
            where = f"line {line or self._line_of(nodes[0])}"
            for name, value in self.scope.variables.items():
                if before.get(name) != value:
                    self._say(f"{where} is read as the default of {', '.join(sorted(defaults))} says", name)

    def _run_case_statement(self, node: Node) -> None:
        known, names = default_of(self.scope.text(node.child_by_field_name("value")))
        is_over = False
        for item in [child for child in node.named_children if child.type == "case_item"]:
            patterns = item.children_by_field_name("value")
            body = [child for child in item.named_children if child not in patterns]
            if known is not None and not is_over and any(matches(pattern, known) for pattern in patterns):
                is_over = True
                self._run_decided(body, frozenset(names))
            elif known is None or names:
                with self._branch():
                    self._run(*body)

    def _run_for_statement(self, node: Node) -> None:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        assert variable is not None and body is not None
        name, values = source(variable), node.children_by_field_name("value")
        self.uses.setdefault(name, set()).update(names_in(*values))
        texts = self.scope.words(node, values) if values else list(self.scope.arguments)
        if node.children[0].type == "select" or any(isinstance(p, Unknown) for text in texts for p in text):
            self._forget([name], node)
            with self._branch():
                self._run(body)
            return
        for text in texts:
            self._assign(name, text, node)
            self._run(body)

    def _run_while_statement(self, node: Node) -> None:
        body = node.children_by_field_name("body")
        self._forget_counted(between(node, node.start_byte, body[0].start_byte), node)
        self._run(*node.children_by_field_name("condition"))
        with self._branch():
            self._run(*body)

    _run_c_style_for_statement = _run_while_statement

    def _run_redirected_statement(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        if body is not None and body.type == "command":
            self._run_command(body, node)
        elif body is not None:
            self._run(body)
        for redirect in node.children_by_field_name("redirect"):
            self._run(*(c for c in redirect.named_children if c.type in ("pipeline", "command", "list")))

    # --- commands ---------------------------------------------------------------------------------------------

    def _run_command(self, node: Node, whole: Node | None = None) -> None:
        """Follow a command, within the whole statement of it and what is redirected."""
        own = [child for child in node.named_children if child.type == "variable_assignment"]
        nodes = words_of(node)
        if own and (
            not nodes or re.search(r"(?<!\\)\n", between(node, own[-1].end_byte, nodes[0].start_byte))
        ):
            self._run(*own)  # assignments of a line of their own, which the parser takes for the command's
            own = []
        words = self.scope.words(node, nodes)
        before = dict(self.scope.variables)
        self._run(*own)
        call = self._call_of(words, nodes[0] if nodes else node, whole or node)
        if call.words and not self._builtin(call, node):
            self.calls.append(call)
        for name in (source(assignment).partition("=")[0].rstrip("+") for assignment in own):
            self.scope.variables.pop(name, None)
            if name in before:
                self.scope.variables[name] = before[name]

    def _call_of(self, words: list[Text], first: Node, whole: Node) -> Call:
        redirects = [*whole.children_by_field_name("redirect"), *whole.named_children]
        inside = [child for redirect in redirects for child in (redirect, *redirect.named_children)]
        given, files = None, list[Text]()
        for node in inside:
            if node.type in ("heredoc_body", "herestring_redirect"):
                given = self.scope.text(node if node.type == "heredoc_body" else node.named_children[-1])
            elif node.type == "file_redirect":
                files.append(self.scope.text(node.child_by_field_name("destination")))
            elif node.type == "heredoc_redirect":
                words = words + self.scope.words(node, node.children_by_field_name("argument"))
        is_uncertain = bool(self._branches) or self._in_function > 0
        used = names_in(whole) | self._inherited
        return Call(words, self._line_of(first), is_uncertain, self._branches, used, given, files)

    def _builtin(self, call: Call, node: Node) -> bool:
        """Follow a command that is no program of its own; whether it was one."""
        words, name = call.words, literal(call.words[0])
        if name in self._functions:
            self._call(name, words[1:], call.used)
        elif name in ("source", "."):
            self._source(call)
        elif name == "eval":
            self._again(joined(words[1:], " "), call.line, call.used)
        elif name in ("set", "shift"):
            self._set_arguments(name, call)
        elif name in ("read", "mapfile", "readarray"):
            self._read_input(call, node)
        elif name == "let" or (name == "printf" and words[1:2] == [("-v",)]):
            targets = words[1:] if name == "let" else words[2:3]
            self._forget([target for word in targets for target in re.findall(r"^\w+", shown(word))], node)
        elif name in ("cat", "tee") and call.given is not None:
            for target in [*call.files, *words[1:]]:
                self._files[shown(target)] = (call.given, call.used)
        else:
            return name in _SILENT or self._shell(call)
        return True

    def _shell(self, call: Call) -> bool:
        """Follow what another shell is given, a text, a here-document or a script; whether that was all."""
        known = [literal(word) or "" for word in call.words]
        at = next((n for n, word in enumerate(known) if _SHELL.search(word)), None)
        is_remote = known[0].rpartition("/")[2] in _REMOTE
        if call.given is not None and (at is not None or is_remote):
            self._again(call.given, call.line, call.used)
            return True
        if is_remote or (at is not None and any(re.fullmatch(r"-\w*c", word) for word in known[at:])):
            texts = [word for word in call.words[1:] if re.search(r"\S\s", as_source(word))]
            for text in texts[-1:]:
                self._again(text, call.line, call.used)
                return at is not None
        if known[0].endswith(".sh"):
            return self._script(call, call.words)
        return (at is not None or known[0] == "sbatch") and self._script(call, call.words[(at or 0) + 1 :])

    def _script(self, call: Call, words: list[Text]) -> bool:
        while words and shown(words[0]).startswith("-"):
            words = words[1:]
        if not words:
            return False
        with self._inner(words[1:]):
            return self._file(words[0], call)

    def _source(self, call: Call) -> None:
        # Sourcing only sets variables here, so a condition before it (is another entry point at work?) does not matter.
        target = call.words[1] if len(call.words) > 1 else ()
        before, branches = dict(self.scope.variables), self._branches
        self._branches = ()
        if not self._file(target, call):
            self._say(
                f"line {call.line}: source {shown(target)}: no such file was found; its flags are unknown"
            )
        self._branches = branches
        now = self.scope.variables
        for outside in self._outer:
            outside.update({name: value for name, value in now.items() if before.get(name) != value})
        anew = [name for name, value in before.items() if name in now and now[name] != value]
        if branches and anew:
            says = f"source {shown(target)}, which sets {', '.join(anew)} anew"
            self._say(f"line {call.line}, only under a condition, was read: {says}")

    def _file(self, target: Text, call: Call) -> bool:
        """Follow a file that is there, or that the script writes; whether there is one."""
        written, names = self._files.get(shown(target), (None, set[str]()))
        if written is not None:
            self._again(written, call.line, call.used | names)
            return True
        path = self._found(target)
        if path is not None and path not in self._sourced:
            self._sourced.add(path)
            outer, self.scope.file, inside, self._line = self.scope.file, path, self._line, None
            inherited, self._inherited = self._inherited, call.used
            try:
                self.read(path)
            except ValueError as error:
                self._say(f"line {call.line}: source {shown(target)}: {error}; its flags are unknown")
            self.scope.file, self._line, self._inherited = outer, inside, inherited
        return path is not None

    def _again(self, text: Text, line: int, used: set[str]) -> None:
        before = self._line, self._inherited
        self._line, self._inherited = line, used
        try:
            self._read_text(as_source(text))
        except ValueError as error:
            self._say(f"line {line}: {shown(text)[:200]}: {error}; its flags are unknown")
        self._line, self._inherited = before

    def _call(self, name: str, arguments: list[Text], used: set[str]) -> None:
        self._called.add(name)
        before = self.scope.arguments, self._inherited
        self.scope.arguments, self._inherited = arguments, self._inherited | used
        self._in_function += 1
        self._run(self._functions[name])
        self._in_function -= 1
        self.scope.arguments, self._inherited = before
