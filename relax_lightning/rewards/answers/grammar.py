r"""From the tokens of an answer to its value, by recursive descent of bounded depth.

What has two readings (`1/2x`, `2\frac{4}{3}`, a dash that may be `to` or minus) has no value: `UnreadableError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from relax_lightning.rewards.answers.algebra import (
    Expression,
    UnreadableError,
    constant,
    symbol,
)
from relax_lightning.rewards.answers.operands import Operands, expression
from relax_lightning.rewards.answers.statements import joined, stated
from relax_lightning.rewards.answers.tokens import Token
from relax_lightning.rewards.answers.values import Group, Infinity, Value

_MAX_DEPTH = 40
_MAX_EXPONENT = 2_000
_WORD = 4
_LONG_WORD = 5
_EN_DASH = "\u2013"
_END = Token("end", "")
_RELATIONS = {"=", "!=", "<", ">", "<=", ">=", "approx", "in"}
_SEPARATORS = {",", ";", "and", "or"}
_CLOSING = {")": ")", "]": "]", "[": ")"}
_APPLIED = set("fghFGHP")
_STARTS = {"(", "[", "{", "\\{", "<<", "|", "floor", "ceil", "infinity", "empty", "begin", "angle"}
_WHOLE = re.compile(r"\d+")


def parse(tokens: Sequence[Token]) -> Value:
    """The value that all tokens together have.

    Raises:
        UnreadableError: There is none, or it is not sure which.
    """
    return _Grammar(_apart(tokens)).whole()


def _apart(tokens: Sequence[Token]) -> list[Token]:
    """Letters that stand beside each other are a product, but for long words, and words before an equals sign."""
    out: list[Token] = []
    signs = [token.text for token in tokens]
    start = signs.index("=") if "=" in signs else 0
    before = tokens[:start]
    if all(token.kind in ("letters", "unit") for token in before) and any(
        len(t.text) >= _WORD for t in before
    ):
        out, tokens = [Token("name", "_".join(token.text for token in before))], tokens[start:]
    for token in tokens:
        if token.kind != "letters":
            out.append(token)
        elif len(token.text) >= _LONG_WORD or not token.text.isascii():
            out.append(Token("name", token.text, token.is_spaced))
        else:
            first, *more = token.text
            out += [Token("name", first, token.is_spaced), *(Token("name", letter) for letter in more)]
    return out


class _Grammar(Operands):
    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._depth = 0
        self._bars = 0
        self._brackets = 0
        self._plus_minus = 1
        self._num_plus_minus = 0

    def whole(self) -> Value:
        items = self._list()
        value = self._over(items[0]) if len(items) == 1 else joined(items)
        if self._at < len(self._tokens):
            raise UnreadableError(f"{self._peek().text} is left over")
        return value

    # --- lists and statements ---------------------------------------------------------------------------------------

    def _list(self) -> list[Value]:
        items: list[Value] = []
        separators = set()
        while True:
            items += self._both_signs() if self._depth == 0 else [self._statement()]
            if not self._sees(*_SEPARATORS):
                return items
            sign = self._take().text
            separators.add(sign)
            if sign in (",", ";"):
                self._accepts("and", "or")
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
        while self._sees(*_RELATIONS) or (self._peek().kind, self._peek().text) == ("command", "not"):
            if self._peek().text == "not":
                self._take()
                self._expect("=")
                signs.append("!=")
            else:
                signs.append(self._take().text)
            parts.append(self._union())
        return stated(self._algebra, parts, signs)

    def _union(self) -> Value:
        value = self._sum()
        while True:
            sign = self._peek().text
            if isinstance(value, Group) and self._peek().kind == "name" and sign == "U":
                sign = "cup"
            elif not self._sees("cup", "cap", "setminus"):
                return value
            self._take()
            right = self._sum()
            same_kind = isinstance(value, Group) and value.kind == sign != "setminus"
            value = Group(
                sign, (*value.items, right) if isinstance(value, Group) and same_kind else (value, right)
            )

    # --- arithmetic -------------------------------------------------------------------------------------------------

    def _sum(self) -> Value:
        sign = self._sign(("+", "-", _EN_DASH, "pm", "mp"))
        value = self._term()
        if sign < 0:
            value = Infinity(-value.sign) if isinstance(value, Infinity) else self._negative(value)
        while self._sees("+", "-", "pm", "mp"):
            sign = self._sign(("+", "-", "pm", "mp"))
            if self._sees("-", "+") and not self._peek().is_spaced and self._tokens[self._at - 1].text == "+":
                raise UnreadableError("+- may be plus or minus")
            sign *= self._sign(("+", "-"))
            term = expression(self._term())
            value = self._algebra.add(expression(value), self._algebra.negative(term) if sign < 0 else term)
        return value

    def _sign(self, allowed: tuple[str, ...]) -> int:
        if not self._sees(*allowed):
            return 1
        sign = self._take().text
        if sign in ("pm", "mp"):
            self._num_plus_minus += 1
            return self._plus_minus if sign == "pm" else -self._plus_minus
        return 1 if sign == "+" else -1

    def _negative(self, value: Value) -> Expression:
        return self._algebra.negative(expression(value))

    def _term(self) -> Value:
        value = self._factor()
        is_after_slash = False
        while True:
            if self._sees("*", "/"):
                is_after_slash = self._take().text == "/"
                sign = self._sign(("+", "-"))
                factor = expression(self._factor())
                factor = self._algebra.negative(factor) if sign < 0 else factor
                combine = self._algebra.divide if is_after_slash else self._algebra.multiply
                value = combine(expression(value), factor)
            elif isinstance(value, Expression) and self._starts_factor():
                if is_after_slash:
                    raise UnreadableError("a/bc may be (a/b)c or a/(bc)")
                value = self._algebra.multiply(value, expression(self._factor()))
            else:
                return value

    def _starts_factor(self) -> bool:
        token = self._peek()
        if token.kind == "number":
            raise UnreadableError("a number after another factor")
        if token.kind != "sign":
            return token.kind in ("name", "function", "command", "unit") and token.text != "not"
        if token.text == "{" and self._peek(1).kind == "number":
            raise UnreadableError("a number after another factor")
        is_closing = (token.text == "|" and self._bars) or (token.text == "[" and self._brackets)
        return token.text in _STARTS and not is_closing

    def _factor(self) -> Value:
        value = self._operand()
        if self._accepts("!"):
            value = self._algebra.counted("factorial", [expression(value)])
        if self._accepts("^"):
            value = self._algebra.power(expression(value), self._exponent())
        if self._sees("^", "!", "'", "_"):
            raise UnreadableError(f"a second {self._peek().text}")
        return value

    def _exponent(self) -> Expression:
        if self._sees("{"):
            return expression(self._operand())
        sign = self._sign(("+", "-"))
        value = self._number() if self._peek().kind == "number" else self._operand()
        return self._negative(value) if sign < 0 else expression(value)

    # --- brackets ---------------------------------------------------------------------------------------------------

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
        if token.kind == "unit":
            return symbol(f"unit {self._take().text}")
        if token.kind == "function":
            return self._function(self._take().text)
        if token.kind == "command":
            return self._command(self._take().text)
        if token.kind == "sign" and token.text in (*_STARTS, "]"):
            return self._bracketed(self._take().text)
        raise UnreadableError(f"{token.text or 'the end'} where a value was wanted")

    def _bracketed(self, opening: str) -> Value:
        if opening == "infinity":
            return Infinity(1)
        if opening == "empty":
            return Group("{}", ())
        if opening == "angle":
            return symbol("angle " + self._letters())
        if opening == "begin":
            return self._rows()
        if opening in ("|", "floor", "ceil"):
            return self._rounded(opening)
        if opening == "{":
            return self._braces()
        if opening in ("\\{", "<<"):
            return self._set("\\}" if opening == "\\{" else ">>")
        return self._tuple(opening)

    def _tuple(self, opening: str) -> Value:
        """What stands in round or square brackets; `]1, 2[` is the interval (1, 2)."""
        is_square = opening in ("[", "]")
        self._brackets += is_square
        items = self._list()
        closing = self._take()
        self._brackets -= is_square
        if closing.kind != "sign" or closing.text not in _CLOSING or (closing.text == "[" and not is_square):
            raise UnreadableError("an open bracket")
        if len(items) == 1:
            if (opening, closing.text) not in (("(", ")"), ("[", "]")):
                raise UnreadableError("brackets that do not match")
            return items[0]
        return Group(("(" if opening == "]" else opening) + _CLOSING[closing.text], tuple(items))

    def _set(self, closing: str) -> Value:
        items = [] if self._sees(closing) else self._list()
        self._expect(closing)
        if closing == ">>":
            return Group("<>", tuple(items))
        return Group("{}", tuple({item.text: item for item in items}.values()))

    def _braces(self) -> Value:
        items = self._list()
        if len(items) > 1:
            self._expect("}")
            return Group("{}", tuple({item.text: item for item in items}.values()))
        value = self._over(items[0])
        self._expect("}")
        return value

    def _over(self, top: Value) -> Value:
        if not self._sees("over", "choose"):
            return top
        sign = self._take().text
        parts = [expression(top), expression(self._sum())]
        return self._algebra.divide(*parts) if sign == "over" else self._algebra.counted("binomial", parts)

    def _rounded(self, opening: str) -> Expression:
        self._bars += opening == "|"
        inner = expression(self._sum())
        self._expect("|" if opening == "|" else f"{opening} end")
        self._bars -= opening == "|"
        number = inner.number
        if number is None:
            return symbol(f"{opening}({inner.text})")
        rounded = {"|": abs(number), "floor": number // 1, "ceil": -(-number // 1)}
        return constant(rounded[opening])

    def _rows(self) -> Group:
        self._expect("matrix") if self._sees("matrix") else None
        rows: list[list[Value]] = [[]]
        while not self._accepts("end"):
            rows[-1].append(self._statement())
            if self._accepts("\\\\") and not self._sees("end"):
                rows.append([])
            elif not self._sees("end"):
                self._expect("&")
        return Group("rows", tuple(Group("()", tuple(row)) for row in rows))
