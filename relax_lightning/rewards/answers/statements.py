"""Equations, inequalities and lists of them: `x = 3`, `x + y = 2`, `1 < x <= 5`, `x = 3 or x = 5`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from relax_lightning.rewards.answers.algebra import Algebra, Expression, UnreadableError
from relax_lightning.rewards.answers.values import Group, Infinity, Named, Relation, Value, relation

_NAME = re.compile(
    r"(?!pi$)(?:[A-Za-z]\w*'*(?:\^-1)?(?:\(.*\))?|(?:angle|bar|hat|vec|overline) \w+|[^\W\d_]+)"
)


def stated(algebra: Algebra, parts: Sequence[Value], signs: Sequence[str]) -> Value:
    """What `part sign part sign part ...` says.

    Raises:
        UnreadableError: It says nothing, or contradicts itself.
    """
    parts, signs = _exact(list(parts), list(signs))
    if not signs:
        return parts[0]
    if signs == ["in"]:
        name = _name(parts[0])
        if name is None:
            raise UnreadableError("an element without a name")
        return Named(name, parts[1], None)
    if set(signs) == {"="}:
        return _equation(algebra, parts)
    if {"=", "in"} & set(signs):
        raise UnreadableError("an equation that is an inequality too")
    return _inequalities(algebra, parts, signs)


def joined(items: Sequence[Value]) -> Value:
    """One value of a list: `x = 3 or x = 5` and `x = 3, 5` are values of x."""
    flat = [
        x for item in items for x in (item.items if isinstance(item, Group) and item.kind == "," else (item,))
    ]
    if len(flat) == 1:
        return flat[0]
    names = [item.name if isinstance(item, Named) else None for item in flat]
    values = [item.value if isinstance(item, Named) else item for item in flat]
    is_one_name = names[0] is not None and (len(set(names)) == 1 or set(names[1:]) == {None})
    if is_one_name and not any(isinstance(value, Relation) for value in values):
        assert names[0] is not None
        return Named(names[0], Group(",", tuple(values)), None)
    return Group(",", tuple(flat))


def _exact(parts: list[Value], signs: list[str]) -> tuple[list[Value], list[str]]:
    """Up to the first `approximately`, but that `x` may be approximately what follows."""
    if "approx" not in signs:
        return parts, signs
    place = signs.index("approx")
    if place == 0 and _name(parts[0]) is not None:
        signs[0] = "="
        return _exact(parts, signs)
    return parts[: place + 1], signs[:place]


def _equation(algebra: Algebra, parts: list[Value]) -> Value:
    if len(parts) == 2 and _name(parts[0]) is None and _name(parts[1]) is not None:
        parts = parts[::-1]
    first, last = parts[0], parts[-1]
    name = _name(first)
    middle = parts[1:-1] if name is not None else parts[:-1]
    if not isinstance(last, Expression) or not isinstance(first, Expression):
        if name is None or middle:
            raise UnreadableError("an equation of what is no number")
        return Named(name, last, None)
    values = [part for part in middle if isinstance(part, Expression)]
    agrees = len(values) == len(middle) and all(algebra.equal(value, last) for value in values)
    if name is not None and agrees and not _mentions(last, name):
        return Named(name, last, _relation(algebra, first, "=", last))
    if name is None and agrees:
        return last
    if len(parts) > 2:
        raise UnreadableError("an equation of several parts that differ")
    return _relation(algebra, first, "=", last)


def _inequalities(algebra: Algebra, parts: list[Value], signs: list[str]) -> Value:
    relations: list[Value] = []
    for left, sign, right in zip(parts, signs, parts[1:], strict=False):
        if isinstance(left, Infinity) or isinstance(right, Infinity):
            continue  # says nothing of a number
        if not isinstance(left, Expression) or not isinstance(right, Expression):
            raise UnreadableError("an inequality of what is no number")
        relations.append(_relation(algebra, left, sign, right))
    if not relations:
        raise UnreadableError("an inequality that says nothing")
    return relations[0] if len(relations) == 1 else Group(",", tuple(relations))


def _relation(algebra: Algebra, left: Expression, sign: str, right: Expression) -> Relation:
    found = relation(algebra, left, sign, right)
    if found.difference.number is not None:
        raise UnreadableError("a statement without a variable")
    return found


def _name(value: Value) -> str | None:
    """The name that a value is: `x`, `f(x)`, `AB` (a segment), `(x, y)`."""
    if isinstance(value, Group):
        names = [_name(item) for item in value.items]
        return f"({','.join(map(str, names))})" if value.kind == "()" and None not in names else None
    factors = value.factors if isinstance(value, Expression) else None
    if not factors or any(exponent != 1 for _, exponent in factors):
        return None
    names = [name for name, _ in factors]
    if len(names) == 1:
        return names[0] if _NAME.fullmatch(names[0]) else None
    return "".join(names) if all(len(name) == 1 and name.isupper() for name in names) else None


def _mentions(value: Expression, name: str) -> bool:
    return re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", value.text) is not None
