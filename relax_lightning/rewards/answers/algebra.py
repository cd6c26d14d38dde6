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
from hashlib import blake2b
from math import comb, factorial, floor, gcd, isqrt

Term = tuple[tuple[str, Fraction], ...]
Sum = Mapping[Term, Fraction]

_BUDGET = 5_000
"""Products of two terms that one answer may cost, about 50 ms; a factorization counts as 50."""
_MAX_BITS = 8_192
_MAX_DIGITS = 2_000
_MAX_POWER = 64
_LONGEST_NAME = 60
_SMALL_PRIMES = tuple(n for n in range(2, 1000) if all(n % d for d in range(2, isqrt(n) + 1)))
_POSITIVE = ("pi", "e")


class UnreadableError(ValueError):
    """A text has no value, more than one reading, or costs too much to work out."""


@dataclass(frozen=True)
class Expression:
    """`top / bottom`. `bottom` is 1 unless it has several terms; neither has a term that is zero."""

    top: Sum
    bottom: Sum = field(default_factory=lambda: {(): Fraction(1)})

    @cached_property
    def text(self) -> str:
        """The canonical form in writing."""
        top = _write(self.top)
        return top if self.bottom == _ONE else f"({top})/({_write(self.bottom)})"

    @property
    def number(self) -> Fraction | None:
        """The value, where it is rational."""
        if self.bottom != _ONE or any(term != () for term in self.top):
            return None
        return self.top.get((), Fraction(0))

    @property
    def is_zero(self) -> bool:
        """Whether nothing is left."""
        return not self.top

    @property
    def factors(self) -> Term | None:
        """Of an expression that is one term with coefficient 1."""
        if self.bottom == _ONE and len(self.top) == 1:
            ((term, coefficient),) = self.top.items()
            return term if coefficient == 1 else None
        return None


_ONE: Sum = {(): Fraction(1)}


def constant(value: Fraction | int) -> Expression:
    """A rational number."""
    return Expression({(): Fraction(value)} if value else {})


def symbol(name: str) -> Expression:
    """A factor that stands for itself. Long names are shortened to their hash, so that forms stay small."""
    if len(name) > _LONGEST_NAME:
        name = f"[{blake2b(name.encode(), digest_size=16).hexdigest()}]"
    return Expression({((name, Fraction(1)),): Fraction(1)})


def digits(text: str) -> Expression:
    """The whole number of these digits; one that is too long to compute with stands for itself."""
    text = text.lstrip("0") or "0"
    return constant(int(text)) if len(text) <= _MAX_DIGITS else symbol(f"digits {text}")


