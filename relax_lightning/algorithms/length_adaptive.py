"""Length-adaptive lambda of GAE."""

from __future__ import annotations

from torch import Tensor

from relax_lightning.algorithms.shapes import check_shapes


def length_adaptive_lambd(mask: Tensor, *, alpha: float) -> Tensor:
    """lambda = 1 - 1 / (alpha * length), not below 0 (Yue et al. 2025, VAPO, arXiv:2504.05118, equation 8).

    Args:
        mask: [batch, response] bool; a sample's length is its number of trainable tokens.
        alpha: Above 0.

    Returns:
        [batch] float64, 0 for a sample without trainable tokens.
    """
    check_shapes(mask)
    lengths = mask.sum(1).clamp(min=1).double()
    return (1 - 1 / (alpha * lengths)).clamp(min=0.0) * mask.any(1)
