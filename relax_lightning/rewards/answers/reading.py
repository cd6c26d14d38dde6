"""Reading a final answer: the value, the unit beside it, or the words that it has."""

from __future__ import annotations

import re
from functools import lru_cache

from relax_lightning.rewards.answers.algebra import UnreadableError
from relax_lightning.rewards.answers.grammar import parse
from relax_lightning.rewards.answers.tokens import Token, tokenize
from relax_lightning.rewards.answers.values import Answer, Words

_LONGEST = 10_000
"""Characters of an answer that is read; a longer one is compared as text."""
_MOST_TOKENS = 1_000
_LONGEST_UNIT = 8
_MARKDOWN = {"^", "*", "_", "."}
_WORD_LETTERS = 3
_ANSWER_WORDS = {"yes", "no", "true", "false", "none"}
_OF_ANGLES = {"sin", "cos", "tan", "cot", "sec", "csc"}
_UNIT_SIGNS = {"^", "/", "{", "}"}


@lru_cache(maxsize=256)
def read_answer(text: str) -> Answer:
    """The value and the unit of an answer. One that cannot be read is the words that it has, none for an empty one."""
    if len(text) > _LONGEST:
        return Answer(Words(" ".join(text.split())))
    tokens = _trimmed(tokenize(text))
    if all(token.text in ("{", "}") for token in tokens):
        return Answer(Words(""))
    if len(tokens) > _MOST_TOKENS:
        return Answer(Words(_written(tokens)))
    words = _words(tokens)
    if words is not None:
        return Answer(Words(words))
    try:
        inner, unit = _split_unit(tokens)
        return Answer(parse(inner), unit)
    except UnreadableError:
        return Answer(Words(_written(tokens)))


def _written(tokens: list[Token]) -> str:
    return re.sub(r"\{ (\S+) \}", r"\1", " ".join(token.text for token in tokens))


def _trimmed(tokens: list[Token]) -> list[Token]:
    """Without the marks of Markdown at both ends, a final full stop, and braces that close nothing."""
    start, end = 0, len(tokens)
    while start < end and tokens[start].kind == "sign" and tokens[start].text in ("^", "*", "_"):
        start += 1
    while start < end and tokens[end - 1].kind == "sign" and tokens[end - 1].text in _MARKDOWN:
        end -= 1
        if tokens[end].text == tokens[end - 1].text == ".":
            return tokens[start:]  # an ellipsis
    kept, depth = [], 0
    for token in tokens[start:end]:
        depth += (token.text == "{") - (token.text == "}")
        if depth < 0:
            depth = 0
        else:
            kept.append(token)
    return kept


def _words(tokens: list[Token]) -> str | None:
    """Of an answer in words, such as `Monday` or `no solution`: in one writing. None for mathematics."""
    is_text = all(
        t.kind in ("letters", "unit") or t.text in (",", ".", "-", "'", "and", "or") for t in tokens
    )
    if not is_text or not (tokens == [] or any(map(_is_word, tokens))):
        return None
    return " ".join(_folded(token.text) for token in tokens)


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
    start = _unit_start(rest)
    after = _unit_name(rest[start:])
    if before is not None and after is not None and before != after:
        raise UnreadableError("two units")
    if start and after is not None:
        rest = rest[:start]
    return [*sign, *rest], before or (after if start else None)


def _unit_start(tokens: list[Token]) -> int:
    """Where the unit at the end begins; the length where there is none."""
    start = len(tokens)
    while start and (tokens[start - 1].kind in ("unit", "currency") or _belongs_to_unit(tokens, start - 1)):
        start -= 1
    while start < len(tokens) and tokens[start].kind not in ("unit", "currency"):
        start += 1
    if any(token.text in _OF_ANGLES for token in tokens) or (start and tokens[start - 1].text == "/"):
        return len(tokens)
    if len(tokens) - start > _LONGEST_UNIT:
        return len(tokens)
    return start


def _belongs_to_unit(tokens: list[Token], at: int) -> bool:
    """A sign or a power between or behind the words of a unit: `cm^2`, `m/s`, the letter of `degrees C`."""
    token = tokens[at]
    if token.kind == "number":
        before = [t.text for t in tokens[max(0, at - 2) : at]]
        return (token.text in ("2", "3") and before[-1:] == ["^"]) or before == ["^", "{"]
    if token.kind == "letters":
        before = [t.text for t in tokens[max(0, at - 2) : at]]
        is_scale = token.text in ("C", "F") and before[-1:] == ["degree"]
        return is_scale or (
            token.text in ("s", "h") and before[1:] == ["/"] and tokens[at - 2].kind == "unit"
        )
    return token.kind == "sign" and token.text in _UNIT_SIGNS


def _unit_name(tokens: list[Token]) -> str | None:
    """One name for all ways to write a unit: `square cm` is `cm^2`, `per` is `/`."""
    words = [token.text for token in tokens if token.text not in ("{", "}")]
    name, power = "", ""
    for word in words:
        if word in ("square", "cubic"):
            power = "^2" if word == "square" else "^3"
        elif word in ("per", "/"):
            name += "/"
        elif word == "^" or word.isdigit():
            name += word
        else:
            name, power = f"{name}{word}{power}", ""
    return {"mph": "mile/hour"}.get(name, name) or None
