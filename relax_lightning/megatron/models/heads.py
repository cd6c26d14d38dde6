"""From hidden states to what the losses need: log-probs and entropy of the policy, values of the critic."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from relax_lightning.megatron.microbatch import Microbatch
from relax_lightning.megatron.models.fused import log_probs_and_entropy
from relax_lightning.megatron.models.model import PolicyModel
from relax_lightning.megatron.models.vocabulary import vocab_parallel_log_probs_and_entropy

CHUNK_TOKENS = 2048
"""Positions that go through the vocabulary at a time: their logits are dropped and recomputed in backward."""


class PolicyOutputs(NamedTuple):
    """What the policy says of the response tokens, both [rows, response] float32 with gradient, 0 in padding."""

    log_probs: Tensor
    entropy: Tensor


class CriticOutputs(NamedTuple):
    """What the critic says of the states before the response tokens, float32 with gradient, 0 in padding."""

    values: Tensor
    """[rows, response]."""
    final_values: Tensor | None
    """[rows]: value of the state after each response, when its last token was fed."""


def policy_outputs(
    model: PolicyModel, hidden: Tensor, batch: Microbatch, temperature: float
) -> PolicyOutputs:
    """Log-probs of the response tokens at the sampling temperature, and the entropy of the same distribution.

    Args:
        hidden: [tokens, 1, hidden] of the packed micro-batch, as the model's forward gave it.
        temperature: The sampling temperature, above 0.
    """
    states = model.gathered(hidden).index_select(0, batch.states)
    groups = model.groups

    def chunk(rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = model.logits(rows)
        if groups.tensor_size == 1:
            return log_probs_and_entropy(logits, targets, temperature)
        return vocab_parallel_log_probs_and_entropy(logits, targets, temperature, groups=groups)

    if states.shape[0] <= CHUNK_TOKENS:
        log_probs, entropy = chunk(states, batch.targets)
    else:
        pairs = zip(states.split(CHUNK_TOKENS), batch.targets.split(CHUNK_TOKENS), strict=True)
        parts = [
            checkpoint(chunk, rows, targets, use_reentrant=False, preserve_rng_state=False)
            for rows, targets in pairs
        ]
        log_probs, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    return PolicyOutputs(batch.scatter(log_probs), batch.scatter(entropy))


def critic_outputs(model: PolicyModel, hidden: Tensor, batch: Microbatch) -> CriticOutputs:
    """Values of the states before each response token; [tokens, 1, hidden] in, [rows, response] out."""
    hidden = model.gathered(hidden)
    values = model.logits(hidden.index_select(0, batch.states)).squeeze(-1)
    final = None
    if batch.final_states is not None:
        final = model.logits(hidden.index_select(0, batch.final_states)).squeeze(-1)
    return CriticOutputs(batch.scatter(values), final)
