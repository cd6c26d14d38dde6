"""From one number a token to the loss of an optimizer step, in parts that add up over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relax_lightning.algorithms.shapes import at_least_float32, check_shapes

MAX_SUFFIX = "_max"
"""Ends the names of metrics that are joined by their maximum; all others are parts that add up."""


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    *,
    weights: Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """This micro-batch's part of the step's mean: sum(weights * per_token) / num_tokens.

    Args:
        per_token: [batch, response], with gradient.
        mask: [batch, response] bool; what stands at masked positions reaches neither the sum nor the gradient.
        weights: [batch, response], without gradient; None means 1.
        num_tokens: Trainable tokens of the whole optimizer step; None means the mask's own count, at least 1.

    Returns:
        [] with gradient.
    """
    check_shapes(mask, per_token=per_token, weights=weights)
    summands = clean(per_token, mask)
    if weights is not None:
        summands = summands * clean(weights.detach(), mask)
    if num_tokens is None:
        num_tokens = mask.sum().clamp(min=1)
    return summands.sum() / num_tokens


def join_parts(name: str, parts: Sequence[float]) -> float:
    """A metric of an optimizer step from those of its micro-batches or ranks.

    The largest for a name that ends in `_max`; else their sum, for `aggregate` has divided by what the step counts.
    """
    return max(parts) if name.endswith(MAX_SUFFIX) else sum(parts)


def clean(x: Tensor, mask: Tensor) -> Tensor:
    """x in at least float32, with 0 for whatever stands at masked positions, NaN and infinity included."""
    return torch.where(mask, x.to(at_least_float32(x)), 0.0)


def sequence_mean_weights(mask: Tensor, *, num_tokens: float | Tensor, num_samples: float | Tensor) -> Tensor:
    """Weights that turn the token mean of a step into the mean over its samples of each sample's token mean.

    sum(weights * loss) / num_tokens = 1 / num_samples * sum over samples of (sum of the sample's loss / its tokens).

    Args:
        mask: [batch, response] bool, of this micro-batch.
        num_tokens: Trainable tokens of the whole optimizer step, the same number that divides the loss.
        num_samples: Samples of the whole optimizer step that have a trainable token.

    Returns:
        [batch, response] float32, 0 where masked.
    """
    check_shapes(mask)
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    per_sample = num_tokens / (num_samples * lengths.double())
    return torch.where(mask, per_sample, 0.0).float()
