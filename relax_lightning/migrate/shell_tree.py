"""A bash script as a syntax tree, by tree-sitter. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_CLOSING = (")", "}", '"', "`")


def parse(text: str) -> Node:
    """The root of a script's tree, whose nodes give their own text; a name behind `$` may be in braces there."""
    # The grammar ends the word `"$A"/$B.x` before the B; with `${B}` it does not.
    braced = re.sub(r"(?<=[^\s\\$'])\$([A-Za-z_]\w*)", r"${\1}", text)
    return _parser().parse(braced.encode()).root_node


def source(node: Node) -> str:
    """The text of a node, as it is written."""
    return (node.text or b"").decode()


def line_of(node: Node) -> int:
    """The line, from 1, that a node begins in."""
    return node.start_point[0] + 1


def unread_parts(root: Node) -> list[Node]:
    """The parts of a script that are no bash to the parser.

    Raises:
        ValueError: A quote, a brace or a parenthesis is never closed.
    """
    parts = list(_faulty(root)) if root.has_error else []
    for node in parts:
        if node.is_missing and node.type in _CLOSING and node.parent is not None:
            opened = (
                source(node.parent.parent).partition("(")[0]
                if node.parent.type == "array" and node.parent.parent
                else None
            )
            what = (
                "the end of the quote or bracket that begins"
                if opened is None
                else f"the closing ) of {opened}("
            )
            change = "close it" if opened is None else "add it"
            raise ValueError(f"wanted {what} in line {line_of(node.parent)}, got none; {change}")
        if source(node).strip()[:1] in tuple("'\"`"):
            raise ValueError(
                f"wanted the end of the quote or bracket that begins in line {line_of(node)}, got none; close it"
            )
    return [node for node in parts if source(node).strip()]


def unescaped(text: str, *, quoted: bool = False) -> str:
    """Literal text without the backslashes that bash takes away; in double quotes only some are."""
    return re.sub(
        r'\\([$`"\\\n])' if quoted else r"\\(.|\n)", lambda found: found[1].strip("\n"), text, flags=re.S
    )


def clauses(node: Node) -> Iterator[tuple[list[Node], list[Node], int]]:
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


def may_fail(node: Node) -> bool:
    """Whether `node && next` stands for a condition: a test, or one of several ways."""
    if node.type == "list":
        return "||" in [child.type for child in node.children] or any(
            may_fail(c) for c in node.named_children
        )
    return node.type in ("test_command", "negated_command") or source(node).startswith("test ")


def between(parent: Node, first: Node, second: Node) -> str:
    """What stands between two nodes inside of `parent`."""
    text = parent.text or b""
    return text[first.end_byte - parent.start_byte : second.start_byte - parent.start_byte].decode()


def _faulty(node: Node) -> Iterator[Node]:
    if node.is_error or node.is_missing:
        yield node
    elif node.has_error:
        for child in node.children:
            yield from _faulty(child)


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