class Algebra:
    """Arithmetic that gives up, with `UnreadableError`, where it would cost too much."""

    def __init__(self) -> None:
        self._left = _BUDGET
        self._sums: dict[str, Expression] = {}
        """What the factors that stand for a sum are, to get it back from a square of its root."""

    def add(self, a: Expression, b: Expression) -> Expression:
        """a + b."""
        if a.bottom == b.bottom:
            return self._quotient(self._sum([a.top, b.top]), a.bottom)
        top = self._sum([self._product(a.top, b.bottom), self._product(b.top, a.bottom)])
        return self._quotient(top, self._product(a.bottom, b.bottom))

    def negative(self, a: Expression) -> Expression:
        """-a."""
        return Expression({term: -coefficient for term, coefficient in a.top.items()}, a.bottom)

    def multiply(self, a: Expression, b: Expression) -> Expression:
        """a b."""
        return self._quotient(self._product(a.top, b.top), self._product(a.bottom, b.bottom))

    def divide(self, a: Expression, b: Expression) -> Expression:
        """a / b."""
        return self.multiply(a, self._inverse(b))

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
        if number is None:
            return self._symbolic_power(base, exponent)
        if base.is_zero:
            if number <= 0:
                raise UnreadableError("zero to a power that is not positive")
            return base
        if number.denominator == 1:
            return self._whole_power(base, int(number))
        return self._fractional_power(base, number)

    def root(self, radicand: Expression, index: int) -> Expression:
        """The real root where there is one."""
        if index < 1:
            raise UnreadableError("a root of an index below 1")
        value = radicand.number
        if value is not None and value < 0 and index % 2:
            return self.negative(self.root(constant(-value), index))
        return self.power(radicand, constant(Fraction(1, index)))

    def logarithm(self, name: str, argument: Expression) -> Expression:
        """`ln` or `log`, of a positive number as the sum over its primes."""
        value = argument.number
        if value is None and argument.factors is not None and name == "ln":
            ((factor, exponent), *more) = argument.factors
            if factor == "e" and not more:
                return constant(exponent)
        if value is None or value <= 0:
            return symbol(f"{name}({argument.text})")
        parts = [self._scaled(symbol(f"{name}({prime})"), n) for prime, n in self._factorized(value)]
        return Expression(self._sum(part.top for part in parts))

    def counted(self, name: str, arguments: list[Expression]) -> Expression:
        """`factorial(n)` and `binomial(n, k)`, worked out for small numbers."""
        numbers = [argument.number for argument in arguments]
        small = [int(n) for n in numbers if n is not None and n.denominator == 1 and 0 <= n <= 500]
        if len(small) < len(arguments):
            return symbol(f"{name}({','.join(argument.text for argument in arguments)})")
        return constant(factorial(small[0]) if name == "factorial" else comb(small[0], small[1]))

    # --- powers -----------------------------------------------------------------------------------------------------

    def _whole_power(self, base: Expression, exponent: int) -> Expression:
        if exponent < 0:
            return self._whole_power(self._inverse(base), -exponent)
        if len(base.top) == 1 and base.bottom == _ONE:
            return self._term_power(base, Fraction(exponent))
        if exponent * len(base.top) > _MAX_POWER:
            return self._factor(f"({base.text})^", Fraction(exponent))
        result = constant(1)
        for _ in range(exponent):
            result = self.multiply(result, base)
        return result

    def _term_power(self, base: Expression, exponent: Fraction) -> Expression:
        """Of one term to a whole power."""
        ((term, coefficient),) = base.top.items()
        size = max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length())
        primes = sum(n * int(name[1:]).bit_length() for name, n in term if name[0] == "#")
        if (abs(coefficient) != 1 and size * exponent > _MAX_BITS) or primes * exponent > _MAX_BITS:
            return self._factor(f"({base.text})^", exponent)
        raised = tuple((name, n * exponent) for name, n in term)
        return Expression(self._product({raised: coefficient ** int(exponent)}, _ONE))

    def _fractional_power(self, base: Expression, exponent: Fraction) -> Expression:
        content = self._content(base)
        rest = Expression({term: c / content for term, c in base.top.items()}, base.bottom)
        result = constant(1)
        for prime, n in self._factorized(content):
            result = self.multiply(result, self._prime_power(prime, n * exponent))
        factors = rest.factors
        if factors == ():
            return result
        if factors is not None and all(name[0] == "#" or name in _POSITIVE for name, _ in factors):
            if abs(exponent) * sum(len(name) for name, _ in factors) > _MAX_BITS:
                raise UnreadableError("a number that is too long")
            raised: Sum = {tuple((name, n * exponent) for name, n in factors): Fraction(1)}
            return self.multiply(result, Expression(self._product(raised, _ONE)))
        if factors is not None and len(factors) == 1 and factors[0][1] == 1:
            return self.multiply(result, self._factor(factors[0][0], exponent))
        name = f"({rest.text})"
        (stored,) = symbol(name).top
        self._sums[stored[0][0]] = rest
        return self.multiply(result, self._factor(name, exponent))

    def _prime_power(self, prime: int, exponent: Fraction) -> Expression:
        if abs(exponent) * prime.bit_length() > _MAX_BITS:
            return self._factor(f"{prime}^", exponent)
        return Expression(self._product({((f"#{prime}", exponent),): Fraction(1)}, _ONE))

    def _symbolic_power(self, base: Expression, exponent: Expression) -> Expression:
        """The powers of the terms of the exponent, multiplied: a^(2x+1) is (a^x)^2 a."""
        if base.is_zero:
            raise UnreadableError("zero to an unknown power")
        value = base.number
        if exponent.bottom != _ONE or (base.factors is None and (value is None or value <= 0)):
            return symbol(f"({base.text})^({exponent.text})")
        result = self.power(base, constant(exponent.top.get((), Fraction(0))))
        bases = [(base.text, 1)] if value is None else self._factorized(value)
        for term, coefficient in exponent.top.items():
            part = _write({term: Fraction(1, coefficient.denominator)})
            for name, n in bases if term else ():
                raised = self._factor(f"({name})^({part})", Fraction(coefficient.numerator * n))
                result = self.multiply(result, raised)
        return result

    # --- sums -------------------------------------------------------------------------------------------------------

    def _inverse(self, a: Expression) -> Expression:
        if a.is_zero:
            raise UnreadableError("a division by zero")
        return self._quotient(a.bottom, a.top)

    def _quotient(self, top: Sum, bottom: Sum) -> Expression:
        """In canonical form: a bottom of one term is multiplied into the top, of others the content is taken out."""
        if not bottom:
            raise UnreadableError("a division by zero")
        if bottom == _ONE or not top:
            return Expression(top)
        if len(bottom) == 1:
            ((term, coefficient),) = bottom.items()
            return Expression(self._product(top, {tuple((n, -e) for n, e in term): 1 / coefficient}))
        leading = bottom[min(bottom)]
        top = {term: coefficient / leading for term, coefficient in top.items()}
        bottom = {term: coefficient / leading for term, coefficient in bottom.items()}
        return constant(1) if top == bottom else Expression(top, bottom)

    def _sum(self, parts: Iterable[Sum]) -> Sum:
        total: dict[Term, Fraction] = {}
        for part in parts:
            self._spend(len(part))
            for term, coefficient in part.items():
                total[term] = total.get(term, Fraction(0)) + coefficient
        return {term: coefficient for term, coefficient in total.items() if coefficient}

    def _product(self, a: Sum, b: Sum) -> Sum:
        self._spend(len(a) * len(b))
        return self._sum(
            self._term_product(left, x, right, y) for left, x in a.items() for right, y in b.items()
        )

    def _term_product(self, a: Term, x: Fraction, b: Term, y: Fraction) -> Sum:
        exponents = dict(a)
        for name, exponent in b:
            exponents[name] = exponents.get(name, Fraction(0)) + exponent
        self._spend(len(exponents))
        coefficient, expanded = x * y, constant(1)
        for name, exponent in exponents.items():
            whole = floor(exponent)
            if whole and name[0] == "#":
                coefficient *= Fraction(int(name[1:])) ** whole
                exponents[name] = exponent - whole
            elif whole > 0 and name in self._sums:
                expanded = self.multiply(expanded, self._whole_power(self._sums[name], whole))
                exponents[name] = exponent - whole
        if max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length()) > 2 * _MAX_BITS:
            raise UnreadableError("a number that is too long")
        term = tuple(sorted((name, exponent) for name, exponent in exponents.items() if exponent))
        if expanded.bottom != _ONE:
            raise UnreadableError("a root of a sum in a denominator")
        return (
            {term: coefficient} if expanded.top == _ONE else self._product({term: coefficient}, expanded.top)
        )

    def _factor(self, name: str, exponent: Fraction) -> Expression:
        ((((name, _),), _),) = symbol(name).top.items()
        return Expression(self._product({((name, exponent),): Fraction(1)}, _ONE))

    def _scaled(self, a: Expression, factor: Fraction | int) -> Expression:
        return Expression({term: coefficient * factor for term, coefficient in a.top.items()}, a.bottom)

    def _content(self, a: Expression) -> Fraction:
        """The positive number that leaves coprime whole coefficients when it is divided out."""
        self._spend(len(a.top))
        numerator, denominator = 0, 1
        for coefficient in a.top.values():
            numerator = gcd(numerator, coefficient.numerator)
            denominator = denominator * coefficient.denominator // gcd(denominator, coefficient.denominator)
            if denominator.bit_length() > _MAX_BITS:
                raise UnreadableError("a number that is too long")
        return Fraction(numerator, denominator)

    def _factorized(self, value: Fraction) -> list[tuple[int, int]]:
        """Primes and exponents of a positive number; what has no small prime counts as one."""
        upper, lower = self._primes(value.numerator), self._primes(value.denominator)
        return [*upper, *((prime, -n) for prime, n in lower)]

    def _primes(self, number: int) -> list[tuple[int, int]]:
        found = []
        if number > 1:
            self._spend(50)
        for prime in _SMALL_PRIMES:
            n = 0
            while number % prime == 0:
                number, n = number // prime, n + 1
            if n:
                found.append((prime, n))
            if number < prime * prime:
                break
        side = isqrt(number)
        return [*found, (side, 2) if side * side == number else (number, 1)] if number > 1 else found

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise UnreadableError("too much to work out")


def _write(terms: Sum) -> str:
    written = (
        "*".join([str(coefficient), *(name if n == 1 else f"{name}^({n})" for name, n in term)])
        for term, coefficient in sorted(terms.items())
    )
    return "+".join(written) or "0"
