"""What the words of a script mean: variables, arrays and quotes, as far as they can be told without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from relax_lightning.migrate.shell_text import Text, Unknown, Variable, braces, cut, joined, literal
from relax_lightning.migrate.shell_tree import source, unescaped

if TYPE_CHECKING:
    from tree_sitter import Node

LIMIT = 10_000
"""Fields of a list; more is no launch script."""

OWN_ARGUMENTS = Unknown("${@}")
"""The arguments that the script itself is started with."""


@dataclass
class Scope:
    """The variables of a script and of the files it sources."""

    file: Path
    """The script that is being read."""
    variables: dict[str, Text | list[Text]] = field(default_factory=dict)
    arguments: list[Text] = field(default_factory=lambda: [(OWN_ARGUMENTS,)])
    """`$1` and those that follow."""
    unset_arrays: list[str] = field(default_factory=list)
    """Arrays that were asked for and are not there."""
    looked_up: set[str] = field(default_factory=set)
    """Variables that were asked for."""

    def fields(self, node: Node) -> list[Text]:
        """The fields of a word, which are more than one, or none, where an array or an unquoted text is in it."""
        if (several := braces(source(node))) is not None:
            return several
        found = _Fields(self)
        _expand(node, self, found, quoted=False)
        return found.finished()

    def words(self, parent: Node, nodes: list[Node]) -> list[Text]:
        """The fields of nodes that follow each other, of which several may be one word."""
        texts: list[Text] = []
        while nodes:
            size = next(
                (n for n in range(1, len(nodes)) if _parted(parent, nodes[n - 1], nodes[n])), len(nodes)
            )
            word, nodes = nodes[:size], nodes[size:]
            if size == 1:
                texts += self.fields(word[0])
                continue
            found = _Fields(self)
            _expand_between(parent, word[0].start_byte, word[-1].end_byte, word, self, found, False)
            texts += found.finished()
        return texts

    def text(self, node: Node | None) -> Text:
        """The one text of a word where bash splits nothing: the right side of an assignment, a here-document."""
        if node is None:
            return ()
        found = _Fields(self, splits=False)
        _expand(node, self, found, quoted=False)
        return joined(found.finished(), " ")

    def knows_argument(self, number: str) -> bool:
        """Whether what `$number` stands for is known, were it nothing."""
        return number.isdigit() and (OWN_ARGUMENTS,) not in self.arguments[: int(number)]

    @property
    def separators(self) -> str:
        """What parts fields: `IFS`."""
        ifs = self.variables.get("IFS")
        known = literal(ifs) if isinstance(ifs, tuple) else None
        return " \t\n" if known is None else known

    def split(self, text: Text) -> list[Text]:
        """The fields of a text at its separators."""
        found = _Fields(self)
        found.add_split(text)
        return found.finished()


class _Fields:
    """Fields as they grow, piece by piece."""

    def __init__(self, scope: Scope, *, splits: bool = True) -> None:
        self._scope = scope
        self._splits = splits
        self._done: list[Text] = []
        self._pieces: list[str | Variable | Unknown] | None = None

    def add(self, text: Text) -> None:
        """Lengthen the last field; an empty text makes an empty one."""
        self._pieces = self._pieces or []
        for piece in text:
            if isinstance(piece, str) and self._pieces and isinstance(self._pieces[-1], str):
                self._pieces[-1] += piece
            elif piece != "":
                self._pieces.append(piece)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come yet."""
        return self._pieces is None and not self._done

    def end(self) -> None:
        """Let the next piece begin a new field."""
        if self._pieces is not None:
            self._done.append(tuple(self._pieces))
        self._pieces = None

    def add_split(self, text: Text) -> None:
        """Lengthen the last field, with a new one at every separator."""
        separators = self._scope.separators if self._splits else ""
        for piece in text:
            parts = (
                re.split(f"[{re.escape(separators)}]+", piece)
                if separators and isinstance(piece, str)
                else [piece]
            )
            for number, part in enumerate(parts):
                if number:
                    self.end()
                if part != "":
                    self.add((part,))

    def finished(self) -> list[Text]:
        """All fields."""
        self.end()
        return self._done


def _expand(node: Node, scope: Scope, fields: _Fields, *, quoted: bool) -> None:
    kind, written = node.type, source(node)
    if quoted and written[:1].isspace() and node.children and node.children[0].type[0] in "$`":
        fields.add(
            (written[: -len(written.lstrip())],)
        )  # a blank before `$` belongs to the node of what follows
    if kind == "string":
        inside = node.children[1:-1]
        # An array without elements gives no field; every other quote gives one, were it empty.
        if not (len(inside) == 1 and _is_whole(inside[0])):
            fields.add(())
        # A blank before the closing quote belongs to the quote's node.
        _expand_between(node, node.start_byte + 1, node.end_byte - 1, inside, scope, fields, True)
    elif kind in ("simple_expansion", "expansion"):
        _add_all(_parameter(node, scope, quoted=quoted), fields, quoted=quoted)
    elif kind == "command_substitution":
        _add_all([_command_output(node, scope)], fields, quoted=quoted)
    elif kind in ("concatenation", "command_name", "heredoc_body", "translated_string"):
        quoted = quoted or kind == "heredoc_body"
        _expand_between(node, node.start_byte, node.end_byte, node.children, scope, fields, quoted)
    else:
        fields.add(_plain(node, written, quoted=quoted, begins=fields.is_empty))


