"""The reward of DAPO for mathematical problems with one final answer."""

from __future__ import annotations

from typing import Any

from relax_lightning.rewards.math_answer import find_answer, same_answer


def dapo_math(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    r"""+1.0 for the right final answer, else -1.0 (Yu et al. 2025, arXiv:2503.14476, equation 7).

    The answer is what the last `Answer:` line or the last `\boxed{...}` of the response says; none is wrong.

    Raises:
        ValueError: There is no label.
    """
    if label is None:
        raise ValueError("dapo_math needs a label, got None; set label_key to the column that has it")
    answer = find_answer(response)
    return 1.0 if answer is not None and same_answer(answer, str(label)) else -1.0
