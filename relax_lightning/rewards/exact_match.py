"""The reward for answers that have to be met to the letter."""

from __future__ import annotations

from typing import Any


def exact_match(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    """1.0 where the response is the label, white space around both aside, else 0.0."""
    return float(response.strip() == str(label).strip())
