"""The signs of other alphabets and keyboards, in ASCII and TeX."""

from __future__ import annotations

import re
import unicodedata

from relax_lightning.rewards.answers.words import GREEK

_SAME = {
    "-": "\u2212\u2010\u2011\ufe63\uff0d",
    "/": "÷∕⁄",
    "'": "’′ʹ",
    ",": "、",
    ".": "。٫",
    "{,}": "٬",
    "": "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad",
    r"\times ": "×✕✖",
    r"\cdot ": "·⋅∙•∗",
    r"\le ": "≤≦⩽",
    r"\ge ": "≥≧⩾",
    r"\ne ": "≠",
    r"\approx ": "≈",
    r"\infty ": "∞",
    r"\radical ": "√",
    r"\sqrt[3]": "∛",
    r"\sqrt[4]": "∜",
    r"\in ": "∈",
    r"\cup ": "∪",
    r"\cap ": "∩",
    r"\setminus ": "∖",
    r"\emptyset ": "∅",
    r"\pm ": "±",
    r"\mp ": "∓",
    r"\angle ": "∠",
    r"\langle ": "⟨",
    r"\rangle ": "⟩",
    r"\%": "％٪",
    r"\$": "＄",
    **{rf"\mathbb{{{letter}}}": sign for letter, sign in zip("RZQNC", "ℝℤℚℕℂ", strict=True)},
    **{f"\\{name} ": letter for letter, name in GREEK.items()},
}
_FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_CHARACTERS = _FULL_WIDTH | {ord(sign): plain for plain, signs in _SAME.items() for sign in signs}
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴-⁹ⁿⁱ]+")
_LOWERED = re.compile("[₀-₉]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")


def plain(text: str) -> str:
    """Without signs that ASCII and TeX have too; digits of any script become those of ASCII."""
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: f"^{{{_folded(match[0])}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{_folded(match[0])}}}", text)
    text = _VULGAR.sub(lambda match: "\\frac{{{}}}{{{}}}".format(*_folded(match[0]).split("⁄")), text)
    return "".join(map(_ascii_digit, text.translate(_CHARACTERS)))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _ascii_digit(character: str) -> str:
    if character.isascii():
        return character
    value = unicodedata.decimal(character, None)
    if value is not None:
        return str(value)
    is_mathematical = 0x1D400 <= ord(character) <= 0x1D7FF
    return _folded(character) if is_mathematical else character
