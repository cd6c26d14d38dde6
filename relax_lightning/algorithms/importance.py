"""Importance weights between the training engine and the rollout engine, truncated or masked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from relax_lightning.algorithms.aggregation import clean
from relax_lightning.algorithms.shapes import check_shapes

_MAX_LOG_WEIGHT = 20.0
LEVELS = ("token", "sequence")
MODES = ("truncate", "mask")


@dataclass(frozen=True)
class ImportanceWeights:
    """What the ratio of two engines' probabilities makes of each token."""

    weights: Tensor
    """[batch, response] without gradient, 0 where masked: a `weights` of the losses."""
    raw: Tensor
    """[batch, response]: the ratios before the cap, 0 where masked."""
    is_outside: Tensor
    """[batch, response] bool: above the cap or below the floor."""


@torch.no_grad()
def importance_weights(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    *,
    cap: float,
    floor: float | None = None,
    level: str = "token",
    mode: str = "truncate",
) -> ImportanceWeights:
    """w = exp(old_log_probs - rollout_log_probs), bounded.

    `truncate`: max(min(w, cap), floor) (truncated importance sampling: Ionides 2008, equation 2.2; for engines that
    differ, Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"). `mask`: w inside
    [floor, cap], 0 outside (masked importance sampling: Ling team 2025, "IcePop"). At the level of a sequence w is the
    product over its trainable tokens, and all of them carry it.

    Args:
        old_log_probs: [batch, response], of the training engine before the update.
        rollout_log_probs: [batch, response], what the rollout engine reported.
        mask: [batch, response] bool.
        cap: Above 0.
        floor: From 0 to the cap; None: 0.
        level: `token` or `sequence`.
        mode: `truncate` or `mask`.

    Raises:
        ValueError: Shapes differ, or another level or mode.
    """
    check_shapes(mask, old_log_probs=old_log_probs, rollout_log_probs=rollout_log_probs)
    if level not in LEVELS or mode not in MODES:
        raise ValueError(
            f"wanted a level among {', '.join(LEVELS)} and a mode among {', '.join(MODES)}, got {level!r} and {mode!r}"
        )
    log_weights = clean(old_log_probs, mask) - clean(rollout_log_probs, mask)
    if level == "sequence":
        log_weights = log_weights.double().sum(1, keepdim=True).expand(mask.shape).to(log_weights.dtype)
    raw = torch.where(mask, log_weights.clamp(-_MAX_LOG_WEIGHT, _MAX_LOG_WEIGHT).exp(), 0.0)
    low = 0.0 if floor is None else floor
    is_outside = mask & ((raw > cap) | (raw < low))
    bounded = raw.clamp(low, cap) if mode == "truncate" else raw.masked_fill(is_outside, 0.0)
    return ImportanceWeights(torch.where(mask, bounded, 0.0), raw, is_outside)


def importance_sums(found: ImportanceWeights, mask: Tensor) -> dict[str, Tensor]:
    """What `importance_metrics` needs of some samples, [] float64 each; sums over micro-batches or ranks add up."""
    raw, weights = found.raw.double(), found.weights.double()
    return {
        "tokens": mask.sum().double(),
        "weight": weights.sum(),
        "weight_squared": weights.square().sum(),
        "raw": raw.sum(),
        "outside": found.is_outside.sum().double(),
    }


def importance_metrics(sums: dict[str, Tensor], *, mode: str) -> dict[str, float]:
    """Metrics of importance weights from their sums over the whole iteration.

    The effective sample size is Kish's, (sum w)^2 / sum w^2, as a fraction of the tokens: 1 where all weights are
    equal.

    Args:
        sums: Of `importance_sums`.
        mode: `truncate` or `mask`: which name the share of tokens outside the bounds gets.
    """
    tokens = float(sums["tokens"])
    if tokens == 0:
        return {}
    squared = float(sums["weight_squared"])
    outside = "clipped_fraction" if mode == "truncate" else "masked_fraction"
    return {
        "importance/ratio_mean": float(sums["raw"]) / tokens,
        "importance/weight_mean": float(sums["weight"]) / tokens,
        "importance/effective_sample_fraction": float(sums["weight"]) ** 2 / squared / tokens
        if squared
        else 0.0,
        f"importance/{outside}": float(sums["outside"]) / tokens,
    }
