"""What the signs, words and commands of an answer mean, each by itself."""

from __future__ import annotations

import re
import unicodedata
from itertools import batched

_GREEK = r"""
α \alpha β \beta γ \gamma δ \delta ε \epsilon ζ \zeta η \eta θ \theta ι \iota κ \kappa λ \lambda μ \mu ν \nu ξ \xi
ρ \rho σ \sigma τ \tau υ \upsilon φ \phi χ \chi ψ \psi ω \omega
Γ \Gamma Δ \Delta Θ \Theta Λ \Lambda Ξ \Xi Π \Pi Σ \Sigma Φ \Phi Ψ \Psi Ω \Omega
"""
_IN_TEX = rf"""
≤ \le ≦ \le ⩽ \le ≥ \ge ≧ \ge ⩾ \ge ≠ \ne ≈ \approx ∞ \infty √ \radical ∛ \sqrt[3] ∜ \sqrt[4] ∈ \in ∪ \cup ∅ \emptyset
± \pm ∠ \angle π \pi ℝ \mathbb{{R}} ℤ \mathbb{{Z}} ℚ \mathbb{{Q}} ℕ \mathbb{{N}} ℂ \mathbb{{C}} ％ \% ٪ \% {_GREEK}
"""
_IN_ASCII = {
    "-": "\u2212\u2010\u2011\ufe63",
    "/": "÷∕⁄",
    "*": "×✕✖·⋅∙•∗",
    "'": "’′ʹ",
    ",": "、",
    ".": "。٫",
    "{,}": "٬",
    "": "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad",
}
_CHARACTERS = {
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
    **{ord(sign): f"{command} " for sign, command in batched(_IN_TEX.split(), 2)},
    **{ord(sign): plain for plain, signs in _IN_ASCII.items() for sign in signs},
}
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴-⁹ⁿⁱ]+")
_LOWERED = re.compile("[₀-₉]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")


def plain(text: str) -> str:
    """The text without signs that ASCII and TeX have too; digits of any script become those of ASCII."""
    if text.isascii():
        return text
    text = _RAISED.sub(lambda match: f"^{{{_folded(match[0])}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{_folded(match[0])}}}", text)
    text = _VULGAR.sub(lambda match: "\\frac{{{}}}{{{}}}".format(*_folded(match[0]).split("⁄")), text)
    return "".join(map(_in_ascii, text.translate(_CHARACTERS)))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _in_ascii(character: str) -> str:
    if character.isascii():
        return character
    digit = unicodedata.decimal(character, None)
    is_mathematical = 0x1D400 <= ord(character) <= 0x1D7FF
    return str(digit) if digit is not None else _folded(character) if is_mathematical else character


def _by_alias[T](table: dict[T, str]) -> dict[str, T]:
    return {alias: meaning for meaning, aliases in table.items() for alias in aliases.split()}


_FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan log lg ln exp"
MEANINGS = _by_alias(
    {
        ("sign", "*"): r"\times \cdot \ast \cdotp",
        ("sign", "/"): r"\div",
        ("sign", "^"): "**",
        ("sign", "pm"): r"\pm",
        ("sign", "="): "==",
        ("sign", "<"): r"\lt",
        ("sign", ">"): r"\gt",
        ("sign", "<="): r"\le \leq \leqslant \leqq",
        ("sign", ">="): r"\ge \geq \geqslant \geqq",
        ("sign", "!="): r"\ne \neq \not= <>",
        ("sign", "approx"): r"\approx \simeq",
        ("sign", "in"): r"\in",
        ("sign", "cup"): r"\cup",
        ("sign", "and"): r"and \land \wedge",
        ("sign", "or"): r"or \lor \vee",
        ("sign", "infinity"): r"infinity \infty",
        ("sign", "empty"): r"\emptyset \varnothing",
        ("sign", "|"): r"\vert \lvert \rvert \mid",
        ("sign", "\\{"): r"\lbrace",
        ("sign", "\\}"): r"\rbrace",
        ("sign", "'"): r"\prime",
        ("sign", "over"): r"\over",
        ("sign", "begin"): r"\begin{pmatrix} \begin{bmatrix}",
        ("sign", "end"): r"\end{pmatrix} \end{bmatrix}",
        ("command", "frac"): r"\frac \dfrac \tfrac \cfrac \sfrac \nicefrac \flatfrac",
        ("command", "binom"): r"\binom \dbinom \tbinom",
        ("command", "sqrt"): r"\sqrt",
        ("command", "radical"): r"\radical sqrt",
        ("command", "overline"): r"\overline \bar",
        ("command", "angle"): r"\angle \measuredangle",
        ("name", "pi"): r"\pi pi",
        **{("name", name): name for name in (*_GREEK.split()[1::2], r"\varphi", r"\ell")},
        **{("command", name): f"\\{name}" for name in ("mathbb", "mathcal", "vec", "hat")},
        **{("function", name): f"{name} \\{name}" for name in _FUNCTIONS.split()},
        ("unit", "percent"): r"% \%",
        ("unit", "degree"): r"° \degree ^\circ ^{\circ}",
        ("currency", "dollar"): r"\$",
        ("currency", "euro"): "€",
        ("currency", "pound"): "£",
        ("currency", "yen"): "¥",
        ("currency", "rupee"): "₹",
    }
)
"""Kind and text of the token that a word, sign or command is."""

_OTHER_UNITS = """
mile gram pound second minute hour day week month year dollar cent euro percent cubic per unit point way
"""
_UNITS = _by_alias(
    {
        "mm": "mm millimeter millimetre",
        "cm": "cm centimeter centimetre",
        "meter": "meter metre",
        "km": "km kilometer kilometre",
        "inch": "inch inches",
        "foot": "foot feet ft",
        "kg": "kg kilogram",
        "liter": "liter litre",
        "degree": "degree deg",
        "square": "square sq",
        **{name: name for name in _OTHER_UNITS.split()},
    }
)
_UPRIGHT_UNITS = {"m": "meter", "g": "gram", "s": "second", "h": "hour", "L": "liter"}
"""In mathematics a letter is a variable."""


def unit_of(word: str, is_upright: bool) -> str | None:
    """The one name of a unit, such as `inch` for `inches`; None for a word that is none."""
    if is_upright and word in _UPRIGHT_UNITS:
        return _UPRIGHT_UNITS[word]
    folded = word.casefold()
    return _UNITS.get(folded) or _UNITS.get(folded.removesuffix("s"))
