"""A reward of one's own: any callable that takes (prompt, response, label, metadata) and returns a finite number."""

from typing import Any


class ShortAndRight:
    """1 for the right digits, less a little for every digit that is too many.

    Args:
        length_penalty: What each digit beyond the label's length costs.
    """

    def __init__(self, length_penalty: float = 0.1) -> None:
        self.length_penalty = length_penalty

    def __call__(self, prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
        """Score one response."""
        answer = response.replace(" ", "")
        excess = max(0, len(answer) - len(label))
        return metadata["weight"] * float(answer.startswith(label)) - self.length_penalty * excess
