"""What the registered rewards take for a label; checked when data is loaded. docs/rewards.md has the table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from relax_lightning.rewards.answers.reading import read_answer
from relax_lightning.rewards.answers.values import Words
from relax_lightning.rewards.math_answer import find_answer

_FIELD = "ground_truth"
_CHANGE = "correct it, or set label_key to the column that has the answer"
_LONGEST_NUMBER_BITS = 13_000
_SIMPLE = re.compile(r"[-+]?\w{1,100}(?:[./]\w{1,100})?")


def math_label(label: Any) -> Any:
    """A text with the final answer alone, or a finite number; of a mapping, the field `ground_truth`.

    Raises:
        ValueError: It is something else; says what was wanted and what came.
    """
    label = _taken(label)
    if isinstance(label, float | Decimal) and math.isfinite(label):
        return label
    if _is_whole_number(label):
        return label
    if not isinstance(label, str):
        raise _refused("an answer as text or a finite number", label)
    if not _SIMPLE.fullmatch(label):
        _check_answer(label)
    return label


def text_label(label: Any) -> Any:
    """A text or a whole number; of a mapping, the field `ground_truth`. Other numbers have several spellings.

    Raises:
        ValueError: It is something else; says what was wanted and what came.
    """
    label = _taken(label)
    if isinstance(label, str) or _is_whole_number(label):
        return label
    raise _refused("text or a whole number", label)


def task_label(label: Any) -> Any:
    """As `text_label`, as the text that the tasks compare with; or None where a task needs its metadata only.

    Raises:
        ValueError: It is something else; says what was wanted and what came.
    """
    return None if label is None else str(text_label(label))


def _taken(label: Any) -> Any:
    """The field `ground_truth` of a mapping, and a number of numpy as one of Python."""
    if isinstance(label, Mapping):
        if _FIELD not in label:
            there = ", ".join(map(repr, label))[:100] or "no key"
            raise ValueError(
                f"wanted an answer, or a mapping with {_FIELD!r}, got one with {there}; {_CHANGE}"
            )
        label = label[_FIELD]
    is_scalar = hasattr(label, "item") and getattr(label, "ndim", None) == 0
    return label.item() if is_scalar else label


def _is_whole_number(label: Any) -> bool:
    return (
        isinstance(label, int) and not isinstance(label, bool) and label.bit_length() < _LONGEST_NUMBER_BITS
    )


def _check_answer(label: str) -> None:
    value = read_answer(label).value
    if not isinstance(value, Words):
        return
    if not value.text:
        raise _refused("an answer", label)
    if "\n" in label.strip() or find_answer(label) is not None:
        raise _refused("the final answer alone", label)


def _refused(wanted: str, label: Any) -> ValueError:
    if label is None:
        return ValueError(f"wanted {wanted}, got null; {_CHANGE}")
    shown = f"{type(label).__name__} {label!r:.60}" if not _is_long(label) else "a very long number"
    return ValueError(f"wanted {wanted}, got {shown}; {_CHANGE}")


def _is_long(label: Any) -> bool:
    return isinstance(label, int) and label.bit_length() >= _LONGEST_NUMBER_BITS
