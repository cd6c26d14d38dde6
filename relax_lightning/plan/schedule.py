"""The optimizer steps of each role and the learning rates that they will use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relax_lightning.config.optimizer import OptimizerConfig
from relax_lightning.config.tree import Config

PACKING_UNIT_CPU, PACKING_UNIT_GPU = 4096, 8192
"""The longest sample rounded up to a multiple of these is the default token budget of a micro-batch."""


@dataclass(frozen=True)
class RoleSchedule:
    """What one role's optimizer does over the whole run."""

    steps_per_iteration: int
    iterations: int
    """Iterations that the role trains in."""
    warmup_steps: int
    rates: dict[str, float]
    """Learning rate at step 0, 1, the first one past the warm-up, and the last."""


def optimizer_steps(config: Config, role: str) -> int | None:
    """Optimizer steps of a role in an iteration it trains in; None while the batch sizes do not say."""
    samples, model = samples_per_iteration(config), config.model
    if samples is None:
        return None
    epochs = model.algorithm.num_ppo_epochs
    if role == "critic" and model.algorithm.num_critic_epochs is not None:
        epochs = model.algorithm.num_critic_epochs
    return epochs * max(1, samples // (model.global_batch_size or samples))


def samples_per_iteration(config: Config) -> int | None:
    """Samples of an iteration, all ranks together; None where `data.rollout.batch_size` is missing."""
    rollout = config.data.rollout
    return None if rollout.batch_size is None else rollout.batch_size * rollout.n_samples_per_prompt


def longest_sample(config: Config) -> int | None:
    """Prompt and response of the longest training sample in tokens; None where the prompts are not bounded."""
    train, sampling = config.data.rollout.train, config.data.rollout.sampling
    if train is None or train.max_prompt_tokens is None:
        return None
    return train.max_prompt_tokens + sampling.max_new_tokens


def microbatch_tokens(config: Config, longest: int | None, on_gpu: bool) -> int | None:
    """Most tokens of a micro-batch, where no sample is longer than `longest`; None where that is wanted and unknown."""
    model = config.model
    if model.max_tokens_per_microbatch is not None:
        return max(model.max_tokens_per_microbatch, longest or 0)
    if model.micro_batch_size is not None:
        return None if longest is None else model.micro_batch_size * longest
    unit = PACKING_UNIT_GPU if on_gpu else PACKING_UNIT_CPU
    return None if longest is None else unit * -(-longest // unit)


def critic_only_iterations(config: Config) -> int:
    """First iterations in which the actor does not train."""
    warmup = config.callbacks.critic_only_warmup
    return 0 if warmup is None else warmup.num_steps


def warmup_steps(config: Config, role: str) -> int:
    """Length of a role's linear warm-up in optimizer steps; 0 without."""
    warmup = config.callbacks.lr_warmup
    return 0 if warmup is None else getattr(warmup, role).num_iters


def learning_rate(optimizer: OptimizerConfig, step: int, num_steps: int, warmup: int) -> float:
    """The rate of optimizer step `step`, counted from 0: Megatron's decay times our linear warm-up.

    Source: megatron.core.optimizer_param_scheduler.OptimizerParamScheduler.get_lr, its own warm-up off.
    """
    if optimizer.decay == "constant":
        rate = optimizer.lr
    elif step > num_steps:
        rate = optimizer.min_lr
    else:
        ratio = step / max(num_steps, 1)
        share = 1.0 - ratio if optimizer.decay == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1.0)
        rate = optimizer.min_lr + share * (optimizer.lr - optimizer.min_lr)
    return rate * (min(1.0, (step + 1) / warmup) if warmup else 1.0)


def role_schedule(config: Config, role: str) -> RoleSchedule | None:
    """A role's optimizer steps and rates under a resolved configuration; None while the sizes do not say."""
    trainer = config.trainer
    # Lightning's own rule: `true` is one.
    steps, iterations = optimizer_steps(config, role), int(trainer.fast_dev_run) or trainer.max_steps
    if steps is None or iterations < 1:
        return None
    iterations -= critic_only_iterations(config) if role == "actor" else 0
    if iterations < 1:
        return None
    actor, warmup = config.model.actor.optimizer, warmup_steps(config, role)
    optimizer = actor if role == "actor" else config.model.critic.optimizer.following(actor)
    num_steps = max(iterations * steps, 1)
    marks = {"step 0": 0, "step 1": 1, "warm-up end": warmup, "last step": num_steps - 1}
    rates = {
        name: learning_rate(optimizer, step, num_steps, warmup)
        for name, step in marks.items()
        if step < num_steps and (warmup or name != "warm-up end")
    }
    return RoleSchedule(steps, iterations, warmup, rates)
