"""The clipped policy and value losses of PPO."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_lightning.algorithms.aggregation import aggregate, clean
from relax_lightning.algorithms.shapes import check_shapes

_MAX_LOG_RATIO = 20.0


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_clip: float,
    eps_clip_high: float | None = None,
    eps_clip_c: float | None = None,
    weights: Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, equation 7), as a loss.

    max(-ratio * A, -clamp(ratio, 1 - eps_clip, 1 + eps_clip_high) * A) with ratio = exp(log_probs - old_log_probs); for
    A < 0 at most -eps_clip_c * A (dual clip: Ye et al. 2020, arXiv:1912.09729, equation 5).

    Args:
        log_probs: [batch, response], with gradient, at the sampling temperature.
        old_log_probs: [batch, response], of the policy before the update.
        advantages: [batch, response].
        mask: [batch, response] bool.
        eps_clip: Lower margin of the ratio.
        eps_clip_high: Upper margin; None follows `eps_clip`.
        eps_clip_c: Above 1; None switches the dual clip off.
        weights: [batch, response] factor on each token's loss; the metrics are not weighted.
        num_tokens: Trainable tokens of the whole optimizer step; None means the mask's own count, at least 1.

    Returns:
        The loss, [] with gradient, and `pg_clipfrac`, `ppo_kl` and `ppo_kl_k3`, [] without. All are sums divided by
        `num_tokens`, so they add up over micro-batches.
    """
    check_shapes(
        mask, log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages, weights=weights
    )
    advantages = clean(advantages.detach(), mask)
    log_ratio = clean(log_probs, mask) - clean(old_log_probs.detach(), mask)
    clamped = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = clamped.exp()
    upper = 1 + (eps_clip if eps_clip_high is None else eps_clip_high)
    plain, clipped = -ratio * advantages, -ratio.clamp(1 - eps_clip, upper) * advantages
    per_token = torch.maximum(plain, clipped)
    if eps_clip_c is not None:
        per_token = torch.where(advantages < 0, torch.minimum(per_token, -eps_clip_c * advantages), per_token)
    with torch.no_grad():
        metrics = {
            "pg_clipfrac": aggregate((clipped > plain).float(), mask, num_tokens=num_tokens),
            "ppo_kl": aggregate(-log_ratio, mask, num_tokens=num_tokens),
            "ppo_kl_k3": aggregate(ratio - 1 - clamped, mask, num_tokens=num_tokens),
        }
    return aggregate(per_token, mask, weights=weights, num_tokens=num_tokens), metrics


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    value_clip: float | None,
    weights: Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the larger of the plain and the clipped squared error (Schulman et al., OpenAI Baselines, ppo2).

    0.5 * max((v - R)^2, (v_clip - R)^2) with v_clip = v_old + clamp(v - v_old, -value_clip, value_clip).

    Args:
        values: [batch, response], with gradient.
        old_values: [batch, response], before the update.
        returns: [batch, response].
        mask: [batch, response] bool.
        value_clip: Range of the clipped value around the old one; None switches clipping off.
        weights: [batch, response] factor on each token's loss; the metric is not weighted.
        num_tokens: Trainable tokens of the whole optimizer step; None means the mask's own count, at least 1.

    Returns:
        The loss, [] with gradient, and `value_clipfrac`, [] without. Both are sums divided by `num_tokens`.
    """
    check_shapes(mask, values=values, old_values=old_values, returns=returns, weights=weights)
    values, old_values, returns = (
        clean(values, mask),
        clean(old_values.detach(), mask),
        clean(returns.detach(), mask),
    )
    plain = (values - returns).square()
    if value_clip is None:
        clipped = plain
    else:
        # Clamped between bounds, a value inside the range stays itself to the bit: v_old + (v - v_old) would not, and
        # its rounding would count as clipping.
        clipped = (values.clamp(old_values - value_clip, old_values + value_clip) - returns).square()
    clipfrac = aggregate((clipped > plain).float(), mask, num_tokens=num_tokens)
    loss = 0.5 * aggregate(torch.maximum(plain, clipped), mask, weights=weights, num_tokens=num_tokens)
    return loss, {"value_clipfrac": clipfrac.detach()}


def positive_nll(
    log_probs: Tensor,
    rewards: Tensor,
    mask: Tensor,
    *,
    threshold: float,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """Negative log-likelihood of the samples that did well, VAPO's "positive example LM loss".

    Source: Yue et al. 2025, arXiv:2504.05118.

    -sum of log_probs over the trainable tokens of samples with reward > threshold, divided by the number of these.

    Args:
        log_probs: [batch, response], with gradient.
        rewards: [batch], as the environment gave them.
        mask: [batch, response] bool.
        threshold: A sample is positive above it.
        num_tokens: Trainable tokens of positive samples in the whole optimizer step; None means those here, at least 1.

    Returns:
        [] with gradient; sums over micro-batches add up.
    """
    return aggregate(-log_probs, positive_tokens(rewards, mask, threshold=threshold), num_tokens=num_tokens)


def positive_tokens(rewards: Tensor, mask: Tensor, *, threshold: float) -> Tensor:
    """[batch, response] bool: trainable tokens of samples whose reward, [batch], is above the threshold."""
    if rewards.shape != mask.shape[:1]:
        raise ValueError(f"rewards must be [batch] = [{mask.shape[0]}], got {list(rewards.shape)}")
    return mask & (rewards > threshold)[:, None]
