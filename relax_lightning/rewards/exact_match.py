"""The reward for answers that have to be met to the letter."""

from __future__ import annotations

from typing import Any

from relax_lightning.rewards.labels import text_label


def exact_match(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    """1.0 where the response is the label, white space around both aside, else 0.0.

    Raises:
        ValueError: The label is neither text nor a whole number.
    """
    try:
        expected = str(text_label(label))
    except ValueError as error:
        raise ValueError(f"exact_match needs a label: {error}") from error
    return float(response.strip() == expected.strip())
