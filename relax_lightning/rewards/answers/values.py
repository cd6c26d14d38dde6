"""What an answer can be, and when two of them are the same."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from relax_lightning.rewards.answers.algebra import Algebra, Expression, constant

_MAX_TRIES = 2_500


@dataclass(frozen=True)
class Words:
    """Text that is no mathematics, such as `Monday`."""

    text: str


@dataclass(frozen=True)
class Infinity:
    """Without arithmetic."""

    sign: int

    @property
    def text(self) -> str:
        """In writing."""
        return "infinity" if self.sign > 0 else "-infinity"


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

    @cached_property
    def text(self) -> str:
        """Of the value, since the name may be left out."""
        return self.value.text


@dataclass(frozen=True)
class Group:
    """Several values: `kind` is `{}` or `,` (in any order), `()`, `[]`, `(]`, `[)`, `<>`, `rows`, or `cup` etc."""

    kind: str
    items: tuple[Value, ...]

    @property
    def is_ordered(self) -> bool:
        """Whether the items may not change places."""
        return self.kind not in ("{}", ",", "cup", "cap")

    @cached_property
    def text(self) -> str:
        """In writing."""
        texts = [item.text for item in self.items]
        return f"{self.kind[0]}{'; '.join(texts if self.is_ordered else sorted(texts))}{self.kind[1:]}"


type Value = Expression | Words | Infinity | Relation | Named | Group


@dataclass(frozen=True)
class Answer:
    """A value, with the unit that was written beside it."""

    value: Value
    unit: str | None = None


def relation(algebra: Algebra, left: Expression, sign: str, right: Expression) -> Relation:
    """`left sign right`, scaled."""
    if sign in (">", ">="):
        left, right, sign = right, left, sign.replace(">", "<")
    difference = algebra.add(left, algebra.negative(right))
    if difference.is_zero:
        return Relation(sign, difference)
    scale = abs(difference.top[min(difference.top)])
    if sign in ("=", "!="):
        scale = difference.top[min(difference.top)]
    return Relation(sign, algebra.divide(difference, constant(Fraction(scale))))


def same(a: Answer, b: Answer) -> bool:
    """Whether two answers say the same; a unit and the name of a value may be left out, but not be another."""
    if a.unit and b.unit and a.unit != b.unit:
        return False
    return _same(Algebra(), a.value, b.value)


def _same(algebra: Algebra, a: Value, b: Value) -> bool:
    if isinstance(a, Named) and isinstance(b, Named):
        if a.name == b.name:
            return _same(algebra, a.value, b.value)
        return a.relation is not None and b.relation is not None and _same(algebra, a.relation, b.relation)
    if isinstance(a, Named):
        other = a.relation if isinstance(b, Relation) else a.value
        return other is not None and _same(algebra, other, b)
    if isinstance(b, Named):
        return _same(algebra, b, a)
    if isinstance(a, Expression) and isinstance(b, Expression):
        return algebra.equal(a, b)
    if isinstance(a, Relation) and isinstance(b, Relation):
        return a.sign == b.sign and algebra.equal(a.difference, b.difference)
    if isinstance(a, Group) and isinstance(b, Group):
        return _same_groups(algebra, a, b)
    return a == b


def _same_groups(algebra: Algebra, a: Group, b: Group) -> bool:
    is_alike = a.kind == b.kind or {a.kind, b.kind} == {"{}", ","}
    if not is_alike or len(a.items) != len(b.items):
        return False
    if a.is_ordered:
        return all(_same_item(algebra, x, y) for x, y in zip(a.items, b.items, strict=True))
    left = sorted(b.items, key=lambda item: item.text)
    num_tries = 0
    for x in sorted(a.items, key=lambda item: item.text):
        found = next((place for place, y in enumerate(left) if _same_item(algebra, x, y)), None)
        num_tries += len(left) if found is None else found
        if found is None or num_tries > _MAX_TRIES:
            return False
        left.pop(found)
    return True


def _same_item(algebra: Algebra, x: Value, y: Value) -> bool:
    """Of several values, those with a name need it: x = 3, y = 5 is not 3, 5."""
    names = isinstance(x, Named) + isinstance(y, Named)
    if names == 1 and not (isinstance(x, Relation) or isinstance(y, Relation)):
        return False
    return _same(algebra, x, y)
