"""What an iteration's record takes on the host, and a checkpoint on disk."""

from __future__ import annotations

from relax_lightning.config.model import ParallelConfig
from relax_lightning.config.optimizer import OptimizerConfig
from relax_lightning.plan.memory.architectures import Architecture
from relax_lightning.plan.memory.parameters import RoleName, parameters
from relax_lightning.plan.memory.widths import FP32, element_bytes

_SAMPLE_BYTES = 8 + 8 + 8 + 4
"""Of a sample's id, prompt length, response length and reward."""
_PROMPT_TOKEN_BYTES = 8
_RESPONSE_TOKEN_BYTES = 8 + 1 + 5 * FP32
"""The token, its mask, the engine's log-prob, and value, advantage, return and old log-prob."""


def rollout_bytes(num_samples: int, prompt_tokens: int, response_tokens: int) -> int:
    """Bytes of the tensors of an `Experience` and its `Rollouts` (batch.py); the texts come on top.

    Args:
        num_samples: Of the iteration.
        prompt_tokens: Longest prompt: all are padded to it.
        response_tokens: Longest response, likewise.
    """
    prompts, responses = prompt_tokens * _PROMPT_TOKEN_BYTES, response_tokens * _RESPONSE_TOKEN_BYTES
    return num_samples * (_SAMPLE_BYTES + prompts + responses)


def checkpoint_bytes(
    architecture: Architecture, dtype: str, actor: OptimizerConfig, critic: OptimizerConfig
) -> int:
    """Bytes of one checkpoint: both roles' weights and optimizers, over all ranks; file headers come on top.

    The distributed optimizer writes fp32 main weights beside the moments also where the model is fp32 itself
    (core/optimizer/distrib_optimizer.py: sharded_param_state_fully_reshardable).

    Args:
        architecture: The trunk.
        dtype: The model's.
        actor: The actor's optimizer.
        critic: The critic's.
    """
    roles: dict[RoleName, OptimizerConfig] = {"actor": actor, "critic": critic}
    total = 0
    for role, optimizer in roles.items():
        has_main_weights = optimizer.distributed or element_bytes(dtype) != FP32
        state = (3 if has_main_weights else 2) * FP32
        total += parameters(architecture, ParallelConfig(), role) * (element_bytes(dtype) + state)
    return total
