"""Finding the final answer of a mathematical text, and comparing two of them. docs/rewards.md says what is equal."""

from __future__ import annotations

import re

from relax_lightning.rewards.answers.reading import read_answer
from relax_lightning.rewards.answers.values import Words, same

_MARKER = re.compile(r"(?<![^\W_])answer[\s*_}]*[:\uff1a][\s*_}]*", re.IGNORECASE)
_SPACE = re.compile(r"\s*")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|\\.|[{}]", re.DOTALL)


def find_answer(text: str) -> str | None:
    r"""The last `Answer:` line or the last complete `\boxed{...}`, whichever begins later; None without either.

    What is empty does not count, nor does a box within another one.
    """
    line_start, line_end = _last_line(text)
    box_start, box_end = _last_box(text)
    if box_start > line_start:
        return text[box_start:box_end]
    if line_start < box_end:  # an `Answer:` within the box
        line_end = box_end
    return text[line_start:line_end].rstrip("\n") if line_start >= 0 else None


def find_answer_line(text: str) -> str | None:
    """What follows the last `Answer:`, up to the end of its line; None without one."""
    start, end = _last_line(text)
    return text[start:end] if start >= 0 else None


def final_answer(text: str) -> str | None:
    """The value of the final answer in writing, for votes: equal values have equal texts, but for fractions of sums.

    None without an answer.
    """
    answer = find_answer(text)
    return None if answer is None else read_answer(answer).value.text or None


def same_answer(answer: str, expected: str) -> bool:
    """Whether both say the same, as docs/rewards.md has it. Takes time linear in the lengths."""
    read = read_answer(answer)
    return read.value != Words("") and same(read, read_answer(expected))


def _last_line(text: str) -> tuple[int, int]:
    """Start and end of the last line that follows an `Answer:` and is not empty; -1, -1 without one."""
    found = list(_MARKER.finditer(text))
    limit = len(text)
    for marker in reversed(found):
        newline = text.find("\n", marker.end(), limit)
        end = limit if newline < 0 else newline
        if text[marker.end() : end].strip():
            return marker.end(), end
        limit = marker.start()
    return -1, -1


def _last_box(text: str) -> tuple[int, int]:
    """Start and end of the content of the last box whose braces are balanced; -1, -1 without one."""
    found = (-1, -1)
    starts: list[int] = []
    for match in _BOX.finditer(text):
        word = match.group()
        if word == "{":
            starts.append(-1)
        elif word == "}" and starts:
            start = starts.pop()
            if start >= 0 and _SPACE.match(text, start).end() < match.start():  # pyright: ignore[reportOptionalMemberAccess]
                found = (start, match.start())
        elif word.endswith("{") and word != r"\{":
            starts.append(match.end())
    return found
