"""Exact arithmetic of expressions in a canonical form, within a budget: equal forms are equal values.

An expression is a quotient of two sums of terms. A term is a rational coefficient and factors with rational exponents;
a factor is a name (`x`), a prime (`#2`, whose exponent is below 1: sqrt(2) is `#2` to the 1/2), or an expression that
has no simpler form and stands for itself, such as `sin(x+1)`. Powers of different primes below 1 are independent over
the rational numbers (Besicovitch 1940), so that equality by cross-multiplication is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import floor, gcd, isqrt, lcm

Factors = tuple[tuple[str, Fraction], ...]
"""Names with their exponents, sorted."""
Sum = Mapping[Factors, Fraction]
"""Coefficients by the factors of their terms; none is zero."""

_BUDGET = 5_000
"""Products of two terms that one answer may cost, about 50 ms; a factorization counts as 50."""
_MAX_BITS = 13_300
"""Of a number: Python writes no integer of over 4,300 digits."""
_MAX_POWER = 64
_MAX_NAME = 200
_MAX_DIVISOR = 1_000
_POSITIVE = ("pi", "e")
_ONE: Sum = {(): Fraction(1)}


class UnreadableError(ValueError):
    """A text has no value, more than one reading, or costs too much to work out."""


@dataclass(frozen=True)
class Expression:
    """`top / bottom`. `bottom` is 1 unless it has several terms."""

    top: Sum
    bottom: Sum = field(default_factory=lambda: _ONE)

    @cached_property
    def text(self) -> str:
        """The canonical form in writing."""
        top = _write(self.top)
        return top if self.bottom == _ONE else f"({top})/({_write(self.bottom)})"

    @property
    def number(self) -> Fraction | None:
        """The value, where it is rational."""
        is_rational = self.bottom == _ONE and all(factors == () for factors in self.top)
        return self.top.get((), Fraction(0)) if is_rational else None

    @property
    def factors(self) -> Factors | None:
        """Of an expression that is one term with coefficient 1."""
        is_product = self.bottom == _ONE and list(self.top.values()) == [1]
        return next(iter(self.top)) if is_product else None


def constant(value: Fraction | int) -> Expression:
    """A rational number."""
    return Expression({(): Fraction(value)} if value else {})


def symbol(name: str) -> Expression:
    """A factor that stands for itself.

    Raises:
        UnreadableError: The name is so long that names of names would outgrow the text.
    """
    if len(name) > _MAX_NAME:
        raise UnreadableError("a name that is too long")
    return Expression({((name, Fraction(1)),): Fraction(1)})


class Algebra:
    """Arithmetic that gives up, with `UnreadableError`, where it would cost too much."""

    def __init__(self) -> None:
        self._left = _BUDGET

    def add(self, a: Expression, b: Expression) -> Expression:
        """a + b."""
        if a.bottom == b.bottom:
            return self._quotient(self._sum(chain(a.top.items(), b.top.items())), a.bottom)
        left, right = self._product(a.top, b.bottom), self._product(b.top, a.bottom)
        return self._quotient(
            self._sum(chain(left.items(), right.items())), self._product(a.bottom, b.bottom)
        )

    def negative(self, a: Expression) -> Expression:
        """-a."""
        return Expression({factors: -coefficient for factors, coefficient in a.top.items()}, a.bottom)

    def multiply(self, a: Expression, b: Expression) -> Expression:
        """a b."""
        return self._quotient(self._product(a.top, b.top), self._product(a.bottom, b.bottom))

    def divide(self, a: Expression, b: Expression) -> Expression:
        """a / b."""
        return self.multiply(a, self._quotient(b.bottom, b.top))

    def equal(self, a: Expression, b: Expression) -> bool:
        """Whether both are the same whatever their names stand for; False where that costs too much to decide."""
        if a.text == b.text:
            return True
        try:
            return self._product(a.top, b.bottom) == self._product(b.top, a.bottom)
        except UnreadableError:
            return False

    def power(self, base: Expression, exponent: Expression) -> Expression:
        """base ^ exponent, the real one; other powers of negative numbers stand for themselves."""
        number = exponent.number
        if not base.top:
            if number is None or number <= 0:
                raise UnreadableError("zero to a power that is not positive")
            return base
        if number is None:
            return symbol(f"({base.text})^({exponent.text})")
        if number.denominator > 1:
            return self._fractional_power(base, number)
        return self._whole_power(base if number > 0 else self.divide(constant(1), base), abs(int(number)))

    def root(self, radicand: Expression, index: int) -> Expression:
        """The real root where there is one."""
        value = radicand.number
        if index < 1:
            raise UnreadableError("a root of an index below 1")
        if value is not None and value < 0 and index % 2:
            return self.negative(self.root(constant(-value), index))
        return self.power(radicand, constant(Fraction(1, index)))

    def _whole_power(self, base: Expression, exponent: int) -> Expression:
        if len(base.top) == 1 and base.bottom == _ONE:
            ((factors, coefficient),) = base.top.items()
            if abs(coefficient) != 1 and _num_bits(coefficient) * exponent > _MAX_BITS:
                raise UnreadableError("a power that is too large")
            raised = tuple((name, n * exponent) for name, n in factors)
            return Expression(self._product({raised: coefficient**exponent}, _ONE))
        if exponent * len(base.top) > _MAX_POWER:
            raise UnreadableError("a power that is too large")
        result = constant(1)
        for _ in range(exponent):
            result = self.multiply(result, base)
        return result

    def _fractional_power(self, base: Expression, exponent: Fraction) -> Expression:
        """The content by its primes; what is left by its factors where these are positive, or else as a name."""
        content = self._content(base)
        rest = Expression({factors: n / content for factors, n in base.top.items()}, base.bottom)
        factors = rest.factors
        is_name = factors is not None and len(factors) == 1 and factors[0][1] == 1
        if factors is None or not (is_name or all(n[0] == "#" or n in _POSITIVE for n, _ in factors)):
            (factors,) = symbol(f"({rest.text})").top
        primes = ((f"#{prime}", Fraction(n)) for prime, n in self._factorized(content))
        raised = tuple((name, n * exponent) for name, n in (*factors, *primes))
        return Expression(self._product({raised: Fraction(1)}, _ONE))

    def _quotient(self, top: Sum, bottom: Sum) -> Expression:
        """In canonical form: a bottom of one term is multiplied into the top, of others the first coefficient is 1."""
        if not bottom:
            raise UnreadableError("a division by zero")
        if bottom == _ONE or not top:
            return Expression(top)
        if len(bottom) == 1:
            ((factors, coefficient),) = bottom.items()
            return Expression(self._product(top, {tuple((name, -n) for name, n in factors): 1 / coefficient}))
        leading = bottom[min(bottom)]
        top = {factors: coefficient / leading for factors, coefficient in top.items()}
        bottom = {factors: coefficient / leading for factors, coefficient in bottom.items()}
        return Expression(top, bottom)

    def _sum(self, terms: Iterable[tuple[Factors, Fraction]]) -> Sum:
        total: dict[Factors, Fraction] = {}
        for factors, coefficient in terms:
            self._spend(1)
            total[factors] = _checked(total.get(factors, Fraction(0)) + coefficient)
        return {factors: coefficient for factors, coefficient in total.items() if coefficient}

    def _product(self, a: Sum, b: Sum) -> Sum:
        return self._sum(
            self._simplified([*left, *right], x * y) for left, x in a.items() for right, y in b.items()
        )

    def _simplified(
        self, factors: list[tuple[str, Fraction]], coefficient: Fraction
    ) -> tuple[Factors, Fraction]:
        """Each name once, and whole powers of primes in the coefficient."""
        self._spend(len(factors))
        exponents: dict[str, Fraction] = {}
        for name, exponent in factors:
            exponents[name] = _checked(exponents.get(name, Fraction(0)) + exponent)
        for name, exponent in exponents.items():
            whole = floor(exponent)
            if whole and name[0] == "#":
                prime = int(name[1:])
                if abs(whole) * prime.bit_length() > _MAX_BITS:
                    raise UnreadableError("a power that is too large")
                coefficient *= Fraction(prime) ** whole
                exponents[name] = exponent - whole
        return tuple(sorted((name, n) for name, n in exponents.items() if n)), _checked(coefficient)

    def _content(self, a: Expression) -> Fraction:
        """The positive number that leaves coprime whole coefficients when it is divided out."""
        coefficients = a.top.values()
        if sum(n.denominator.bit_length() for n in coefficients) > _MAX_BITS:
            raise UnreadableError("a number that is too long")
        return Fraction(
            gcd(*(n.numerator for n in coefficients)), lcm(*(n.denominator for n in coefficients))
        )

    def _factorized(self, value: Fraction) -> list[tuple[int, int]]:
        """Primes and exponents of a positive number; what has no small prime counts as one."""
        self._spend(0 if value == 1 else 50)
        return [*_primes(value.numerator), *((prime, -n) for prime, n in _primes(value.denominator))]

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise UnreadableError("too much to work out")


def _primes(number: int) -> list[tuple[int, int]]:
    found = []
    for divisor in range(2, _MAX_DIVISOR):
        if number < divisor * divisor:
            break
        n = 0
        while number % divisor == 0:
            number, n = number // divisor, n + 1
        if n:
            found.append((divisor, n))
    side = isqrt(number)
    if number > 1:
        found.append((side, 2) if side * side == number else (number, 1))
    return found


def _num_bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _checked(value: Fraction) -> Fraction:
    if _num_bits(value) > _MAX_BITS:
        raise UnreadableError("a number that is too long")
    return value


def _write(terms: Sum) -> str:
    written = (
        "*".join([str(coefficient), *(name if n == 1 else f"{name}^({n})" for name, n in factors)])
        for factors, coefficient in sorted(terms.items())
    )
    return "+".join(written) or "0"
