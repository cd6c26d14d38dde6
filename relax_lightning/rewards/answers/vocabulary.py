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


_SIGNS = r"""
\times * \cdot * \ast * \cdotp * \div / ** ^ \pm pm == = \lt < \gt > \le <= \leq <= \leqslant <= \leqq <=
\ge >= \geq >= \geqslant >= \geqq >= \ne != \neq != \not= != <> != \approx approx \simeq approx \in in \cup cup
and and \land and \wedge and or or \lor or \vee or infinity infinity \infty infinity \emptyset empty \varnothing empty
\vert | \lvert | \rvert | \mid | \lbrace \{ \rbrace \} \prime ' \over over
\begin{pmatrix} begin \begin{bmatrix} begin \end{pmatrix} end \end{bmatrix} end
"""
_COMMANDS = r"""
\frac frac \dfrac frac \tfrac frac \cfrac frac \sfrac frac \nicefrac frac \flatfrac frac \sqrt sqrt \radical radical
sqrt radical \binom binom \dbinom binom \tbinom binom \overline overline \bar overline \angle angle \measuredangle angle
\mathbb mathbb \mathcal mathcal \vec vec \hat hat
"""
_FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan log lg ln exp"
_TABLES = {
    "sign": _SIGNS,
    "command": _COMMANDS,
    "function": "".join(f"{name} {name} \\{name} {name} " for name in _FUNCTIONS.split()),
    "name": r"\pi pi pi pi "
    + "".join(f"{name} {name} " for name in [*_GREEK.split()[1::2], r"\varphi", r"\ell"]),
    "unit": r"% percent \% percent ° degree \degree degree ^\circ degree ^{\circ} degree",
    "currency": r"\$ dollar € euro £ pound ¥ yen ₹ rupee",
}
MEANINGS = {
    word: (kind, meaning) for kind, table in _TABLES.items() for word, meaning in batched(table.split(), 2)
}
"""Kind and text of the token that a word, sign or command is."""

_UNITS = """
mm mm millimeter mm millimetre mm cm cm centimeter cm centimetre cm meter meter metre meter km km kilometer km
kilometre km inch inch inches inch foot foot feet foot ft foot mile mile gram gram kg kg kilogram kg pound pound
liter liter litre liter second second minute minute hour hour day day week week month month year year degree degree
percent percent dollar dollar cent cent euro euro square square sq square cubic cubic per per unit unit point point
way way
"""
_UNIT_OF: dict[str, str] = dict(zip(_UNITS.split()[::2], _UNITS.split()[1::2], strict=True))
_UPRIGHT_UNITS = {"m": "meter", "g": "gram", "s": "second", "h": "hour", "L": "liter"}
"""In mathematics a letter is a variable."""


def unit_of(word: str, is_upright: bool) -> str | None:
    """The one name of a unit, such as `inch` for `inches`; None for a word that is none."""
    if is_upright and word in _UPRIGHT_UNITS:
        return _UPRIGHT_UNITS[word]
    folded = word.casefold()
    return _UNIT_OF.get(folded) or _UNIT_OF.get(folded.removesuffix("s"))