def _plain(node: Node, written: str, *, quoted: bool, begins: bool) -> Text:
    """The text of a node without words of its own."""
    if node.type in ("arithmetic_expansion", "process_substitution"):
        return (Unknown(written.lstrip()),)
    if node.type == "raw_string":
        return (written if quoted else written[1:-1],)
    if node.type == "ansi_c_string":
        return (written[2:-1].encode("latin-1", "backslashreplace").decode("unicode_escape"),)
    if begins and (written.startswith("~/") or (written == "~" and not _is_part(node))):
        return (Variable("HOME"), written[1:])
    return (unescaped(written, quoted=quoted),)


def _expand_between(
    node: Node, start: int, end: int, children: list[Node], scope: Scope, fields: _Fields, quoted: bool
) -> None:
    # Between two expansions the tree has no node for literal text such as a blank.
    def literally(until: int) -> None:
        text = (node.text or b"")[at - node.start_byte : until - node.start_byte].decode()
        if text:
            fields.add((unescaped(text, quoted=quoted),))

    at = start
    for child in children:
        literally(child.start_byte)
        _expand(child, scope, fields, quoted=quoted)
        at = child.end_byte
    literally(end)


def _parted(parent: Node, first: Node, second: Node) -> bool:
    between = (parent.text or b"")[first.end_byte - parent.start_byte : second.start_byte - parent.start_byte]
    return re.search(rb"(?<!\\)[\s()<>]", between.replace(b"\\\n", b"")) is not None


def _add_all(texts: list[Text], fields: _Fields, *, quoted: bool) -> None:
    for number, text in enumerate(texts):
        if number:
            fields.end()
        (fields.add if quoted else fields.add_split)(text)


def _is_part(node: Node) -> bool:
    return node.parent is not None and node.parent.type == "concatenation"


def _is_whole(node: Node) -> bool:
    return re.match(r"\$\{?(\w+\[)?@", source(node)) is not None


_PARAMETER = re.compile(
    r"\$\{?(?P<how>[!#](?=\w))?(?P<name>\w+|[@*#?$!-])(?:\[(?P<index>.*?)\])?"
    r"(?P<op>:?[-=?+]|%%?|##?|\^\^?|,,?|//?|:|@)?",
    re.S,
)


def _parameter(node: Node, scope: Scope, *, quoted: bool) -> list[Text]:
    """What `${...}` stands for: one text, several for a whole array, none for an empty or missing one."""
    written = source(node).lstrip()
    found = _PARAMETER.match(written)
    if found is None:
        return [(written,)] if written == "$" else [(Unknown(written),)]
    name, index, op = found["name"], found["index"], found["op"] if written.startswith("${") else None
    if found["how"] == "!" and index is None:
        pointed = scope.variables.get(name)
        name = (literal(pointed) if isinstance(pointed, tuple) else None) or "?"
    elif found["how"] is not None:
        name = "?"
    is_whole = index in ("@", "*") or name in ("@", "*")
    is_known = is_whole or name.isidentifier() or name == "0" or scope.knows_argument(name)
    if name == "?" or not is_known:
        return [(Unknown(written),)]
    texts = _looked_up(name, index, scope)

    def rest() -> _Fields:
        inside = _Fields(scope, splits=op is not None and op[-1] == "+" and not quoted)
        at = node.end_byte - len(written.encode()) + len(found[0].encode())
        children = [child for child in node.children[:-1] if child.start_byte >= at]
        _expand_between(node, at, node.end_byte - 1, children, scope, inside, quoted)
        return inside

    if op is not None:
        texts = _operated(op, name, texts, is_whole, rest, scope, written)
    if texts is None and is_whole:
        scope.unset_arrays.append(name)
        return []
    if (index == "*" or name == "*") and quoted and texts:
        return [joined(texts, scope.separators[:1])]
    return [(Variable(name),)] if texts is None else texts


