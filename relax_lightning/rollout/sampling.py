"""Drawing a token: by inversion of the cumulative distribution, from a draw that depends on nothing but its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relax_lightning.config import SamplingConfig


def sample_streams(seed: int, sample_ids: Sequence[int] | Any) -> Tensor:
    """What the draws of a sample start from.

    SplitMix64 (Steele, Lea, Flood 2014, "Fast Splittable Pseudorandom Number Generators") over seed and sample id.

    Args:
        seed: Any integer; its lowest 64 bits count.
        sample_ids: [samples] integers.

    Returns:
        [samples] int64.
    """
    state = _mix(torch.tensor(_signed(seed & _MASK)) + _GOLDEN)
    return _mix(state ^ (torch.as_tensor(sample_ids, dtype=torch.int64) + _GOLDEN))


def draws_at(streams: Tensor, positions: Tensor | int) -> Tensor:
    """The uniform draw of each sample at its position, on no batch, rank or order depending.

    Args:
        streams: [samples] int64, of `sample_streams`.
        positions: [samples] int64 or one for all: of the token in its response, from 0.

    Returns:
        [samples] float64 in [0, 1).
    """
    state = _mix(streams ^ (positions + _GOLDEN))
    return _shift(state, 11).double() * 2.0**-53


def uniform_draws(seed: int, sample_ids: Sequence[int] | Any, position: int) -> Tensor:
    """The draws of the named samples at `position`; [samples] float64 in [0, 1)."""
    return draws_at(sample_streams(seed, sample_ids), position)


def _signed(value: int) -> int:
    """The int64 that has the bits of an unsigned 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value


_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = _signed(0x9E37_79B9_7F4A_7C15)
_FIRST = _signed(0xBF58_476D_1CE4_E5B9)
_SECOND = _signed(0x94D0_49BB_1331_11EB)


def _shift(z: Tensor, bits: int) -> Tensor:
    # torch shifts int64 with its sign; the generator is defined on unsigned integers.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


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
    log_probs = logits.float() / (sampling.temperature or 1.0)
    # In float32, over a large vocabulary, torch's log_softmax on a CPU is 20 times as far from the truth.
    log_probs = log_probs - log_probs.logsumexp(-1, keepdim=True)
    if sampling.temperature == 0:
        tokens = log_probs.argmax(-1)
    else:
        probs = log_probs.exp()
        if sampling.top_k > 0 or sampling.top_p < 1.0:
            top_k = torch.full(probs.shape[:1], sampling.top_k, device=probs.device)
            top_p = torch.full(probs.shape[:1], sampling.top_p, device=probs.device)
            probs = likeliest(probs, top_k.where(top_k > 0, probs.shape[-1]), top_p)
        tokens = draw_tokens(probs, draws)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


_BLOCK = 512


def draw_tokens(probs: Tensor, draws: Tensor) -> Tensor:
    """The token in whose interval of the cumulative distribution each row's draw lies.

    First among sums of 512 tokens, then within one of them, so that the vocabulary is read once and never copied.

    Args:
        probs: [rows, vocabulary], not necessarily with the sum 1.
        draws: [rows] float64 in [0, 1).

    Returns:
        [rows] int64: never a token of probability 0 unless all are.
    """
    size = probs.shape[-1]
    whole = size - size % _BLOCK
    sums = probs[:, :whole].unflatten(-1, (-1, _BLOCK)).sum(-1)
    ends = torch.cat((sums, probs[:, whole:].sum(-1, keepdim=True)), -1).double().cumsum(-1)
    target = draws.to(probs.device)[:, None] * ends[:, -1:]
    block = _first_above(ends, target)
    begin = torch.where(block > 0, ends.gather(-1, (block - 1).clamp(min=0)), 0.0)
    places = block * _BLOCK + torch.arange(_BLOCK, device=probs.device)
    inside = probs.gather(-1, places.clamp(max=size - 1)).double().where(places < size, 0.0)
    return (block * _BLOCK + _first_above(begin + inside.cumsum(-1), target)).squeeze(-1).clamp_(max=size - 1)


def _first_above(ends: Tensor, target: Tensor) -> Tensor:
    """[rows, 1] int64: the first of the ascending ends [rows, n] above the target [rows, 1], or equal to the last."""
    below = torch.nextafter(ends[:, -1:], torch.full_like(target, -torch.inf))
    return torch.searchsorted(ends, torch.minimum(target, below), right=True)


def likeliest(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The probabilities with those that top_k, and then top_p, leave out at 0; not renormalized.

    Args:
        probs: [rows, vocabulary].
        top_k: [rows] int64: how many tokens to keep; the vocabulary's size and more keep all.
        top_p: [rows] float32: keep the fewest that reach this share of what top_k kept; 1 keeps all.

    Returns:
        [rows, vocabulary].
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    ordered = torch.where(ranks < top_k[:, None], ordered, 0.0)
    before = ordered.cumsum(-1) - ordered
    wanted = top_p[:, None] * ordered.sum(-1, keepdim=True)
    # Rounding in the sums may leave the last tokens out, which only a top_p below 1 is allowed to.
    ordered = torch.where((before < wanted) | (top_p[:, None] >= 1.0), ordered, 0.0)
    return torch.zeros_like(probs).scatter_(-1, order, ordered)
