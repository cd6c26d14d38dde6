"""Statistics over trainable tokens, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_lightning.algorithms.shapes import at_least_float32, check_shapes


@torch.no_grad()
def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale to mean 0 and unbiased variance 1 over the trainable tokens.

    Args:
        x: [batch, response].
        mask: [batch, response] bool.

    Returns:
        (x - mean) / sqrt(variance + 1e-8), [batch, response] in the dtype of `x` (at least float32), 0 where masked.
        Equal values, and a single one, give exact zeros.
    """
    check_shapes(mask, x=x)
    centered, variance = _center(x[mask], unbiased=True)
    whitened = torch.zeros(x.shape, dtype=at_least_float32(x), device=x.device)
    whitened[mask] = (centered / torch.sqrt(variance + 1e-8)).to(whitened.dtype)
    return whitened


@torch.no_grad()
def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Share of the variance of the returns that the values explain: 1 - Var(returns - values) / Var(returns).

    Args:
        values: [batch, response].
        returns: [batch, response].
        mask: [batch, response] bool.

    Returns:
        [] float64, at most 1; 0 where the returns do not vary, for there is nothing to explain.
    """
    check_shapes(mask, values=values, returns=returns)
    _, total = _center(returns[mask])
    _, unexplained = _center(returns[mask].double() - values[mask].double())
    return torch.where(total > 0, 1 - unexplained / torch.where(total > 0, total, 1.0), 0.0)


def _center(x: Tensor, unbiased: bool = False) -> tuple[Tensor, Tensor]:
    """Deviations of x [tokens] from its mean, and its variance."""
    # Measured from the first value, equal values deviate by exactly 0 whatever their mean rounds to.
    shifted = x.double() - x[:1].double()
    centered = shifted - shifted.sum() / max(1, shifted.numel())
    return centered, centered.square().sum() / max(1, shifted.numel() - int(unbiased))