def _operated(
    op: str,
    name: str,
    texts: list[Text] | None,
    is_whole: bool,
    rest: Callable[[], _Fields],
    scope: Scope,
    written: str,
) -> list[Text] | None:
    kind = op[-1]
    if kind == "?":
        return texts
    if kind == "+":
        is_set = texts is not None and not (op == ":+" and texts == [()])
        return rest().finished() if is_set else []
    if kind in "-=":
        if texts is not None and not (op[0] == ":" and texts in ([()], [])):
            return texts
        default = joined(rest().finished(), " ")
        from_outside = texts is None and name.isidentifier() and not is_whole
        new: Text = (Variable(name, default),) if from_outside else default
        if kind == "=":
            scope.variables[name] = new
        return [] if is_whole and default == () else [new]
    if kind in "^," and texts is not None and all(literal(text) is not None for text in texts):
        return [(_cased(literal(text) or "", op),) for text in texts]
    pattern = literal(joined(rest().finished(), " "))
    if texts is None:
        # A slash at the end of a folder's name does not matter.
        return [(Variable(name) if (op, pattern) == ("%", "/") else Unknown(written),)]
    if kind in "%#" and pattern is not None:
        done = [cut(text, op, pattern) for text in texts]
        return [(Unknown(written),) if text is None else text for text in done]
    if (
        op == ":"
        and is_whole
        and pattern is not None
        and (part := re.fullmatch(r"(\d+)(?::(\d+))?", pattern))
    ):
        first = max(0, int(part[1]) - (name == "@" or name == "*"))
        return texts[first : None if part[2] is None else first + int(part[2])]
    return [(Unknown(written),)]


def _cased(text: str, op: str) -> str:
    change = str.upper if op[0] == "^" else str.lower
    return change(text) if len(op) == 2 else change(text[:1]) + text[1:]


def _looked_up(name: str, index: str | None, scope: Scope) -> list[Text] | None:
    """The texts that a variable, an element or a whole array stands for; None where it is not set."""
    if name in ("BASH_SOURCE", "0"):
        return [(str(scope.file.resolve()),)]
    if name in ("@", "*"):
        return list(scope.arguments)
    if name.isdigit():
        return scope.arguments[int(name) - 1 : int(name)] or None
    scope.looked_up.add(name)
    value = scope.variables.get(name)
    if index is not None and index not in ("@", "*") and not index.isdigit():
        key = scope.variables.get(f"{name}[{index.strip(chr(34))}]")
        return [(Unknown(f"${{{name}[{index}]}}"),)] if not isinstance(key, tuple) else [key]
    if not isinstance(value, list):
        return None if value is None else [value]
    if index in ("@", "*"):
        return value
    return value[int(index or 0) : int(index or 0) + 1] or None


def _command_output(node: Node, scope: Scope) -> Text:
    """What a command would print, for the few that need no running."""
    unknown = (Unknown(source(node).lstrip()),)
    commands = list(_commands(node))
    words = [
        [
            text
            for word in c.children_by_field_name("name") + c.children_by_field_name("argument")
            for text in scope.fields(word)
        ]
        for c in commands
    ]
    match [
        [literal(line[0]) if line else None, [text for text in line[1:] if text != ("--",)]] for line in words
    ]:
        case [["seq", numbers]] if len(numbers) in (1, 2, 3):
            return _sequence([literal(number) or "" for number in numbers]) or unknown
        case [["echo", texts]] if source(node.children[1]).startswith("echo"):
            return joined([text for text in texts if text not in (("-n",), ("-e",))], " ")
        case [["dirname", [path]]]:
            return cut(path, "%", "/*") or unknown
        case [["basename", [path]]]:
            return cut(path, "##", "*/") or unknown
        case [["basename", [path, suffix]]] if literal(suffix) is not None:
            return cut(cut(path, "##", "*/") or path, "%", literal(suffix) or "") or unknown
        case [["realpath" | "readlink", [*_, path]]] | [["cd", [path]], ["pwd", _]]:
            known = literal(path)
            return (
                path
                if known is None and ".." not in "".join(p for p in path if isinstance(p, str))
                else (unknown if known is None else (os.path.normpath(Path.cwd() / known),))
            )
        case [["cat", []]] if (body := _here_document(node)) is not None:
            return cut(scope.text(body), "%", "\n") or scope.text(body)
    return unknown


def _commands(node: Node) -> Iterator[Node]:
    """The commands of a substitution that is a plain one, or several behind `&&`."""
    for child in node.named_children:
        if child.type == "command":
            yield child
        elif child.type in ("list", "redirected_statement") and "||" not in [c.type for c in child.children]:
            yield from _commands(child)


def _here_document(node: Node) -> Node | None:
    for child in node.named_children:
        if child.type == "heredoc_body":
            return child
        if (
            child.type in ("redirected_statement", "heredoc_redirect")
            and (body := _here_document(child)) is not None
        ):
            return body
    return None


def _sequence(numbers: list[str]) -> Text | None:
    if not all(re.fullmatch(r"-?\d{1,9}", number) for number in numbers):
        return None
    first, step, last = {
        1: (1, 1),
        2: (int(numbers[0]), 1),
        3: (int(numbers[0]), int(numbers[min(1, len(numbers) - 1)])),
    }[len(numbers)] + (int(numbers[-1]),)
    counted = range(first, last + (1 if step > 0 else -1), step or 1)
    return ("\n".join(map(str, counted)),) if len(counted) <= LIMIT else None
