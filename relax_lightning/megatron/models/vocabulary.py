"""Log-probs and entropy over a vocabulary that is cut over tensor ranks; no rank ever holds all logits of a token."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relax_lightning.megatron.groups import ModelGroups
from relax_lightning.megatron.models.fused import CompiledOnGpu, from_parts, policy_backward, softmax_parts


def vocab_parallel_log_probs_and_entropy(
    logits: Tensor, targets: Tensor, temperature: float, *, groups: ModelGroups
) -> tuple[Tensor, Tensor]:
    """Log-probs of `targets` and the entropy, in fp32 and with gradient, the same on every tensor rank.

    Args:
        logits: [tokens, vocabulary / tensor ranks]: this rank's rows.
        targets: [tokens] int64.
        temperature: Divides the logits.
        groups: What the vocabulary is cut over.

    Returns:
        Two [tokens] float32.
    """
    start = groups.tensor_rank * logits.shape[-1]
    # A target that another rank holds lies outside of this rank's rows.
    return _VocabParallel.apply(logits, targets - start, temperature, groups.collection.tp)  # pyright: ignore[reportReturnType]


local_parts = CompiledOnGpu(softmax_parts)
"""`softmax_parts`, compiled."""


class _VocabParallel(torch.autograd.Function):
    """`log_probs_and_entropy`, whose sums over the vocabulary are reduced over the tensor ranks, all three at once."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, group: Any
    ) -> tuple[Tensor, Tensor]:
        highest = logits.amax(-1).float() / temperature
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        parts = local_parts(logits, targets, highest, temperature)
        dist.all_reduce(parts, group=group)
        log_probs, entropy, log_total = from_parts(parts, highest)
        ctx.save_for_backward(logits, targets, log_total, entropy)
        ctx.temperature = temperature
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return policy_backward(*ctx.saved_tensors, ctx.temperature, *gradients), None, None, None
