"""Chains of small operations as one kernel each: compiled where there is a GPU, as they stand on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
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

    def __call__(self, first: Tensor, *rest: Any) -> Any:
        """Call it."""
        if not first.is_cuda or len(first) < MIN_ROWS:
            return self._function(first, *rest)
        for tensor in (first, *rest):
            if isinstance(tensor, Tensor) and tensor.dim() > 1:
                torch._dynamo.mark_static(tensor, tensor.dim() - 1)
        return self.compiled(first, *rest)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """The compiled function, for any number of rows and the sizes that rows have."""
        # Else every float is an input on the host, computed with by C++ that takes half a minute to compile.
        torch._dynamo.config.specialize_float = True
        return torch.compile(self._function, dynamic=True)


def plain_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [tokens, heads, size] turned by its position's angles; `cos` and `sin` [tokens, 1, size]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [..., size] over its root mean square, times `weight` [size]."""
    return F.rms_norm(x, weight.shape, weight, eps)


def _head_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def softmax_parts(logits: Tensor, targets: Tensor, highest: Tensor, temperature: float) -> Tensor:
    """What a part of the vocabulary adds to log-probs and entropy.

    Args:
        logits: [tokens, part of the vocabulary].
        targets: [tokens] int64; one outside of the part adds nothing to the last sum.
        highest: [tokens] float32: the largest logit of the whole vocabulary over the temperature.
        temperature: Divides the logits.

    Returns:
        [3, tokens] float32: the sum of the exponentials, that sum weighted by the logits, and the target's logit, all
        less `highest`.
    """
    scaled = logits.float() / temperature - highest[:, None]
    weights = scaled.exp()
    is_here = (targets >= 0) & (targets < logits.shape[-1])
    chosen = scaled.gather(-1, torch.where(is_here, targets, 0)[:, None]).squeeze(-1)
    return torch.stack((weights.sum(-1), (weights * scaled).sum(-1), torch.where(is_here, chosen, 0.0)))


def from_parts(parts: Tensor, highest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropy and the logarithm of the sum, [tokens] each, from the parts of the whole vocabulary."""
    total, weighted, chosen = parts.unbind()
    return chosen - total.log(), total.log() - weighted / total, total.log() + highest


def _policy_forward(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    highest = logits.amax(-1).float() / temperature
    return from_parts(softmax_parts(logits, targets, highest, temperature), highest)


def _policy_backward(
    logits: Tensor,
    targets: Tensor,
    log_total: Tensor,
    entropy: Tensor,
    temperature: float,
    log_prob_gradient: Tensor,
    entropy_gradient: Tensor,
) -> Tensor:
    # Of the chosen log-prob: one at the choice, less the probabilities. Of the entropy: -p (log p + entropy).
    log_probs = logits.float() / temperature - log_total[:, None]
    factor = (log_probs + entropy[:, None]) * entropy_gradient[:, None] + log_prob_gradient[:, None]
    gradient = -log_probs.exp() * factor
    chosen = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    gradient = torch.where(chosen, gradient + log_prob_gradient[:, None], gradient)
    return (gradient / temperature).to(logits.dtype)


rotate = CompiledOnGpu(plain_rotate)
"""(x, cos, sin) -> x turned by its position's angles: [tokens, heads, size], [tokens, 1, size] twice."""

rms_norm, head_rms_norm = CompiledOnGpu(plain_rms_norm), CompiledOnGpu(_head_rms_norm)
"""(x, weight, eps) -> x over its root mean square, times weight: [tokens, 1, size], or [tokens, 1, heads, size], and
[size]. Two, because torch compiles one function for few shapes only."""

policy_forward, policy_backward = CompiledOnGpu(_policy_forward), CompiledOnGpu(_policy_backward)


class _LogProbsAndEntropy(torch.autograd.Function):
    """Two passes over the logits forward and one backward, which the gradient of a softmax alone does not find."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        log_probs, entropy, log_total = policy_forward(logits, targets, temperature)
        ctx.save_for_backward(logits, targets, log_total, entropy)
        ctx.temperature = temperature
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return policy_backward(*ctx.saved_tensors, ctx.temperature, *gradients), None, None


def log_probs_and_entropy(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of `targets` and the entropy, in fp32 and with gradient.

    Args:
        logits: [tokens, vocabulary].
        targets: [tokens] int64.
        temperature: Divides the logits.

    Returns:
        [tokens] float32 twice.
    """
    return _LogProbsAndEntropy.apply(logits, targets, temperature)  # pyright: ignore[reportReturnType]
