"""Chains of small operations as one kernel each: compiled where there is a GPU, as they stand on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_ROWS = 1024
"""Fewer rows run as they stand: decoding and small models would spend more on compiling than they win."""


class CompiledOnGpu:
    """A function of tensors that `torch.compile` fuses where its first argument is large and on a GPU.

    Args:
        function: Takes a tensor first.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, first: Tensor, *rest: Any) -> Any:
        """Call it."""
        if not first.is_cuda or len(first) < MIN_ROWS:
            return self._function(first, *rest)
        if self._compiled is None:
            self._compiled = torch.compile(self._function, dynamic=True)
        return self._compiled(first, *rest)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _head_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _log_probs_and_entropy(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, targets[:, None]).squeeze(-1), entropy


rotate = CompiledOnGpu(_rotate)
"""(x, cos, sin) -> x turned by its position's angles: [tokens, heads, size], [tokens, 1, size] twice."""

rms_norm, head_rms_norm = CompiledOnGpu(_rms_norm), CompiledOnGpu(_head_rms_norm)
"""(x, weight, eps) -> x over its root mean square, times weight: [tokens, 1, size], or [tokens, 1, heads, size], and
[size]. Two, because torch compiles one function for few shapes only."""

log_probs_and_entropy = CompiledOnGpu(_log_probs_and_entropy)
"""(logits, targets, temperature) -> log-probs of `targets` and the entropy, in fp32 and with gradient.

[tokens, vocabulary] and [tokens] int64 in, two [tokens] float32 out; `temperature` divides the logits.
"""
