"""Log-probs and entropy over a vocabulary that is cut over tensor ranks; no rank ever holds all logits of a token."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch import Tensor

from relax_lightning.megatron.groups import ModelGroups

_NEVER = -1.0e9
"""Logit of a row that stands for no token: its probability is exactly 0, and so is its gradient."""


def vocab_parallel_log_probs_and_entropy(
    logits: Tensor, targets: Tensor, temperature: float, *, num_tokens: int, groups: ModelGroups
) -> tuple[Tensor, Tensor]:
    """Log-probs of `targets` and the entropy, in fp32 and with gradient, the same on every tensor rank.

    Args:
        logits: [tokens, vocabulary / tensor ranks]: this rank's rows.
        targets: [tokens] int64.
        temperature: Divides the logits.
        num_tokens: Rows of all ranks that stand for a token; the rest is padding.
        groups: What the vocabulary is cut over.

    Returns:
        Two [tokens] float32.
    """
    group, width = groups.collection.tp, logits.shape[-1]
    start = groups.tensor_rank * width
    scaled = logits.float() / temperature
    if start + width > num_tokens:
        scaled = scaled.masked_fill(
            torch.arange(start, start + width, device=logits.device) >= num_tokens, _NEVER
        )
    largest = scaled.detach().amax(-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    scaled = scaled - largest[:, None]
    exponentials = scaled.exp()
    own = targets - start
    is_here = (own >= 0) & (own < width)
    picked = scaled.gather(-1, own.where(is_here, 0)[:, None]).squeeze(-1).where(is_here, 0.0)
    # One reduction for the three sums over the vocabulary.
    parts = torch.stack((exponentials.sum(-1), (exponentials * scaled).sum(-1), picked))
    total, weighted, picked = reduce_from_tensor_model_parallel_region(parts, group=group).unbind()
    log_total = total.log()
    return picked - log_total, log_total - weighted / total
