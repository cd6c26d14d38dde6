"""A bash script as a syntax tree, by tree-sitter. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


def parse(text: str) -> Node:
    """The root of a script's tree, whose nodes give their own text; a name behind `$` may be in braces there."""
    # The grammar ends the word `"$A"/$B.x` before the B; with `${B}` it does not.
    braced = re.sub(r"(?<=[^\s\\$'])\$([A-Za-z_]\w*)", r"${\1}", text)
    return _parser().parse(braced.encode()).root_node


def source(node: Node) -> str:
    """The text of a node, as it is written."""
    return (node.text or b"").decode()


def names_in(*nodes: Node) -> set[str]:
    """The variables that stand in nodes."""
    return {name for node in nodes for name in re.findall(r"\$\{?[#!]?(\w+)", source(node))}


def between(parent: Node, start: int, end: int) -> str:
    """What stands inside of `parent` between two places of the script."""
    return (parent.text or b"")[start - parent.start_byte : end - parent.start_byte].decode()


def unread_parts(root: Node) -> list[Node]:
    """The parts of a script that are no bash to the parser.

    Raises:
        ValueError: A quote, a brace or a parenthesis is never closed.
    """
    parts = list(_faulty(root)) if root.has_error else []
    for node in parts:
        what, change = "the end of the quote or bracket that begins", "close it"
        opening = node if source(node).strip()[:1] in ("'", '"', "`") else None
        if node.is_missing and node.type in (")", "}", '"', "`"):
            opening = node.parent
            if opening is not None and opening.type == "array" and opening.parent is not None:
                what, change = f"the closing ) of {source(opening.parent).partition('(')[0]}(", "add it"
        if opening is not None:
            line = opening.start_point[0] + 1
            raise ValueError(f"wanted {what} in line {line}, got none; {change}")
    return [node for node in parts if source(node).strip()]


def _faulty(node: Node) -> Iterator[Node]:
    if node.is_error or node.is_missing:
        yield node
    elif node.has_error:
        for child in node.children:
            yield from _faulty(child)


def _parser() -> Parser:
    # One for each text: the grammar's scanner of here-documents can crash on what an earlier text left in it.
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
