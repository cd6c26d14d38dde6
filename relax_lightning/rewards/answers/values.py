"""What an answer can say, and when two of them say the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from relax_lightning.rewards.answers.algebra import Algebra, Expression, UnreadableError, constant

_MOST_UNORDERED = 50
_ORDERED = ("()", "[]", "(]", "[)", "rows")
_NAME = re.compile(
    r"(?!pi$)(?:[A-Za-z]\w*'*(?:\^\{-1\})?(?:\(.*\))?|\\\w+|[^\W\d_]+|(?:angle|vec|hat|overline) \w+)"
)
_WORD = re.compile(r"[^\W\d_]{4,}")


@dataclass(frozen=True)
class Words:
    """Text that is no mathematics, such as `Monday`; or infinity."""

    text: str


@dataclass(frozen=True)
class Relation:
    """`difference` = 0, != 0, < 0 or <= 0; scaled so that equal statements have equal differences."""

    sign: str
    difference: Expression

    @cached_property
    def text(self) -> str:
        """In writing."""
        return f"{self.difference.text} {self.sign} 0"


@dataclass(frozen=True)
class Named:
    """`name = value`: the value alone says the same."""

    name: str
    value: Value
    relation: Relation | None
    """The equation that it is too."""

    @property
    def text(self) -> str:
        """Of the value, since the name may be left out."""
        return self.value.text


@dataclass(frozen=True)
class Group:
    """Several values: `kind` is `()`, `[]`, `(]`, `[)`, `rows`, or in any order `{}`, `,`, `or`, `cup`."""

    kind: str
    items: tuple[Value, ...]

    @cached_property
    def text(self) -> str:
        """In writing."""
        texts = [item.text for item in self.items]
        return f"{self.kind[0]}{'; '.join(texts if self.kind in _ORDERED else sorted(texts))}{self.kind[1:]}"


type Value = Expression | Words | Relation | Named | Group


@dataclass(frozen=True)
class Answer:
    """A value, with the unit that was written beside it."""

    value: Value
    unit: str | None = None


# --- equations, inequalities and lists of them ------------------------------------------------------------------------


def stated(algebra: Algebra, parts: list[Value], signs: list[str]) -> Value:
    """What `part sign part sign part ...` says.

    Raises:
        UnreadableError: It says nothing, or contradicts itself.
    """
    if "approx" in signs:
        place = signs.index("approx")
        if place == 0 and _name(parts[0]) is not None:
            return stated(algebra, parts, ["=", *signs[1:]])
        parts, signs = parts[: place + 1], signs[:place]
    if not signs:
        return parts[0]
    if set(signs) == {"="} or signs == ["in"]:
        return _equation(algebra, parts, is_element=signs == ["in"])
    if {"=", "in"} & set(signs):
        raise UnreadableError("an equation that is an inequality too")
    relations = [_relation(algebra, *both) for both in zip(parts, signs, parts[1:], strict=False)]
    return relations[0] if len(relations) == 1 else Group(",", tuple(relations))


def joined(items: Sequence[Value], separators: set[str]) -> Value:
    """One value of a list: `x = 3 or x = 5` and `x = 3, 5` are values of x, but `x > 3 or x < 5` is a choice.

    Raises:
        UnreadableError: It is not sure what may be chosen.
    """
    flat = [
        x for item in items for x in (item.items if isinstance(item, Group) and item.kind == "," else (item,))
    ]
    names = [item.name if isinstance(item, Named) else None for item in flat]
    values = [item.value if isinstance(item, Named) else item for item in flat]
    has_relations = any(isinstance(value, Relation) for value in values)
    if names[0] is not None and not has_relations and set(names[1:]) <= {names[0], None}:
        return Named(names[0], Group(",", tuple(values)), None)
    if "or" in separators and (has_relations or any(names)):
        if len(flat) > len(items) or "and" in separators:
            raise UnreadableError("a choice between several statements")
        return Group("or", tuple(flat))
    return Group(",", tuple(flat))


def _equation(algebra: Algebra, parts: list[Value], *, is_element: bool) -> Value:
    if len(parts) == 2 and _name(parts[0]) is None and _name(parts[1]) is not None and not is_element:
        parts = parts[::-1]
    first, last = parts[0], parts[-1]
    name = _name(first)
    if is_element or not isinstance(first, Expression) or not isinstance(last, Expression):
        if name is None or len(parts) > 2:
            raise UnreadableError("an equation of what is no number")
        return Named(name, last, None)
    middle = parts[1:-1] if name is not None else parts[:-1]
    agrees = all(isinstance(part, Expression) and algebra.equal(part, last) for part in middle)
    if name is not None and agrees and not _mentions(last, name):
        return Named(name, last, _relation(algebra, first, "=", last))
    if name is None and agrees:
        return last
    if len(parts) > 2:
        raise UnreadableError("an equation of several parts that differ")
    return _relation(algebra, first, "=", last)


def _relation(algebra: Algebra, left: Value, sign: str, right: Value) -> Relation:
    if not isinstance(left, Expression) or not isinstance(right, Expression):
        raise UnreadableError("an inequality of what is no number")
    if sign in (">", ">="):
        left, right, sign = right, left, sign.replace(">", "<")
    difference = algebra.add(left, algebra.negative(right))
    if difference.number is not None:
        raise UnreadableError("a statement without a variable")
    leading = difference.top[min(difference.top)]
    scale = leading if sign in ("=", "!=") else abs(leading)
    return Relation(sign, algebra.divide(difference, constant(scale)))


def _name(value: Value) -> str | None:
    """The name that a value is: `x`, `f(x)`, `AB` (a segment), `total cost`, `(x, y)`."""
    if isinstance(value, Group):
        names = [_name(item) for item in value.items]
        return f"({','.join(map(str, names))})" if value.kind == "()" and None not in names else None
    factors = value.factors if isinstance(value, Expression) else None
    if not factors or any(exponent != 1 for _, exponent in factors):
        return None
    names = [name for name, _ in factors]
    if len(names) == 1:
        return names[0] if _NAME.fullmatch(names[0]) else None
    is_words = any(map(_WORD.fullmatch, names)) or all(len(name) == 1 and name.isupper() for name in names)
    return " ".join(names) if is_words else None


def _mentions(value: Expression, name: str) -> bool:
    return re.search(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", value.text) is not None


# --- comparison -------------------------------------------------------------------------------------------------------


def same(a: Answer, b: Answer) -> bool:
    """Whether two answers say the same; a unit and the name of a value may be left out, but not be another."""
    if a.unit and b.unit and a.unit != b.unit:
        return False
    return _same(Algebra(), a.value, b.value)


def _same(algebra: Algebra, a: Value, b: Value) -> bool:
    match a, b:
        case Named(), Named() if a.name != b.name:
            return a.relation is not None and _same(algebra, b, a.relation)
        case Named(), Relation():
            return a.relation is not None and _same(algebra, a.relation, b)
        case Named(), _:
            return _same(algebra, a.value, b.value if isinstance(b, Named) else b)
        case _, Named():
            return _same(algebra, b, a)
        case Expression(), Expression():
            return algebra.equal(a, b)
        case Relation(), Relation():
            return a.sign == b.sign and algebra.equal(a.difference, b.difference)
        case Group(), Group():
            return _same_groups(algebra, a, b)
    return a == b


def _same_groups(algebra: Algebra, a: Group, b: Group) -> bool:
    is_alike = a.kind == b.kind or {a.kind, b.kind} == {"{}", ","}
    if not is_alike or len(a.items) != len(b.items):
        return False
    if a.kind in _ORDERED:
        return all(_same_item(algebra, x, y) for x, y in zip(a.items, b.items, strict=True))
    ours, theirs = (sorted(group.items, key=lambda item: item.text) for group in (a, b))
    if len(ours) > _MOST_UNORDERED:
        return all(_same_item(algebra, x, y) for x, y in zip(ours, theirs, strict=True))
    for x in ours:
        found = next((place for place, y in enumerate(theirs) if _same_item(algebra, x, y)), None)
        if found is None:
            return False
        theirs.pop(found)
    return True


def _same_item(algebra: Algebra, x: Value, y: Value) -> bool:
    """Of several values, those with a name need it: x = 3, y = 5 is not 3, 5."""
    is_nameless = isinstance(x, Named) != isinstance(y, Named)
    if is_nameless and not (isinstance(x, Relation) or isinstance(y, Relation)):
        return False
    return _same(algebra, x, y)
