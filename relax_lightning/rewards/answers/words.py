"""What the words and commands of an answer mean, each by itself."""

from __future__ import annotations

import unicodedata

from relax_lightning.rewards.answers.units import CURRENCIES, unit_of

_SIGN_COMMANDS = {
    "*": "times cdot ast cdotp",
    "/": "div",
    "pm": "pm",
    "mp": "mp",
    "<": "lt",
    ">": "gt",
    "<=": "le leq leqslant leqq",
    ">=": "ge geq geqslant geqq",
    "!=": "ne neq",
    "approx": "approx simeq",
    "in": "in",
    "cup": "cup",
    "cap": "cap",
    "setminus": "setminus backslash",
    "and": "land wedge",
    "or": "lor vee",
    "infinity": "infty",
    "empty": "emptyset varnothing",
    "<<": "langle",
    ">>": "rangle",
    "|": "vert lvert rvert mid",
    "floor": "lfloor",
    "floor end": "rfloor",
    "ceil": "lceil",
    "ceil end": "rceil",
    "\\{": "lbrace",
    "\\}": "rbrace",
    "'": "prime",
    "angle": "angle measuredangle",
    "over": "over",
    "choose": "choose",
}
_COMMANDS = {
    "frac": "frac dfrac tfrac cfrac sfrac nicefrac flatfrac",
    "binom": "binom dbinom tbinom",
    "sqrt": "sqrt",
    "radical": "radical",
    "not": "not",
    "overline": "overline bar",
    "dot": "dot",
    **{name: name for name in ("mathbb", "mathcal", "mathfrak", "mathscr", "hat", "tilde", "vec", "widehat")},
}
_KINDS = {
    "function": "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log lg ln exp sqrt max min gcd lcm",
    "name": "varepsilon varphi vartheta varrho ell hbar",
}
_SIGNS = {"**": "^", ":=": "=", "<>": "!=", "\\&": "&", "==": "=", "===": "="}


def _by_alias(table: dict[str, str]) -> dict[str, str]:
    return {alias: name for name, aliases in table.items() for alias in aliases.split()}


_SIGN_OF = _by_alias(_SIGN_COMMANDS)
_COMMAND_OF = _by_alias(_COMMANDS)
_KIND_OF = _by_alias(_KINDS)


def _greek() -> dict[str, str]:
    """TeX's name of each Greek letter; the Unicode names of capitals say so."""
    names = {}
    for code in (*range(0x391, 0x3AA), *range(0x3B1, 0x3CA)):
        words = unicodedata.name(chr(code), "").lower().replace("lamda", "lambda").split()
        if words:
            names[chr(code)] = words[-1].capitalize() if "capital" in words else words[-1]
    return names


GREEK = _greek()
"""By letter."""
_GREEK_NAMES = set(GREEK.values())


def meaning(kind: str, word: str, is_upright: bool) -> tuple[str, str]:
    r"""Kind and text of a token.

    Args:
        kind: The group of the tokenizer that it was found by.
        word: As it is written.
        is_upright: Whether it stands in `\\text{}` or the like: a single letter there may be a unit.
    """
    if kind == "letters":
        return _letters(word, is_upright)
    if kind == "degree":
        return "unit", "degree"
    if kind == "currency":
        return "currency", CURRENCIES[word]
    if kind == "matrix":
        return "sign", word[1:].partition("{")[0].strip()
    if kind == "command":
        return _command(word[1:])
    if kind == "sign":
        return ("unit", "percent") if word in ("%", "\\%") else ("sign", _SIGNS.get(word, word))
    return kind, word


def _letters(word: str, is_upright: bool) -> tuple[str, str]:
    folded = word.casefold()
    if folded in ("and", "or", "infinity"):
        return "sign", folded
    if _KIND_OF.get(folded) == "function":
        return "function", folded
    if folded == "pi":
        return "name", "pi"
    unit = unit_of(word, is_upright)
    return ("letters", word) if unit is None else ("unit", unit)


def _command(name: str) -> tuple[str, str]:
    if name in _SIGN_OF:
        return "sign", _SIGN_OF[name]
    if name in _COMMAND_OF:
        return "command", _COMMAND_OF[name]
    if name in _KIND_OF:
        return _KIND_OF[name], name
    return ("name", name) if name in _GREEK_NAMES else ("other", f"\\{name}")
