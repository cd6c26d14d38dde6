"""What the words of a script mean: variables, arrays and quotes, as far as they can be told without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import TYPE_CHECKING

from relax_lightning.migrate.shell_text import Piece, Text, Unknown, Variable, joined, literal
from relax_lightning.migrate.shell_tree import between, source

if TYPE_CHECKING:
    from tree_sitter import Node

LIMIT = 10_000
"""Fields of a list; more is no launch script."""

OWN_ARGUMENTS = Unknown("${@}")
"""The arguments that the script itself is started with."""

_PARAMETER = re.compile(
    r"\$\{?(?P<name>[A-Za-z_]\w*|[0-9]{1,4}|[@*])(?:\[(?P<index>.*?)\])?(?P<op>:?[-=?+]|%%?|##?|\W)?", re.S
)
_BRACES = re.compile(r"[^{}'\"$`\\]*\{[^{}'\"$`\\\s]*(,|\.\.)[^{}'\"$`\\\s]*\}[^{}'\"$`\\]*")


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

    def words(self, parent: Node, nodes: list[Node]) -> list[Text]:
        """The fields of nodes that follow each other; an array or an unquoted text gives several, or none."""
        if not nodes:
            return []
        return _fields(self._between(parent, nodes, nodes[0].start_byte, nodes[-1].end_byte, splits=True))

    def text(self, node: Node | None) -> Text:
        """The one text of a word where bash splits nothing: the right side of an assignment, a here-document."""
        return () if node is None else joined(_fields(self._pieces(node)), " ")

    def split(self, text: Text, separators: str | None = None) -> list[Text]:
        """The fields of a text at what `IFS` says, or at other separators."""
        return _fields(self._split(text, self._separators if separators is None else separators))

    # Pieces of fields follow each other; None parts two fields, and an empty piece makes sure that there is one.

    def _pieces(self, node: Node, *, quoted: bool = False, splits: bool = False) -> Iterator[Piece | None]:
        kind, written = node.type, source(node)
        if quoted and written[:1].isspace() and node.children and node.children[0].type[0] in "$`":
            yield written[: -len(written.lstrip())]  # a blank before `$` belongs to the node of what follows
        if kind == "string":
            inside = node.children[1:-1]
            # An array without elements gives no field; every other quote gives one, were it empty.
            if len(inside) != 1 or not re.match(r"\$\{?(\w+\[)?@", source(inside[0])):
                yield ""
            yield from self._between(node, inside, node.start_byte + 1, node.end_byte - 1, quoted=True)
        elif kind in ("simple_expansion", "expansion"):
            yield from self._spread(self._parameter(node, quoted), splits)
        elif kind == "command_substitution":
            yield from self._spread([self._output(node)], splits)
        elif kind in ("concatenation", "command_name", "heredoc_body") and not _BRACES.fullmatch(written):
            quoted = quoted or kind == "heredoc_body"
            yield from self._between(node, node.children, node.start_byte, node.end_byte, quoted, splits)
        else:
            yield from _plain(node, written, quoted)

    def _between(
        self, node: Node, children: list[Node], at: int, end: int, quoted: bool = False, splits: bool = False
    ) -> Iterator[Piece | None]:
        # Between two expansions the tree has no node for literal text such as a blank.
        for child in (*children, None):
            text = between(node, at, end if child is None else child.start_byte).replace("\\\n", "")
            if text:
                yield None if splits and re.search(r"(?<!\\)[\s()<>]", text) else _unescaped(text, quoted)
            if child is not None:
                yield from self._pieces(child, quoted=quoted, splits=splits)
                at = child.end_byte

    def _spread(self, texts: list[Text], splits: bool) -> Iterator[Piece | None]:
        for number, text in enumerate(texts):
            if number:
                yield None
            yield from self._split(text, self._separators) if splits else ("", *text)

    def _split(self, text: Text, separators: str) -> Iterator[Piece | None]:
        for piece in text:
            if not isinstance(piece, str) or not separators:
                yield piece
                continue
            for number, part in enumerate(re.split(f"[{re.escape(separators)}]+", piece)):
                if number:
                    yield None
                if part:
                    yield part

    @property
    def _separators(self) -> str:
        ifs = self.variables.get("IFS")
        known = literal(ifs) if isinstance(ifs, tuple) else None
        return " \t\n" if known is None else known

    def _parameter(self, node: Node, quoted: bool) -> list[Text]:
        """What `${...}` stands for: one text, several for a whole array, none for an empty or missing one."""
        written = source(node).lstrip()
        found = _PARAMETER.match(written)
        if found is None:
            return [(written,)] if written == "$" else [(Unknown(written),)]
        name, index, op = found["name"], found["index"], found["op"] if written.startswith("${") else None
        texts = self._looked_up(name, index, written)
        if op is not None and op != "}":
            start = node.end_byte - len(written.encode()) + len(found[0].encode())
            children = [child for child in node.children[:-1] if child.start_byte >= start]
            splits = op[-1] == "+" and not quoted
            rest = _fields(self._between(node, children, start, node.end_byte - 1, quoted, splits))
            texts = self._operated(op, name, texts, rest, written)
        if texts is None and (index or name) in ("@", "*"):
            self.unset_arrays.append(name)
        if texts is None:
            is_scalar = name.isidentifier() and index not in ("@", "*")
            return [(Variable(name),)] if is_scalar else []
        return [joined(texts, self._separators[:1])] if quoted and (index or name) == "*" else texts

    def _looked_up(self, name: str, index: str | None, written: str) -> list[Text] | None:
        """The texts that a variable, an element or a whole array stands for; None where it is not set."""
        if name in ("BASH_SOURCE", "0"):
            return [(str(self.file.resolve()),)]
        if name in ("@", "*"):
            return list(self.arguments)
        if name.isdigit():
            before = self.arguments[: int(name)]
            return [(Unknown(written),)] if (OWN_ARGUMENTS,) in before else before[int(name) - 1 :] or None
        if index not in (None, "@", "*") and not index.isdecimal():
            return [(Unknown(written),)]
        value = self.variables.get(name)
        if not isinstance(value, list):
            return None if value is None else [value]
        return value if index in ("@", "*") else value[int(index or 0) :][:1] or None

    def _operated(
        self, op: str, name: str, texts: list[Text] | None, rest: list[Text], written: str
    ) -> list[Text] | None:
        kind, operand = op[-1], joined(rest, " ")
        known, pattern = [literal(text) for text in texts or ()], literal(operand)
        is_empty = texts is None or (op[0] == ":" and texts in ([()], []))
        if kind == "?":
            return texts
        if kind == "+":
            return [] if is_empty else rest
        if kind in "-=" and is_empty:
            from_outside = texts is None and name.isidentifier()
            new: Text = (Variable(name, operand),) if from_outside and "@" not in written else operand
            if kind == "=":
                self.variables[name] = new
            return [new]
        if kind in "-=":
            return texts
        if kind in "%#" and texts and pattern is not None and None not in known:
            return [(_cut(text or "", op, pattern),) for text in known]
        part = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", pattern or "")
        if op == ":" and part and texts is not None and (OWN_ARGUMENTS,) not in texts:
            first = max(0, int(part[1]) - (name == "@"))
            return texts[first : None if part[2] is None else first + int(part[2])]
        return [(Unknown(written),)]

    def _output(self, node: Node) -> Text:
        """What a command would print, for the few that need no running."""
        texts = [text for command in _commands(node) for text in self.words(command, words_of(command))]
        known = [literal(text) for text in texts]
        match [word for word in known if word is None or not re.match(r"--?([a-zA-Z]|$)", word)]:
            case ["seq", *_] if 2 <= len(known) <= 4:
                return _sequence(known[1:]) or (Unknown(source(node).lstrip()),)
            case ["dirname", str(path)]:
                return (str(Path(path).parent),)
            case ["basename", str(path)]:
                return (Path(path).name,)
            case ["realpath" | "readlink", str(path)] | ["cd", str(path), "pwd"]:
                return (os.path.normpath(Path.cwd() / path),)
            case ["cat"] if (body := _here_document(node)) is not None:
                return joined([self.text(body)], "")
        return (Unknown(source(node).lstrip()),)


def _fields(pieces: Iterator[Piece | None]) -> list[Text]:
    fields: list[list[Piece]] = []
    is_open = False
    for piece in pieces:
        if piece is not None and not is_open:
            fields.append([])
        is_open = piece is not None
        if piece is not None:
            fields[-1].append(piece)
    return [joined([tuple(one)], "") for one in fields]


def _plain(node: Node, written: str, quoted: bool) -> Text:
    """The text of a node without words of its own."""
    if node.type == "raw_string":
        return (written if quoted else written[1:-1],)
    if node.type == "ansi_c_string":
        return (written[2:-1].encode("latin-1", "backslashreplace").decode("unicode_escape"),)
    if node.type not in ("word", "variable_name", "number", "string_content", "heredoc_content"):
        is_known = node.child_count == 0 or node.type == "command_name"
        return (_unescaped(written, quoted) if is_known else Unknown(written.lstrip()),)
    is_first = (
        node.parent is None
        or node.start_byte == node.parent.start_byte
        or node.parent.type != "concatenation"
    )
    if not quoted and is_first and re.match(r"~(/|$)", written):
        return (Variable("HOME"), written[1:])
    return (Unknown(written) if not quoted and _BRACES.fullmatch(written) else _unescaped(written, quoted),)


def _unescaped(text: str, quoted: bool) -> str:
    """Literal text without the backslashes that bash takes away; in double quotes only some are."""
    return re.sub(r'\\([$`"\\])' if quoted else r"\\(.)", r"\1", text.replace("\\\n", ""))


def _cut(text: str, op: str, pattern: str) -> str:
    """The text without what `%`, `%%`, `#` or `##` take off its end or beginning."""
    matches = re.compile(translate(pattern)).match
    places = range(len(text) + 1)
    if op[0] == "%":
        sizes = [n for n in places if matches(text[n:])]
        return text[: (min if op == "%%" else max)(sizes, default=len(text))]
    sizes = [n for n in places if matches(text[:n])]
    return text[(max if op == "##" else min)(sizes, default=0) :]


def words_of(command: Node) -> list[Node]:
    """The words of a command, its name first."""
    return [
        node
        for field_name in ("name", "argument")
        for node in command.children_by_field_name(field_name)
        if node.start_byte < node.end_byte
    ]


def _commands(node: Node) -> Iterator[Node]:
    """The commands of a substitution that is a plain one, or several behind `&&`."""
    for child in node.named_children:
        if child.type == "command":
            yield child
        elif child.type in ("list", "redirected_statement") and "||" not in [c.type for c in child.children]:
            yield from _commands(child)


def _here_document(node: Node) -> Node | None:
    inside = [node] if node.type == "heredoc_body" else map(_here_document, node.named_children)
    return next(filter(None, inside), None)


def _sequence(words: list[str | None]) -> Text | None:
    numbers = [int(word) for word in words if word is not None and re.fullmatch(r"-?[0-9]{1,9}", word)]
    if len(numbers) != len(words):
        return None
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) > 2 else 1
    counted = range(first, numbers[-1] + (1 if step > 0 else -1), step or 1)
    return ("\n".join(map(str, counted)),) if len(counted) <= LIMIT else None
