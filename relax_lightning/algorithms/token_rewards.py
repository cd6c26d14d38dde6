"""From one reward a sample to one reward a token."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_lightning.algorithms.aggregation import clean
from relax_lightning.algorithms.shapes import check_shapes


@torch.no_grad()
def token_rewards(rewards: Tensor, mask: Tensor, *, kl: Tensor | None = None, kl_coef: float = 0.0) -> Tensor:
    """The sample's reward at its last trainable token, less a penalty for each token's KL from the reference.

    Args:
        rewards: [batch].
        mask: [batch, response] bool.
        kl: [batch, response], from `estimate_kl`; None means no penalty.
        kl_coef: Factor on `kl`.

    Returns:
        [batch, response] in float32 (float64 when `rewards` is), 0 where masked; a sample without trainable tokens
        keeps nothing of its reward.

    Raises:
        ValueError: Shapes differ.
    """
    check_shapes(mask, kl=kl)
    if rewards.shape != mask.shape[:1]:
        raise ValueError(f"rewards must be [batch] = [{mask.shape[0]}], got {list(rewards.shape)}")
    num_left = mask.flip(1).cumsum(1).flip(1)
    is_last = mask & (num_left == 1)
    per_token = clean(rewards[:, None].expand(mask.shape), is_last)
    return per_token if kl is None else per_token - kl_coef * clean(kl, mask)
