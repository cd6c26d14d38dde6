"""Drawing a token: by inversion of the cumulative distribution, from a draw that depends on nothing but its name."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from relax_lightning.config import SamplingConfig


def uniform_draws(seed: int, sample_ids: np.ndarray, position: int) -> Tensor:
    """The uniform draw of each sample at `position`.

    SplitMix64 (Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators") over the three names, so
    that a draw depends on no batch, rank or order.

    Args:
        seed: Any integer.
        sample_ids: [samples] int64.
        position: Of the token in its response, from 0.

    Returns:
        [samples] float64 in [0, 1).
    """
    with np.errstate(over="ignore"):
        state = _mix(np.uint64(seed & 0xFFFF_FFFF_FFFF_FFFF) + _GOLDEN)
        state = _mix(state ^ (sample_ids.astype(np.uint64) + _GOLDEN))
        state = _mix(state ^ (np.uint64(position) + _GOLDEN))
    return torch.from_numpy((state >> np.uint64(11)).astype(np.float64) * 2.0**-53)


_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)


def _mix(z: np.ndarray | np.uint64) -> np.ndarray | np.uint64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))


def sample_tokens(logits: Tensor, draws: Tensor, sampling: SamplingConfig) -> tuple[Tensor, Tensor]:
    """The token of each row and its log-prob.

    Args:
        logits: [rows, vocabulary].
        draws: [rows] float64 in [0, 1).
        sampling: Temperature, top_p and top_k; temperature 0 takes the likeliest token.

    Returns:
        tokens [rows] int64, and log_probs [rows] float32 at the sampling temperature (1 where that is 0), before
        top_p and top_k.
    """
    log_probs = torch.log_softmax(logits.float() / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        tokens = log_probs.argmax(-1)
    else:
        cumulative = _kept(log_probs.exp(), sampling).double().cumsum(-1)
        target = draws.to(logits.device)[:, None] * cumulative[:, -1:]
        tokens = (
            torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)
        )
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def _kept(probs: Tensor, sampling: SamplingConfig) -> Tensor:
    """[rows, vocabulary] probabilities with those that top_k and top_p leave out at 0, not renormalized."""
    vocabulary = probs.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        kept = probs.topk(sampling.top_k, dim=-1)
        probs = torch.zeros_like(probs).scatter_(-1, kept.indices, kept.values)
    if sampling.top_p < 1.0:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        wanted = sampling.top_p * ordered.sum(-1, keepdim=True)
        ordered = torch.where(before < wanted, ordered, 0.0)
        probs = torch.zeros_like(probs).scatter_(-1, order, ordered)
    return probs
