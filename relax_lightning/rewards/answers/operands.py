"""The operands of an answer: numbers, names, and commands and functions with their arguments."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from fractions import Fraction

from relax_lightning.rewards.answers.algebra import (
    Algebra,
    Expression,
    UnreadableError,
    constant,
    digits,
    symbol,
)
from relax_lightning.rewards.answers.tokens import Token
from relax_lightning.rewards.answers.values import Value

_MAX_EXPONENT = 2_000
_APPLIED = set("fghFGHP")
_INVERSE = ["^", "{", "-", "1", "}", "("]
_WHOLE = re.compile(r"\d+")
_END = Token("end", "")


class Operands(ABC):
    """Reads what `Grammar` puts together; the two call each other, since an argument is an expression again."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._algebra = Algebra()

    @abstractmethod
    def _list(self) -> list[Value]: ...

    @abstractmethod
    def _statement(self) -> Value: ...

    @abstractmethod
    def _factor(self) -> Value: ...

    @abstractmethod
    def _exponent(self) -> Expression: ...

    @abstractmethod
    def _operand(self) -> Value: ...

    @abstractmethod
    def _starts_factor(self) -> bool: ...

    # --- tokens -----------------------------------------------------------------------------------------------------

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

    # --- numbers and names ------------------------------------------------------------------------------------------

    def _number(self) -> Expression:
        text = self._take().text
        mantissa, _, exponent = text.lower().partition("e")
        if _WHOLE.fullmatch(text):
            value = digits(text)
        elif len(mantissa) > _MAX_EXPONENT or len(exponent) > 5 or abs(int(exponent or 0)) > _MAX_EXPONENT:
            raise UnreadableError("a number that is too long")
        else:
            value = constant(Fraction(text))
        if self._accepts("_"):
            return symbol(f"{text} in base {self._raw()}")
        return value

    def _number_with_fraction(self) -> Expression:
        r"""A number, a mixed number such as `2\frac{1}{3}` or `2 1/3`, or a decimal with a period."""
        is_whole = _WHOLE.fullmatch(self._peek().text) is not None
        text = self._peek().text
        value = self._number()
        following = self._peek()
        if following.kind == "command" and following.text in ("overline", "dot") and "." in text:
            return self._algebra.add(value, self._period(len(text.partition(".")[2])))
        if is_whole and (following.kind, following.text) == ("command", "frac"):
            is_literal = self._is_literal_fraction()
            fraction = expression(self._operand())
            if self._sees("^", "!"):
                raise UnreadableError("a power of a fraction without brackets")
            return self._mixed(value, fraction) if is_literal else self._algebra.multiply(value, fraction)
        if (
            is_whole
            and following.kind == "number"
            and following.is_spaced
            and self._peek(1)[:2] == ("sign", "/")
        ):
            return self._spaced_mixed(value)
        return value

    def _spaced_mixed(self, whole: Expression) -> Expression:
        top = self._number()
        self._expect("/")
        if self._peek().kind != "number":
            raise UnreadableError("half a fraction")
        value = self._mixed(whole, self._algebra.divide(top, self._number()))
        if self._starts_factor() or self._sees("^", "!", "/"):
            raise UnreadableError("a factor after a mixed number")
        return value

    def _mixed(self, whole: Expression, fraction: Expression) -> Expression:
        part = fraction.number
        if part is None or not 0 < part < 1:
            raise UnreadableError("a mixed number with an improper fraction")
        return self._algebra.add(whole, fraction)

    def _is_literal_fraction(self) -> bool:
        r"""Whether the next is `\frac` of two whole numbers."""
        kinds = [self._peek(ahead) for ahead in range(1, 7)]
        text = " ".join("0" if _WHOLE.fullmatch(t.text) else t.text for t in kinds)
        return (
            re.match(r"(0|\{ 0 \}) (0|\{ 0 \})", text) is not None
            or _WHOLE.fullmatch(kinds[0].text) is not None
        )

    def _period(self, num_decimals: int) -> Expression:
        self._take()
        text = self._raw()
        if not _WHOLE.fullmatch(text) or len(text) + num_decimals > _MAX_EXPONENT:
            raise UnreadableError("a period that is no number")
        return constant(Fraction(int(text), (10 ** len(text) - 1) * 10**num_decimals))

    def _name(self) -> Expression:
        token = self._take()
        name = token.text
        if self._accepts("_"):
            name += f"_{self._raw()}"
        while self._accepts("'"):
            name += "'"
        if token.text in _APPLIED and [t.text for t in self._tokens[self._at : self._at + 6]] == _INVERSE:
            self._at += len(_INVERSE) - 1
            name += "^-1"
        if token.text in _APPLIED and self._sees("("):
            arguments = self._arguments()
            return symbol(f"{name}({','.join(argument.text for argument in arguments)})")
        return symbol(name)

    def _raw(self) -> str:
        """The next token or group, as it is written."""
        if not self._accepts("{"):
            return self._take().text
        words, depth = [], 1
        while depth and self._peek() is not _END:
            token = self._take()
            depth += (token.text == "{") - (token.text == "}")
            words.append(token.text)
        if depth:
            raise UnreadableError("an open brace")
        return "".join(words[:-1])

    def _arguments(self) -> list[Value]:
        self._expect("(")
        items = self._list()
        self._expect(")")
        return items

    def _letters(self) -> str:
        letters = ""
        while self._peek().kind == "name":
            letters += self._take().text
        return letters

    # --- commands and functions -------------------------------------------------------------------------------------

    def _command(self, name: str) -> Expression:
        if name in ("frac", "binom"):
            top, bottom = self._two_arguments()
            return (
                self._algebra.divide(top, bottom)
                if name == "frac"
                else self._algebra.counted("binomial", [top, bottom])
            )
        if name == "sqrt":
            return self._root()
        if name == "radical":
            return self._radical()
        if name == "not":
            raise UnreadableError("\\not where a value was wanted")
        return symbol(f"{name} {self._raw()}")

    def _radical(self) -> Expression:
        """The sign, which does not say where its root ends."""
        is_bracketed = self._sees("(", "{")
        value = self._algebra.root(expression(self._operand()), 2)
        if not is_bracketed and (self._peek().kind == "name" or self._sees("^", "!", "(")):
            raise UnreadableError("a root that may end in two places")
        return value

    def _two_arguments(self) -> tuple[Expression, Expression]:
        token = self._peek()
        if token.kind == "number" and len(token.text) == 2 and token.text.isdigit():
            self._take()
            self._refuse_digit()
            return digits(token.text[0]), digits(token.text[1])
        return self._argument(), self._argument(is_last=True)

    def _argument(self, *, is_last: bool = False) -> Expression:
        """What TeX takes for the argument of a command: a group, a digit, a letter, or a command with its own."""
        token = self._peek()
        if token.kind == "number":
            if len(token.text) != 1:
                raise UnreadableError(f"{token.text} without braces, of which TeX takes one digit")
            self._take()
            return digits(token.text)
        if token.kind == "sign" and token.text != "{":
            raise UnreadableError(f"{token.text} without braces")
        value = symbol(self._take().text) if token.kind == "name" else expression(self._operand())
        if is_last:
            self._refuse_digit()
        return value

    def _refuse_digit(self) -> None:
        if self._peek().kind == "number":
            raise UnreadableError("a number after a command without braces")

    def _root(self) -> Expression:
        index = 2
        if self._accepts("["):
            number = expression(self._statement()).number
            self._expect("]")
            if number is None or number.denominator != 1 or not 1 <= number <= 100:
                raise UnreadableError("a root with an index that is no small whole number")
            index = int(number)
        return self._algebra.root(self._argument(is_last=True), index)

    def _function(self, name: str) -> Expression:
        base = self._raw_base() if name == "log" and self._accepts("_") else None
        power = self._exponent() if self._accepts("^") else constant(1)
        if power.number == -1:
            name, power = f"arc{name}", constant(1)
        if name in ("max", "min", "gcd", "lcm"):
            arguments = ",".join(sorted(argument.text for argument in self._arguments()))
            return symbol(f"{name}({arguments})")
        return self._algebra.power(self._applied(name, self._function_argument(), base), power)

    def _raw_base(self) -> Expression:
        token = self._peek()
        return self._number() if token.kind == "number" else expression(self._operand())

    def _applied(self, name: str, argument: Expression, base: Expression | None) -> Expression:
        if name == "sqrt":
            return self._algebra.root(argument, 2)
        if name == "exp":
            return self._algebra.power(symbol("e"), argument)
        if name == "lg" or base is not None:
            logarithms = [self._algebra.logarithm("ln", x) for x in (argument, base or constant(10))]
            return self._algebra.divide(*logarithms)
        if name in ("ln", "log"):
            return self._algebra.logarithm(name, argument)
        return symbol(f"{name}({argument.text})")

    def _function_argument(self) -> Expression:
        """What stands in brackets; else the product up to the next sign."""
        if self._sees("(", "{", "|"):
            return expression(self._operand())
        value = expression(self._factor())
        while self._peek().kind in ("name", "command", "unit"):
            value = self._algebra.multiply(value, expression(self._factor()))
        is_quotient = self._sees("/") and self._peek(1).kind != "function"
        if is_quotient or self._sees("(", "[", "{") or self._peek().kind == "number":
            raise UnreadableError("a function whose argument may end in two places")
        return value


def expression(value: Value) -> Expression:
    """The value, where it is one that can be computed with."""
    if not isinstance(value, Expression):
        raise UnreadableError("arithmetic with something that is no number")
    return value
