r"""The words of an answer: TeX, plain text and the signs of other languages, in one pass.

What only shapes the page is left out (`$`, `\left`, `\,`, `\mathbf`), and what is written in several ways comes out in
one (`\dfrac`, `\le` and `<=`, superscripts, full-width digits). No word is moved or changed by its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from relax_lightning.rewards.answers.vocabulary import MEANINGS, plain, unit_of

_LONG_WORD = 4


class Token(NamedTuple):
    """One word or sign."""

    kind: str
    """number, letters, name, function, command, unit, currency, sign; `other` is not understood."""
    text: str
    is_spaced: bool = False
    """Whether white space stands before it."""


def tokenize(text: str) -> list[Token]:
    """The tokens of an answer, in time linear in its length."""
    return _scan(plain(text), is_upright=False)


def with_products(tokens: Sequence[Token]) -> list[Token]:
    r"""Letters that stand beside each other are a product, but for long words and the corners of an `\angle`."""
    out: list[Token] = []
    for token in tokens:
        before = out[-1].text if out else ""
        is_word = len(token.text) >= _LONG_WORD or not token.text.isascii()
        if token.kind != "letters":
            out.append(token)
        elif token.text == "U" and before in (")", "]"):
            out.append(Token("sign", "cup"))
        elif is_word or before == "angle":
            out.append(token._replace(kind="name"))
        else:
            first, *more = token.text
            out += [Token("name", first, token.is_spaced), *(Token("name", letter) for letter in more)]
    return out


_TEXT = r"text|textrm|textbf|textit|textsf|textnormal|mathrm|operatorname|mbox|hbox|emph"
_LAYOUT = (
    r"left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|quad|qquad|rm|bf|it|mathbf|mathit|mathsf|bm"
    r"|boldsymbol|ensuremath|underline|boxed|fbox|framebox"
)
_TOKEN = re.compile(
    rf"""
    \\(?:{_TEXT})\*?\s*(?P<upright> \{{(?P<content>[^{{}}\\]*)\}} )
    | (?P<skip> \s+ | \\(?:{_TEXT}|{_LAYOUT})(?![A-Za-z])\*?
        | \\[,;:!()\[\]\ ] | \$ | ~ | ` )
    | (?P<digits> (?:\d|\.\d)
        (?: [\d.] | ,(?:\\!)?(?=\d) | \{{,\}}(?=\d) | '(?=\d{{3}}) | (?:\\,|\\\ |\s)(?=\d{{3}}(?!\d|\s*/)) )*
        (?:[eE][-+]?\d+(?![\d.]))? )
    | (?P<letters> [^\W\d_]+ )
    | (?P<command> \\(?:begin|end)\s*\{{[pb]matrix\}} | \^\s*(?:\{{\s*\\circ\s*\}}|\\circ(?![A-Za-z]))
        | \\not\s*= | \\\$ | [€£¥₹°] | \\[A-Za-z]+ )
    | (?P<sign> \*\* | <= | >= | != | <> | == | \\[{{}}%\\&] | [-+*/^_!'(){{}}\[\]|,;<>=%&.\u2013] )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def _scan(text: str, *, is_upright: bool) -> list[Token]:
    tokens: list[Token] = []
    depth = end = 0
    for match in _TOKEN.finditer(text):
        kind, word, is_spaced = str(match.lastgroup), match.group(), match.start() > end
        if kind == "skip":
            continue
        end = match.end()
        if kind == "upright":
            inner = _scan(match["content"], is_upright=True)
            is_spaced = is_spaced or match["content"][:1].isspace()
            tokens += [inner[0]._replace(is_spaced=is_spaced), *inner[1:]] if inner else []
        elif kind == "digits":
            tokens += _numbers(word, is_spaced, is_list=depth > 0)
        else:
            token = Token(*_meaning(kind, word, is_upright), is_spaced)
            tokens.append(token)
            depth += (token.text in ("(", "[", "\\{")) - (token.text in (")", "]", "\\}"))
    return tokens


def _meaning(kind: str, word: str, is_upright: bool) -> tuple[str, str]:
    """Kind and text of the token that the regular expression found as `kind`."""
    is_letters = kind == "letters"
    known = MEANINGS.get(word.casefold() if is_letters else "".join(word.split()))
    if known is not None:
        return known
    unit = unit_of(word, is_upright) if is_letters else None
    return ("unit", unit) if unit else ("other" if kind == "command" else kind, word)


_PLAIN_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_GROUPED = re.compile(r"\d{1,3}(?:(,(?:\\!)?|\{,\}|'|\\,|\\ |\s)\d{3}(?:\1\d{3})*(?:\.\d*)?|(?:\.\d{3}){2,})")
_DECIMAL_COMMA = re.compile(r"\d+\{,\}\d+")
_NO_DIGIT = re.compile(r"[^\d.]+")
_COMMA = re.compile(r"(?<!\{)(,)")
_GAP = re.compile(r"(?:\\,|\\ |\s)+")


def _numbers(run: str, is_spaced: bool, *, is_list: bool) -> list[Token]:
    """The numbers of a run of digits, commas, points and gaps. Within brackets a comma stands between two numbers."""
    whole = None if is_list and _COMMA.search(run) else _number(run)
    if whole is not None:
        return [Token("number", whole, is_spaced)]
    tokens = []
    for part in _COMMA.split(run):
        if part == ",":
            tokens.append(Token("sign", ","))
            continue
        pieces = _GAP.split(part) if _number(part) is None else [part]
        for place, piece in enumerate(pieces):
            number = _number(piece)
            is_apart = place > 0 or (is_spaced and not tokens)
            tokens.append(Token("other" if number is None else "number", number or piece, is_apart))
    return tokens


def _number(text: str) -> str | None:
    """Digits with at most one point, and an exponent; None for what is no number, or more than one."""
    if _PLAIN_NUMBER.fullmatch(text):
        return text
    grouped = _GROUPED.fullmatch(text)
    if grouped:
        return _NO_DIGIT.sub("", text) if grouped[1] else text.replace(".", "")
    return text.replace("{,}", ".") if _DECIMAL_COMMA.fullmatch(text) else None
