"""The reward of DAPO for mathematical problems with one final answer."""

from __future__ import annotations

from typing import Any

from relax_lightning.rewards.labels import math_label
from relax_lightning.rewards.math_answer import find_answer, same_answer


def dapo_math(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    r"""+1.0 for the right final answer, else -1.0 (Yu et al. 2025, arXiv:2503.14476, equation 7).

    The answer is what the last `Answer:` line or the last `\boxed{...}` of the response says; none is wrong.
    docs/rewards.md says what counts as equal.

    Raises:
        ValueError: The label is no answer.
    """
    try:
        expected = str(math_label(label))
    except ValueError as error:
        raise ValueError(f"dapo_math needs a label: {error}") from error
    answer = find_answer(response)
    return 1.0 if answer is not None and same_answer(answer, expected) else -1.0
