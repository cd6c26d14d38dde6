"""Rewards that fail; apart from the recorder, since a reward worker should not have to import torch."""

from __future__ import annotations

from typing import Any


def not_a_number(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    """Give what no reward may give."""
    return float("nan")


def wants_two_digits(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    """The share of right places; for a label of one digit, nothing at all."""
    if len(label) < 2:
        raise LookupError(f"no points for {label}")
    return sum(a == b for a, b in zip(response, label, strict=False)) / len(label)
