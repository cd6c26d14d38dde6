r"""From the tokens of an answer to its value, by recursive descent of bounded depth.

What has two readings (`1/2x`, `2\frac{4}{3}`, a dash that may be `to` or minus) has no value: `UnreadableError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from math import comb, factorial

from relax_lightning.rewards.answers.algebra import Algebra, Expression, UnreadableError, constant, symbol
from relax_lightning.rewards.answers.tokens import Token, with_products
from relax_lightning.rewards.answers.values import Group, Value, Words, joined, stated

_MAX_DEPTH = 40
_MAX_DIGITS = 4_000
_MAX_EXPONENT = 2_000
_MAX_COUNTED = 500
_EN_DASH = "\u2013"
_END = Token("end", "")
_RELATIONS = ("=", "!=", "<", ">", "<=", ">=", "approx", "in")
_APPLIED = re.compile("[fghFGHP]")
_STARTS = ("(", "[", "{", "\\{", "infinity", "empty", "begin")
_WHOLE = re.compile(r"\d+")


def parse(tokens: Sequence[Token]) -> Value:
    """The value that all tokens together have.

    Raises:
        UnreadableError: There is none, or it is not sure which.
    """
    return _Parser(with_products(tokens)).whole()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._plus_minus = 1
        self._num_plus_minus = 0
        self._algebra = Algebra()

    def whole(self) -> Value:
        items, separators = self._list()
        value = self._over(items[0]) if len(items) == 1 else joined(items, separators)
        if self._at < len(self._tokens):
            raise UnreadableError(f"{self._peek().text} is left over")
        return value

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _take(self) -> Token:
        token = self._peek()
        self._at += 1
        return token

    def _sees(self, *signs: str) -> bool:
        token = self._peek()
        return token.kind == "sign" and token.text in signs

    def _accepts(self, *signs: str) -> bool:
        found = self._sees(*signs)
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._accepts(sign):
            raise UnreadableError(f"{sign} is missing")

    def _raw(self) -> str:
        """The next token or group, as it is written."""
        opening = self._take().text
        if opening not in ("{", "("):
            return opening
        closing = {"{": "}", "(": ")"}[opening]
        words, depth = [], 1
        while depth:
            token = self._take()
            if token is _END:
                raise UnreadableError("an open bracket")
            depth += (token.text == opening) - (token.text == closing)
            words.append(token.text)
        return (" " if opening == "(" else "").join(words[:-1])

    # --- lists and statements -----------------------------------------------------------------------------------------

    def _list(self) -> tuple[list[Value], set[str]]:
        """The items, and the signs and words between them."""
        items: list[Value] = []
        separators: set[str] = set()
        allowed = (",", ";") if self._depth else (",", ";", "and", "or")
        while True:
            items += [self._statement()] if self._depth else self._both_signs()
            if not self._sees(*allowed):
                return items, separators
            separators.add(self._take().text)
            if not self._depth and self._sees("and", "or"):
                separators.add(self._take().text)
            if {",", ";"} <= separators:
                raise UnreadableError("commas and semicolons")

    def _both_signs(self) -> list[Value]:
        """A statement; with plus-minus in it, one for each sign."""
        start, self._num_plus_minus, self._plus_minus = self._at, 0, 1
        values = [self._statement()]
        if self._num_plus_minus > 1:
            raise UnreadableError("several signs of plus or minus")
        if self._num_plus_minus:
            self._at, self._plus_minus = start, -1
            values.append(self._statement())
        return values

    def _statement(self) -> Value:
        parts, signs = [self._union()], []
        while self._sees(*_RELATIONS):
            signs.append(self._take().text)
            parts.append(self._union())
        return stated(self._algebra, parts, signs)

    def _union(self) -> Value:
        items = [self._sum()]
        while self._accepts("cup"):
            items.append(self._sum())
        return items[0] if len(items) == 1 else Group("cup", tuple(items))

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def _sum(self) -> Value:
        sign = self._sign("+", "-", _EN_DASH, "pm")
        value = self._term()
        if sign < 0:
            value = Words(f"-{value.text}") if isinstance(value, Words) else self._negative(value)
        while self._sees("+", "-", "pm"):
            sign = self._sign("+", "-", "pm")
            term = self._term()
            term = expression(term) if sign > 0 else self._negative(term)
            value = self._algebra.add(expression(value), term)
        return value

    def _sign(self, *allowed: str) -> int:
        if not self._sees(*allowed):
            return 1
        sign = self._take().text
        if sign == "pm":
            self._num_plus_minus += 1
            return self._plus_minus
        return 1 if sign == "+" else -1

    def _negative(self, value: Value) -> Expression:
        return self._algebra.negative(expression(value))

    def _term(self) -> Value:
        value = self._factor()
        is_after_slash = False
        while True:
            if self._sees("*", "/"):
                is_after_slash = self._take().text == "/"
                combine = self._algebra.divide if is_after_slash else self._algebra.multiply
                value = combine(expression(value), expression(self._factor()))
            elif isinstance(value, Expression) and self._starts_factor():
                if is_after_slash:
                    raise UnreadableError("a/bc may be (a/b)c or a/(bc)")
                value = self._algebra.multiply(value, expression(self._factor()))
            else:
                return value

    def _starts_factor(self) -> bool:
        token = self._peek()
        is_braced_number = self._sees("{") and self._peek(1).kind == "number"
        if token.kind == "number" or is_braced_number:
            raise UnreadableError("a number after another factor")
        return token.kind in ("name", "function", "command") or self._sees(*_STARTS)

    def _factor(self) -> Value:
        value = self._operand()
        if self._accepts("!"):
            value = constant(factorial(_small(value)))
        if self._accepts("^"):
            value = self._algebra.power(expression(value), self._exponent())
        if self._sees("^", "!", "'", "_"):
            raise UnreadableError(f"a second {self._peek().text}")
        return value

    def _exponent(self) -> Expression:
        sign = self._sign("+", "-")
        value = self._number() if self._peek().kind == "number" else self._operand()
        return expression(value) if sign > 0 else self._negative(value)

    def _operand(self) -> Value:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadableError("nested too deeply")
        value = self._unsigned()
        self._depth -= 1
        return value

    def _unsigned(self) -> Value:
        token = self._peek()
        if token.kind == "number":
            return self._number_with_fraction()
        if token.kind == "name":
            return self._name()
        if token.kind == "function":
            return self._function(self._take().text)
        if token.kind == "command":
            return self._command(self._take().text)
        if self._sees(*_STARTS):
            return self._bracketed(self._take().text)
        raise UnreadableError(f"{token.text or 'the end'} where a value was wanted")

    # --- brackets -----------------------------------------------------------------------------------------------------

    def _bracketed(self, opening: str) -> Value:
        if opening == "infinity":
            return Words("infinity")
        if opening == "empty":
            return Group("{}", ())
        if opening == "begin":
            return self._rows()
        items = [] if opening == "\\{" and self._sees("\\}") else self._list()[0]
        if opening == "{" and len(items) == 1:
            items = [self._over(items[0])]
        kind = opening + self._take().text
        if kind == "\\{\\}" or (kind == "{}" and len(items) > 1):
            named = {(getattr(item, "name", None), item.text): item for item in items}
            return Group("{}", tuple(named.values()))
        if kind in ("{}", "()", "[]") and len(items) == 1:
            return items[0]
        if kind not in ("()", "[]", "(]", "[)") or len(items) == 1:
            raise UnreadableError("brackets that do not match")
        return Group(kind, tuple(items))

    def _over(self, top: Value) -> Value:
        if not self._accepts("over"):
            return top
        return self._algebra.divide(expression(top), expression(self._sum()))

    def _rows(self) -> Group:
        rows: list[list[Value]] = [[]]
        while not self._accepts("end"):
            rows[-1].append(self._statement())
            if self._accepts("\\\\") and not self._sees("end"):
                rows.append([])
            elif not self._sees("end"):
                self._expect("&")
        return Group("rows", tuple(Group("()", tuple(row)) for row in rows))

    # --- numbers and names --------------------------------------------------------------------------------------------

    def _number(self) -> Expression:
        text = self._take().text
        exponent = text.lower().partition("e")[2]
        is_long = len(text) > _MAX_DIGITS or len(exponent) > len(str(_MAX_EXPONENT)) + 1
        if is_long or abs(int(exponent or 0)) > _MAX_EXPONENT:
            raise UnreadableError("a number that is too long")
        return constant(Fraction(text))

    def _number_with_fraction(self) -> Expression:
        r"""A number, a mixed number such as `2\frac{1}{3}` or `2 1/3`, or a decimal with a period."""
        text = self._peek().text
        value = self._number()
        following = self._peek()
        if following[:2] == ("command", "overline") and "." in text:
            return self._algebra.add(value, self._period(len(text.partition(".")[2])))
        if not _WHOLE.fullmatch(text):
            return value
        if following[:2] == ("command", "frac"):
            return self._mixed(value)
        is_quotient = following.kind == "number" and self._peek(1)[:2] == ("sign", "/")
        return self._spaced_mixed(value) if is_quotient and following.is_spaced else value

    def _mixed(self, whole: Expression) -> Expression:
        start = self._at + 1
        fraction = expression(self._operand())
        if self._sees("^", "!"):
            raise UnreadableError("a power of a fraction without brackets")
        if fraction.number is None:
            return self._algebra.multiply(whole, fraction)
        if not all(re.fullmatch(r"\d+|[{}]", token.text) for token in self._tokens[start : self._at]):
            raise UnreadableError("a number before a fraction that is to be worked out")
        return self._with_part(whole, fraction)

    def _spaced_mixed(self, whole: Expression) -> Expression:
        top = self._number()
        self._expect("/")
        bottom = self._number() if self._peek().kind == "number" else constant(0)
        value = self._with_part(whole, self._algebra.divide(top, bottom))
        if self._starts_factor() or self._sees("^", "!", "/"):
            raise UnreadableError("a factor after a mixed number")
        return value

    def _with_part(self, whole: Expression, fraction: Expression) -> Expression:
        if fraction.number is None or not 0 < fraction.number < 1:
            raise UnreadableError("a mixed number with an improper fraction")
        return self._algebra.add(whole, fraction)

    def _period(self, num_decimals: int) -> Expression:
        self._take()
        text = self._raw()
        if not _WHOLE.fullmatch(text) or len(text) + num_decimals > _MAX_EXPONENT:
            raise UnreadableError("a period that is no number")
        return constant(Fraction(int(text), (10 ** len(text) - 1) * 10**num_decimals))

    def _name(self) -> Expression:
        r"""A name with its index and primes; of a function such as `f`, with what it is applied to."""
        letter = name = self._take().text
        if self._accepts("_"):
            name += f"_{self._raw()}"
        while self._accepts("'"):
            name += "'"
        if _APPLIED.fullmatch(letter):
            inverse = [token.text for token in self._tokens[self._at : self._at + 6]]
            if inverse == ["^", "{", "-", "1", "}", "("]:
                self._at += len(inverse) - 1
                name += "^{-1}"
            name += f"({self._raw()})" if self._sees("(") else ""
        return symbol(name)

    # --- commands and functions ---------------------------------------------------------------------------------------

    def _command(self, name: str) -> Expression:
        if name == "frac":
            return self._algebra.divide(self._argument(), self._argument())
        if name == "binom":
            return constant(comb(_small(self._argument()), _small(self._argument())))
        if name == "sqrt":
            return self._root()
        if name == "radical":
            return self._radical()
        return symbol(f"{name} {self._raw()}")

    def _argument(self) -> Expression:
        """What TeX takes for the argument of a command: a group, a digit, a letter, or a command with its own."""
        token = self._peek()
        if token.kind == "number" and token.text.isdigit():
            pieces = (token.text[0], token.text[1:])
            self._tokens[self._at : self._at + 1] = [Token("number", piece) for piece in pieces if piece]
            return self._number()
        if token.kind == "name":
            return symbol(self._take().text)
        if token.kind == "command" or self._sees("{"):
            return expression(self._operand())
        raise UnreadableError(f"{token.text} without braces")

    def _root(self) -> Expression:
        index = 2
        if self._accepts("["):
            index = _small(self._sum())
            self._expect("]")
        return self._algebra.root(self._argument(), index)

    def _radical(self) -> Expression:
        """The sign, which does not say where its root ends."""
        is_bracketed = self._sees("(", "{")
        value = self._algebra.root(expression(self._operand()), 2)
        if not is_bracketed and (self._peek().kind == "name" or self._sees("^", "!", "(")):
            raise UnreadableError("a root that may end in two places")
        return value

    def _function(self, name: str) -> Expression:
        if name == "log" and self._accepts("_"):
            name += f"_{self._raw()}"
        power = self._exponent() if self._accepts("^") else constant(1)
        if power.number == -1:
            raise UnreadableError("a power of -1 that may be the inverse function")
        return self._algebra.power(symbol(f"{name}({self._function_argument().text})"), power)

    def _function_argument(self) -> Expression:
        """What stands in brackets, else the one factor that follows."""
        if self._sees("(", "{"):
            return expression(self._operand())
        value = expression(self._factor())
        following = self._peek()
        if following.kind in ("name", "number", "command") or self._sees("/", "(", "[", "{"):
            raise UnreadableError("a function whose argument may end in two places")
        return value


def expression(value: Value) -> Expression:
    """The value, where it is one that can be computed with."""
    if not isinstance(value, Expression):
        raise UnreadableError("arithmetic with something that is no number")
    return value


def _small(value: Value) -> int:
    """A whole number from 0 to 500, to count with."""
    number = value.number if isinstance(value, Expression) else None
    if number is None or number.denominator != 1 or not 0 <= number <= _MAX_COUNTED:
        raise UnreadableError("no small whole number")
    return int(number)
