"""Actor and critic from the configuration."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from relax_lightning.config import ModelConfig
from relax_lightning.config.architecture import architecture_of
from relax_lightning.megatron.role import Actor, Critic

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def model_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of `model.dtype`; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[name]


def build_actor(config: ModelConfig, device: torch.device, num_steps: int) -> Actor:
    """The actor, started from a Hugging Face directory or from scratch.

    Args:
        config: With every "null follows" resolved.
        device: This rank's.
        num_steps: Optimizer steps over the whole training, for the decay of the rate.
    """
    actor = config.actor
    return Actor(
        "actor",
        architecture_of(config),
        actor.parallel,
        actor.optimizer,
        num_steps=num_steps,
        recompute=actor.recompute,
        **_shared(config, device),
    )


def build_critic(config: ModelConfig, device: torch.device, num_steps: int) -> Critic:
    """The critic, whose trunk starts as the actor's does; see `build_actor`."""
    actor, critic = config.actor, config.critic
    return Critic(
        "critic",
        architecture_of(config),
        critic.parallel or actor.parallel,
        critic.optimizer.following(actor.optimizer),
        num_steps=num_steps,
        recompute=critic.recompute,
        head_init=critic.head_init,
        **_shared(config, device),
    )


def _shared(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    return {
        "dtype": model_dtype(config.dtype, device),
        "device": device,
        "weights": config.actor.hf_checkpoint if config.actor.architecture is None else None,
    }


def describe_model(config: ModelConfig, actor: Actor) -> dict[str, Any]:
    """What `export` must know to write the actor as a Hugging Face directory, as plain values."""
    source = config.actor.hf_checkpoint if config.actor.architecture is None else None
    tokenizer = config.actor.tokenizer
    if tokenizer is not None and Path(tokenizer).is_dir():
        tokenizer = str(Path(tokenizer).absolute())
    return {
        "architecture": asdict(actor.architecture),
        "distributed_optimizer": config.actor.optimizer.distributed,
        "hf_checkpoint": None if source is None else str(Path(source).absolute()),
        "tokenizer": tokenizer,
        "dtype": str(actor.dtype).removeprefix("torch."),
    }
