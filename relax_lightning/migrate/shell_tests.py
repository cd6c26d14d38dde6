"""Conditions of a script, where they can be decided without running it."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from relax_lightning.migrate.shell_text import default_of
from relax_lightning.migrate.shell_tree import source
from relax_lightning.migrate.shell_words import Scope

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Verdict:
    """What a condition comes to; None where only a run could tell."""

    is_true: bool | None
    defaults: frozenset[str] = frozenset()
    """Variables of the environment whose defaults decide it."""


_UNKNOWN = Verdict(None)
_NUMBERS = {"-eq": "eq", "-ne": "ne", "-lt": "lt", "-le": "le", "-gt": "gt", "-ge": "ge"}


def decided(node: Node, scope: Scope) -> Verdict:
    """What a test, or a command that stands for one, comes to."""
    kind, inside = node.type, [child for child in node.named_children if child.type != "comment"]
    if kind == "command":
        return Verdict({"true": True, ":": True, "false": False}.get(source(node)))
    if kind in ("test_command", "parenthesized_expression") and len(inside) == 1:
        return decided(inside[0], scope)
    if kind == "negated_command" or (kind == "unary_expression" and source(node.children[0]) == "!"):
        return _not(decided(node.children[-1], scope))
    if kind == "unary_expression":
        known, names = default_of(scope.text(node.children[-1]))
        sign = source(node.children[0])
        is_decided = sign in ("-n", "-z") and known is not None
        return Verdict((known != "") == (sign == "-n"), frozenset(names)) if is_decided else _UNKNOWN
    if kind in ("binary_expression", "list"):
        left, sign, right = node.children[0], source(node.children[1]), node.children[-1]
        if sign in ("&&", "||", "-a", "-o"):
            return _both(decided(left, scope), decided(right, scope), stops_at=sign in ("||", "-o"))
        return _compared(left, sign, right, scope)
    return _UNKNOWN


def may_fail(node: Node) -> bool:
    """Whether `node && next` stands for a condition: a test, or one of several ways."""
    return re.search(r"\|\||(^|&&\s*)(\[|!|test\s)", source(node)) is not None


def matches(pattern: Node, text: str) -> bool:
    """Whether a text is what a pattern of `case` asks for."""
    return fnmatchcase(text, source(pattern).replace('"', "").replace("'", ""))


def _not(verdict: Verdict) -> Verdict:
    return verdict if verdict.is_true is None else Verdict(not verdict.is_true, verdict.defaults)


def _both(left: Verdict, right: Verdict, *, stops_at: bool) -> Verdict:
    for one in (left, right):
        if one.is_true == stops_at:
            return one
    if left.is_true is None or right.is_true is None:
        return _UNKNOWN
    return Verdict(not stops_at, left.defaults | right.defaults)


def _compared(left: Node, sign: str, right: Node, scope: Scope) -> Verdict:
    (one, names), (other, more) = default_of(scope.text(left)), default_of(scope.text(right))
    defaults = frozenset(names | more)
    if one is None or other is None:
        return _UNKNOWN
    if sign in ("=", "==", "!="):
        is_pattern = right.type in ("extglob_pattern", "regex")
        is_equal = fnmatchcase(one, other) if is_pattern else one == other
        return Verdict(is_equal == (sign != "!="), defaults)
    if sign in _NUMBERS and all(re.fullmatch("-?[0-9]{1,18}", number) for number in (one, other)):
        return Verdict(getattr(operator, _NUMBERS[sign])(int(one), int(other)), defaults)
    return _UNKNOWN
