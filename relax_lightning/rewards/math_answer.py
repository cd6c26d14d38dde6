"""Finding the final answer of a mathematical text, and comparing two of them."""

from __future__ import annotations

import re
from fractions import Fraction

ANSWER_LINE = re.compile(r"\banswer\s*:\s*([^\n]+)", re.IGNORECASE)
"""An answer after the word, up to the end of its line."""

_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)")
_SIMPLE = re.compile(r"[-+]?[\w.]+")
_NOTHING = re.compile(r"\\[!,;: ]|\\left|\\right|\^\{?\\circ\}?|\\?[$%]|°|~")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,100}(?:\.\d{0,100})?|\.\d{1,100})")
_QUOTIENT = re.compile(r"([-+]?\d{1,100})/(\d{1,100})")
_UNITS = re.compile(
    r"(?<=[\d\s}])(?:cm|mm|km|m|inch(?:es)?|feet|foot|ft|miles?|mph|meters?|metres?|pounds?|grams?|gm|kg|dollars?"
    r"|cents?|seconds?|minutes?|hours?|days?|degrees?|units?|points?|square|cubic|ways?|digits?|integers?|students?)"
    r"(?:\^\{?[23]\}?)?$"
)


def find_answer(text: str) -> str | None:
    r"""The last `Answer:` line or the last complete `\boxed{...}`, whichever begins later; None without either."""
    lines = list(ANSWER_LINE.finditer(text))
    line_start, line = (lines[-1].start(), lines[-1].group(1)) if lines else (-1, None)
    box_start, box = _last_box(text)
    return box if box_start > line_start else line


def final_answer(text: str) -> str | None:
    """The final answer, normalized so that equal ones are equal texts; None without one."""
    answer = find_answer(text)
    normalized = "" if answer is None else normalize_answer(answer)
    number = _as_number(normalized)
    return str(number) if number is not None else normalized or None


def same_answer(answer: str, expected: str) -> bool:
    """Whether both are the same text once normalized, or the same number."""
    answer, expected = normalize_answer(answer), normalize_answer(expected)
    if answer == expected:
        return answer != ""
    number = _as_number(answer)
    return number is not None and number == _as_number(expected)


def normalize_answer(text: str) -> str:
    r"""Without what does not change a value: `$`, `\text{}`, units, thousands separators, spaces, a final full stop.

    After the normalization of Minerva (Lewkowycz et al. 2022, arXiv:2206.14858, appendix D.1), as DAPO uses it; of an
    equation the right-hand side counts, and `\frac{a}{b}` is a/b.
    """
    text = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\$", "").replace("\\%", "")
    text = _NOTHING.sub("", text.rsplit("=", 1)[-1])
    text = _until_stable(_WRAPPER, r"\1", text)
    text = _SHORT_FRACTION.sub(r"\1/\2", text)
    text = _until_stable(_FRACTION, _as_quotient, text)
    text = text.strip().strip("*").rstrip(".").strip()
    text = _until_stable(_UNITS, "", text, strip=True)
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return re.sub(r"\s+", "", text)


def _last_box(text: str) -> tuple[int, str | None]:
    """Start and content of the last box whose braces are balanced."""
    opening = "\\boxed{"
    start = text.rfind(opening)
    while start >= 0:
        depth = 1
        for end in range(start + len(opening), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return start, text[start + len(opening) : end]
        start = text.rfind(opening, 0, start)
    return -1, None


def _until_stable(pattern: re.Pattern[str], replacement: object, text: str, strip: bool = False) -> str:
    """Substitute from the inside out; every substitution shortens the text or removes a command, so this ends."""
    while (changed := pattern.sub(replacement, text)) != text:  # pyright: ignore[reportArgumentType, reportCallIssue]
        text = changed.rstrip() if strip else changed
    return text


def _as_quotient(match: re.Match[str]) -> str:
    parts = (part.strip() for part in match.groups())
    return "/".join(part if _SIMPLE.fullmatch(part) else f"({part})" for part in parts)


def _as_number(text: str) -> Fraction | None:
    """Exactly. Digits are bounded and exponents refused: a response must not be able to ask for a huge number."""
    if _NUMBER.fullmatch(text):
        return Fraction(text)
    quotient = _QUOTIENT.fullmatch(text)
    if quotient is None or int(quotient.group(2)) == 0:
        return None
    return Fraction(int(quotient.group(1)), int(quotient.group(2)))
