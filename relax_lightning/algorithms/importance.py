"""Truncated importance weights between the training engine and the rollout engine."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_lightning.algorithms.aggregation import clean
from relax_lightning.algorithms.shapes import check_shapes


@torch.no_grad()
def truncated_importance_weights(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, *, cap: float
) -> Tensor:
    """min(exp(old_log_probs - rollout_log_probs), cap) (truncated importance sampling: Ionides 2008, equation 2.2).

    Args:
        old_log_probs: [batch, response], of the training engine before the update.
        rollout_log_probs: [batch, response], what the rollout engine reported.
        mask: [batch, response] bool.
        cap: Above 0.

    Returns:
        [batch, response] without gradient, 0 where masked: a `weights` of the losses.
    """
    check_shapes(mask, old_log_probs=old_log_probs, rollout_log_probs=rollout_log_probs)
    log_weights = clean(old_log_probs, mask) - clean(rollout_log_probs, mask)
    return torch.where(mask, log_weights.exp().clamp(max=cap), 0.0)
