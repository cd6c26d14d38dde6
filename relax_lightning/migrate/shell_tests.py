"""Conditions of a script, where they can be decided without running it."""

from __future__ import annotations

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


def decided(node: Node, scope: Scope) -> Verdict:
    """What a test, or a command that stands for one, comes to."""
    kind, inside = node.type, [child for child in node.named_children if child.type != "comment"]
    if kind == "command":
        return Verdict({"true": True, ":": True, "false": False}.get(source(node)))
    if kind == "variable_assignment":
        return Verdict(True)
    if kind == "test_command" and source(node)[0] == "[" and len(inside) == 1:
        return decided(inside[0], scope)
    if kind == "parenthesized_expression" and len(inside) == 1:
        return decided(inside[0], scope)
    if kind == "negated_command" and len(inside) == 1:
        return _not(decided(inside[0], scope))
    if kind == "unary_expression":
        return _unary(node, scope)
    if kind in ("binary_expression", "list"):
        left, operator, right = node.children[0], source(node.children[1]), node.children[-1]
        if operator in ("&&", "||", "-a", "-o"):
            return _both(decided(left, scope), decided(right, scope), stops_at=operator in ("||", "-o"))
        return _compared(left, operator, right, scope)
    return _UNKNOWN


def matching(value: Node | None, items: list[Node], scope: Scope) -> tuple[Verdict, list[tuple[Node, bool]]]:
    """The items of a `case` that may run, each with whether it is the one that does."""
    known, names = (None, set[str]()) if value is None else default_of(scope.text(value))
    if known is None:
        return _UNKNOWN, [(item, False) for item in items]
    chosen = next(
        (i for i in items if any(fnmatchcase(known, _pattern(p)) for p in i.children_by_field_name("value"))),
        None,
    )
    verdict = Verdict(True, frozenset(names))
    return verdict, [(item, item == chosen) for item in items if names or item == chosen]


def _pattern(node: Node) -> str:
    return source(node).replace('"', "").replace("'", "")


def _not(verdict: Verdict) -> Verdict:
    return verdict if verdict.is_true is None else Verdict(not verdict.is_true, verdict.defaults)


def _both(left: Verdict, right: Verdict, *, stops_at: bool) -> Verdict:
    for one in (left, right):
        if one.is_true == stops_at:
            return one
    if left.is_true is None or right.is_true is None:
        return _UNKNOWN
    return Verdict(not stops_at, left.defaults | right.defaults)


def _unary(node: Node, scope: Scope) -> Verdict:
    operator, operand = source(node.children[0]), node.children[-1]
    if operator == "!":
        return _not(decided(operand, scope))
    known, names = default_of(scope.text(operand))
    if operator not in ("-n", "-z") or known is None:
        return _UNKNOWN
    return Verdict((known != "") == (operator == "-n"), frozenset(names))


def _compared(left: Node, operator: str, right: Node, scope: Scope) -> Verdict:
    (one, names), (other, more) = default_of(scope.text(left)), default_of(scope.text(right))
    if one is None or other is None:
        return _UNKNOWN
    defaults = frozenset(names | more)
    if operator in ("=", "==", "!="):
        is_pattern = right.type in ("extglob_pattern", "regex")
        return Verdict(
            (fnmatchcase(one, other) if is_pattern else one == other) == (operator != "!="), defaults
        )
    order = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}.get(
        operator
    )
    if order is None or not (one.lstrip("-").isdigit() and other.lstrip("-").isdigit()):
        return _UNKNOWN
    return Verdict(((int(one) > int(other)) - (int(one) < int(other))) in order, defaults)
