"""Reading a final answer: the value, the unit beside it, or the words that it has."""

from __future__ import annotations

import re
from functools import lru_cache

from relax_lightning.rewards.answers.algebra import UnreadableError
from relax_lightning.rewards.answers.parser import parse
from relax_lightning.rewards.answers.tokens import Token, tokenize
from relax_lightning.rewards.answers.values import Answer, Words

_LONGEST = 10_000
"""Characters of an answer that is read; a longer one is compared as text."""
_MOST_TOKENS = 1_000
_WORD_LETTERS = 3
_ANSWER_WORDS = {"yes", "no", "true", "false", "none"}
_MARKDOWN = ("^", "*", "_")
_BETWEEN_WORDS = {",", ".", "-", "'", "and", "or"}
_OF_ANGLES = {"sin", "cos", "tan", "cot", "sec", "csc"}
_BRACED = re.compile(r"\{ (\S) \}")
_UNIT = re.compile(
    r"(?<!/)(?: \{)? @\w+(?: @\w+| / (?:@\w+|[sh])(?!\S)| \^ (?:[23]|\{ [23] \})(?!\S)| \}){0,8}(?: [CF])?$"
)
_SQUARE = re.compile(r"(square|cubic) (\w+)")


@lru_cache(maxsize=256)
def read_answer(text: str) -> Answer:
    """The value and the unit of an answer. One that cannot be read is the words that it has, none for an empty one."""
    if len(text) > _LONGEST:
        return Answer(Words(" ".join(text.split())))
    tokens = _trimmed(tokenize(text))
    if all(token.text in ("{", "}") for token in tokens):
        return Answer(Words(""))
    words = _words(tokens)
    if words is None and len(tokens) <= _MOST_TOKENS:
        try:
            inner, unit = _split_unit(tokens)
            return Answer(parse(inner), unit)
        except UnreadableError:
            pass
    return Answer(
        Words(_BRACED.sub(r"\1", " ".join(token.text for token in tokens)) if words is None else words)
    )


def _trimmed(tokens: list[Token]) -> list[Token]:
    """Without the marks of Markdown at both ends, a final full stop, and braces that close nothing."""
    texts = [token.text for token in tokens]
    num_open = texts.count("{") - texts.count("}")
    start, end = 0, len(texts)
    while start < end and texts[start] in _MARKDOWN:
        start += 1
    while start < end and (texts[end - 1] in (*_MARKDOWN, ".") or (texts[end - 1] == "}" and num_open < 0)):
        end -= 1
        num_open += texts[end] == "}"
        if texts[end - 1 : end + 1] == [".", "."]:
            return tokens[start:]  # an ellipsis
    return tokens[start:end]


def _words(tokens: list[Token]) -> str | None:
    """Of an answer in words, such as `Monday` or `no solution`: in one writing. None for mathematics."""
    is_text = all(token.kind in ("letters", "unit") or token.text in _BETWEEN_WORDS for token in tokens)
    return " ".join(_folded(t.text) for t in tokens) if is_text and any(map(_is_word, tokens)) else None


def _is_word(token: Token) -> bool:
    text = token.text
    is_long = len(text) >= _WORD_LETTERS or not text.isascii() or text.casefold() in _ANSWER_WORDS
    return token.kind == "letters" and is_long


def _folded(word: str) -> str:
    """`Monday` is `monday`, but AB is not ab."""
    is_title = len(word) >= _WORD_LETTERS and word.istitle()
    return word.lower() if is_title or word.lower() in _ANSWER_WORDS else word


def _split_unit(tokens: list[Token]) -> tuple[list[Token], str | None]:
    """The tokens without a currency before them and a unit behind them, and that unit."""
    sign = tokens[:1] if tokens[0].text in ("-", "+") else []
    rest = tokens[len(sign) :]
    before = rest[0].text if rest and rest[0].kind == "currency" else None
    rest = rest[before is not None :]
    written = "".join(f" @{t.text}" if t.kind in ("unit", "currency") else f" {t.text}" for t in rest)
    found = _UNIT.search(written)
    if found is None or found.start() == 0 or any(token.text in _OF_ANGLES for token in tokens):
        return [*sign, *rest], before
    unit = _one_name(found.group())
    if before is not None and before != unit:
        raise UnreadableError("two units")
    return [*sign, *rest[: -found.group().count(" ")]], unit


def _one_name(unit: str) -> str:
    """One name for all ways to write a unit: `square cm` is `cm^2`, `per` is `/`."""
    words = re.sub(r"[@{}]", "", unit).split()
    name = _SQUARE.sub(lambda match: f"{match[2]}^{2 if match[1] == 'square' else 3}", " ".join(words))
    return name.replace("per", "/").replace(" ", "")
