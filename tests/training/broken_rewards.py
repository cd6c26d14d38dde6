"""Rewards that fail; apart from the recorder, since a reward worker should not have to import torch."""

from __future__ import annotations

from typing import Any


def not_a_number(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    """Give what no reward may give."""
    return float("nan")
