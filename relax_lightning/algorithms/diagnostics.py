"""Numbers that tell whether training is healthy. All respect masks with gaps, and none has a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_lightning.algorithms.aggregation import MAX_SUFFIX, aggregate, clean
from relax_lightning.algorithms.kl import estimate_kl
from relax_lightning.algorithms.shapes import check_shapes

NGRAM = 4
"""Length of the runs of tokens that count as repeated."""
_MAX_LOG_RATIO = 20.0


@torch.no_grad()
def value_bias(values: Tensor, returns: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Mean of values - returns in the first, second and last third of each response's trainable tokens.

    A critic without bias has 0 in each; late in a response it has seen more, so it is the early third that shows how
    well it looks ahead.

    Args:
        values: [batch, response].
        returns: [batch, response].
        mask: [batch, response] bool.

    Returns:
        `early`, `middle` and `late`, each [] float64; a third without any token is left out.
    """
    check_shapes(mask, values=values, returns=returns)
    errors = clean(values.double() - returns.double(), mask)
    position = mask.cumsum(1) - 1
    third = (3 * position) // mask.sum(1, keepdim=True).clamp(min=1)
    parts = {name: mask & (third == number) for number, name in enumerate(("early", "middle", "late"))}
    return {name: errors[part].mean() for name, part in parts.items() if part.any()}


@torch.no_grad()
def repeated_fraction(tokens: Tensor, mask: Tensor) -> Tensor:
    """Share of each response's runs of four generated tokens that stand in it before already.

    1 - distinct 4-grams / 4-grams: seq-rep-4 of Welleck et al. 2019, "Neural Text Generation with Unlikelihood
    Training", arXiv:1908.04319, section 6.1. A run must be trainable throughout: text of a tool is nobody's fault.

    Args:
        tokens: [batch, response] int64.
        mask: [batch, response] bool.

    Returns:
        [batch] float64; 0 for a response without such a run.
    """
    check_shapes(mask, tokens=tokens)
    length = tokens.shape[1] - NGRAM + 1
    if length < 1:
        return torch.zeros(len(tokens), dtype=torch.float64)
    # A polynomial in an odd number over 64-bit integers: two runs collide about once in 2^60.
    runs, is_run = tokens[:, :length].clone(), mask[:, :length].clone()
    for offset in range(1, NGRAM):
        runs = runs * 0x5851_F42D_4C95_7F2D + tokens[:, offset : offset + length]
        is_run &= mask[:, offset : offset + length]
    nothing = torch.iinfo(torch.int64).max
    ordered = torch.where(is_run, runs, nothing).sort(dim=1).values
    is_new = torch.ones_like(is_run)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    num_distinct = (is_new & (ordered != nothing)).sum(1)
    num_runs = is_run.sum(1)
    return torch.where(num_runs > 0, 1 - num_distinct.double() / num_runs.clamp(min=1), 0.0)


@torch.no_grad()
def num_turns(mask: Tensor) -> Tensor:
    """Runs of trainable tokens in each response: 1 without tools; [batch, response] bool to [batch] int64."""
    check_shapes(mask)
    begins = mask.clone()
    begins[:, 1:] &= ~mask[:, :-1]
    return begins.sum(1)


@torch.no_grad()
def ratio_diagnostics(
    log_probs: Tensor, old_log_probs: Tensor, mask: Tensor, *, num_tokens: float | Tensor
) -> dict[str, Tensor]:
    """How far the ratio of PPO strays: its maximum, and what the effective sample size is made of.

    Args:
        log_probs: [batch, response], of the policy that is updated.
        old_log_probs: [batch, response], of the policy before the update.
        mask: [batch, response] bool.
        num_tokens: Trainable tokens of the whole optimizer step.

    Returns:
        `ratio_max`, and `ratio_mean` and `ratio_square_mean`, which add up over micro-batches; see
        `effective_sample_fraction`.
    """
    check_shapes(mask, log_probs=log_probs, old_log_probs=old_log_probs)
    log_ratio = clean(log_probs, mask) - clean(old_log_probs, mask)
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    return {
        f"ratio{MAX_SUFFIX}": torch.where(mask, ratio, 0.0).max(),
        "ratio_mean": aggregate(ratio, mask, num_tokens=num_tokens),
        "ratio_square_mean": aggregate(ratio.square(), mask, num_tokens=num_tokens),
    }


def effective_sample_fraction(ratio_mean: float, ratio_square_mean: float) -> float:
    """Kish's effective sample size over the number of tokens: mean(ratio)^2 / mean(ratio^2).

    Kish 1965, "Survey Sampling", section 11.7; for importance weights: Owen 2013, "Monte Carlo theory, methods and
    examples", equation 9.13. 1 where all ratios are equal, towards 0 where a few tokens have all the weight.
    """
    return ratio_mean**2 / ratio_square_mean if ratio_square_mean > 0 else 0.0


@torch.no_grad()
def mismatch(
    log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, *, num_tokens: float | Tensor
) -> dict[str, Tensor]:
    """How far the training engine's log-probs are from those the rollout engine reported for the same weights.

    Args:
        log_probs: [batch, response], of the training engine.
        rollout_log_probs: [batch, response], of the rollout engine, which drew the tokens.
        mask: [batch, response] bool.
        num_tokens: Trainable tokens of the whole optimizer step.

    Returns:
        `log_prob_abs_diff`, and the estimates `kl_k1` and `kl_k3` of KL(rollout engine, training engine), each of
        which adds up over micro-batches.
    """
    difference = clean(log_probs, mask) - clean(rollout_log_probs, mask)
    estimates = {
        f"kl_{name}": estimate_kl(rollout_log_probs, log_probs, mask, estimator=name) for name in ("k1", "k3")
    }
    parts = {"log_prob_abs_diff": difference.abs(), **estimates}
    return {name: aggregate(part, mask, num_tokens=num_tokens) for name, part in parts.items()}
