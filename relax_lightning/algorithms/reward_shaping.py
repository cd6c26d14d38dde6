"""Changes of a sample's reward that depend on its length, its end, and the rewards of the samples beside it."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def overlong_penalty(lengths: Tensor, *, max_tokens: int, buffer_tokens: int) -> Tensor:
    """The soft punishment of long responses (Yu et al. 2025, DAPO, arXiv:2503.14476, equation 13).

    0 up to max_tokens - buffer_tokens, then falling in a straight line to -1 at max_tokens, and -1 beyond.

    Args:
        lengths: [batch], tokens of each response.
        max_tokens: The longest response.
        buffer_tokens: Width of the slope, above 0.

    Returns:
        [batch] float32 in [-1, 0].
    """
    return ((max_tokens - buffer_tokens - lengths.float()) / buffer_tokens).clamp(-1.0, 0.0)


@torch.no_grad()
def has_equal_rewards(rewards: Tensor, *, group_size: int) -> Tensor:
    """Samples of a prompt whose samples all have the same reward (Yu et al. 2025, DAPO, arXiv:2503.14476, equation 11).

    Args:
        rewards: [batch], the samples of a prompt beside each other.
        group_size: Samples a prompt; a divisor of the batch.

    Returns:
        [batch] bool.

    Raises:
        ValueError: The batch is no multiple of the group.
    """
    if len(rewards) % group_size:
        raise ValueError(
            f"rewards must hold whole groups of {group_size} samples, got {len(rewards)}; change the group's size"
        )
    groups = rewards.view(-1, group_size)
    return (groups == groups[:, :1]).all(1).repeat_interleave(group_size)


class RunningMoments:
    """Mean and variance of all numbers so far, batch by batch (Chan, Golub and LeVeque 1979), in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    @property
    def std(self) -> float:
        """The unbiased standard deviation; 0 for fewer than two numbers."""
        return (self._squares / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0

    def update(self, x: Tensor) -> None:
        """Add the numbers of x, of any shape."""
        if x.numel() == 0:
            return
        x = x.double()
        mean = float(x.mean())
        total, shift = self.count + x.numel(), mean - self.mean
        self._squares += float((x - mean).square().sum()) + shift**2 * self.count * x.numel() / total
        self.mean += shift * x.numel() / total
        self.count = total

    def normalize(self, x: Tensor) -> Tensor:
        """(x - mean) / (std + 1e-8) in float32; a spread of 0 only shifts."""
        scale = self.std
        shifted = x.double() - self.mean
        return (shifted / (scale + 1e-8) if scale > 0 else shifted).float()

    def state_dict(self) -> dict[str, float]:
        """Everything, as plain numbers."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from what `state_dict` gave."""
        self.count, self.mean, self._squares = int(state["count"]), state["mean"], state["squares"]
