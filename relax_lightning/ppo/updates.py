"""The optimizer steps of one role in one iteration: which samples, which loss, what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relax_lightning.algorithms.aggregation import MAX_SUFFIX, aggregate, join_parts, sequence_mean_weights
from relax_lightning.algorithms.diagnostics import effective_sample_fraction, mismatch, ratio_diagnostics
from relax_lightning.algorithms.importance import (
    ImportanceWeights,
    importance_metrics,
    importance_sums,
    importance_weights,
)
from relax_lightning.algorithms.kl import estimate_kl
from relax_lightning.algorithms.losses import policy_loss, positive_nll, positive_tokens, value_loss
from relax_lightning.config import AlgorithmConfig, ModelConfig
from relax_lightning.megatron.groups import ModelGroups
from relax_lightning.megatron.models.heads import CriticOutputs, PolicyOutputs
from relax_lightning.megatron.role import Actor, Critic, MegatronRole, StepResult
from relax_lightning.plan.schedule import PACKING_UNIT_CPU, PACKING_UNIT_GPU
from relax_lightning.ppo.batch import Experience
from relax_lightning.ppo.packing import deal, microbatches, optimizer_steps

_MISMATCH = "mismatch_"
"""Begins the names of a step's metrics that compare the engine with the actor."""
BeforeStep = Callable[[int], float]
"""Called before optimizer step number `step` of the role; answers the factor on its learning rate."""


class NotFiniteError(RuntimeError):
    """Training stopped because updates kept giving NaN or infinity."""


@dataclass
class StepLog:
    """What the optimizer steps of one role gave in one iteration, and how to say it in metrics."""

    role: str
    steps: list[StepResult] = field(default_factory=list)

    def metrics(self, loss_name: str) -> dict[str, float]:
        """Means over the applied steps, the largest of what is a maximum; empty when none was."""
        done = [step for step in self.steps if step.applied]
        if not done:
            return {}
        means, told = {}, [_finished(step.metrics) for step in done]
        for name in told[0]:
            joined = join_parts(name, [metrics[name] for metrics in told])
            means[f"{self.role}/{name}"] = joined if name.endswith(MAX_SUFFIX) else joined / len(done)
        means[f"{self.role}/{loss_name}"] = sum(s.loss for s in done) / len(done)
        means[f"{self.role}/grad_norm"] = sum(s.grad_norm for s in done) / len(done)
        means[f"{self.role}/lr"] = done[-1].lr
        return means

    def mismatch(self) -> dict[str, float]:
        """The engine against the actor: of the first step, which alone still sees the weights that generated."""
        if not self.steps or not self.steps[0].applied:
            return {}
        first = self.steps[0].metrics
        return {
            f"mismatch/{name.removeprefix(_MISMATCH)}": first[name]
            for name in first
            if name.startswith(_MISMATCH)
        }


def _finished(metrics: dict[str, float]) -> dict[str, float]:
    """What is told of one step: without the engine's mismatch, and with what its sums over micro-batches give."""
    told = {name: value for name, value in metrics.items() if not name.startswith(_MISMATCH)}
    if "ratio_square_mean" in told:
        square = told.pop("ratio_square_mean")
        told["effective_sample_fraction"] = effective_sample_fraction(told["ratio_mean"], square)
    return told


@dataclass
class FiniteGuard:
    """Counts each role's updates in a row that were skipped for NaN or infinity, and ends training at the limit."""

    limit: int
    consecutive: dict[str, int] = field(default_factory=dict)

    def check(self, result: StepResult, role: str, iteration: int, sample_ids: list[int]) -> str | None:
        """The warning of a skipped step, or None.

        Raises:
            NotFiniteError: That was the `limit`-th in a row.
        """
        if result.applied:
            self.consecutive[role] = 0
            return None
        self.consecutive[role] = in_a_row = self.consecutive.get(role, 0) + 1
        what = f"loss {result.loss}, gradient norm {result.grad_norm}"
        ranks = ", ".join(map(str, result.not_finite_ranks)) or "all"
        where = f"iteration {iteration}, {role}, rank {ranks}, samples {sample_ids}"
        message = f"{what} in {where}: the optimizer step was not applied"
        if in_a_row >= self.limit:
            raise NotFiniteError(f"{message}; {in_a_row} in a row, model.max_consecutive_nan reached")
        return message


class Batching:
    """How an iteration's samples fall to optimizer steps and micro-batches.

    Args:
        config: Batch sizes.
        on_gpu: The default token budget differs.
    """

    def __init__(self, config: ModelConfig, on_gpu: bool) -> None:
        self._config = config
        self._unit = PACKING_UNIT_GPU if on_gpu else PACKING_UNIT_CPU

    def groups(self, experience_or_rollouts: Any, rows: list[int], cut: ModelGroups) -> list[list[int]]:
        """Rows of each micro-batch of this process's replica of a model that is cut like this, which may get none.

        Samples without a response are left out; the others are dealt out over the replicas.
        """
        rollouts = getattr(experience_or_rollouts, "rollouts", experience_or_rollouts)
        lengths = (rollouts.prompt_lengths + rollouts.response_lengths).tolist()
        responses = rollouts.response_lengths.tolist()
        budget = self._config.max_tokens_per_microbatch
        if budget is None:
            budget = self._unit * math.ceil(max(lengths) / self._unit)
        kept = [row for row in rows if responses[row] > 0]
        mine = deal(lengths, kept, cut.num_replicas)[cut.replica]
        return microbatches(lengths, mine, max_samples=self._config.micro_batch_size, max_tokens=budget)

    def steps(self, num_samples: int, num_epochs: int, seed: int) -> Iterator[list[int]]:
        """Rows of each optimizer step, pass after pass."""
        for epoch in range(num_epochs):
            yield from optimizer_steps(num_samples, self._config.global_batch_size, seed + epoch)


class StepLoss:
    """The loss of one optimizer step, given micro-batch by micro-batch.

    Args:
        experience: The iteration's record, on CPU.
        rows: The samples of the step.
        algorithm: The arithmetic.
        device: Where the model's outputs are.
    """

    def __init__(
        self, experience: Experience, rows: list[int], algorithm: AlgorithmConfig, device: torch.device
    ) -> None:
        self._counts = StepCounts.of(experience, rows, algorithm)
        self.num_tokens = self._counts.tokens
        self._experience = experience
        self._algorithm = algorithm
        self._device = device

    def _pick(self, rows: tuple[int, ...], *names: str) -> list[Tensor]:
        index = list(rows)
        records = [self._experience, self._experience.rollouts]
        tensors = [next(getattr(r, name) for r in records if hasattr(r, name)) for name in names]
        return [tensor[index].to(self._device, non_blocking=True) for tensor in tensors]

    def _weights(self, mask: Tensor) -> Tensor | None:
        if self._algorithm.loss_aggregation == "token_mean":
            return None
        return sequence_mean_weights(mask, num_tokens=self.num_tokens, num_samples=self._counts.samples)

    def critic(self, outputs: CriticOutputs, rows: tuple[int, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped value loss of a micro-batch."""
        mask, values, returns = self._pick(rows, "response_mask", "values", "returns")
        return value_loss(
            outputs.values,
            values,
            returns,
            mask,
            value_clip=self._algorithm.value_clip,
            weights=self._weights(mask),
            num_tokens=self.num_tokens,
        )

    def actor(self, outputs: PolicyOutputs, rows: tuple[int, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped policy loss of a micro-batch, and the terms beside it that are switched on."""
        names = ("response_mask", "old_log_probs", "advantages", "rollout_log_probs")
        mask, old_log_probs, advantages, rollout_log_probs = self._pick(rows, *names)
        a, num_tokens = self._algorithm, self.num_tokens
        weights = self._weights(mask)
        if a.importance_cap is not None:
            importance = importance_of(old_log_probs, rollout_log_probs, mask, a).weights
            weights = importance if weights is None else weights * importance
        loss, metrics = policy_loss(
            outputs.log_probs,
            old_log_probs,
            advantages,
            mask,
            eps_clip=a.eps_clip,
            eps_clip_high=a.eps_clip_high,
            eps_clip_c=a.eps_clip_c,
            weights=weights,
            num_tokens=num_tokens,
        )
        loss = loss + self._beside(outputs, rows, mask, metrics)
        metrics["entropy"] = aggregate(outputs.entropy.detach(), mask, num_tokens=num_tokens)
        log_probs = outputs.log_probs.detach()
        metrics |= ratio_diagnostics(log_probs, old_log_probs, mask, num_tokens=num_tokens)
        found = mismatch(log_probs, rollout_log_probs, mask, num_tokens=num_tokens)
        metrics |= {f"{_MISMATCH}{name}": value for name, value in found.items()}
        return loss, metrics

    def _beside(
        self, outputs: PolicyOutputs, rows: tuple[int, ...], mask: Tensor, metrics: dict[str, Tensor]
    ) -> Tensor:
        """Entropy bonus, KL to the reference, likelihood of good samples: each times its weight; adds to metrics."""
        a, weights = self._algorithm, self._weights(mask)
        total = outputs.log_probs.new_zeros(())
        if a.entropy_coef:
            bonus = aggregate(outputs.entropy, mask, weights=weights, num_tokens=self.num_tokens)
            total = total - a.entropy_coef * bonus
        if a.use_kl_loss:
            (ref_log_probs,) = self._pick(rows, "ref_log_probs")
            per_token = estimate_kl(outputs.log_probs, ref_log_probs, mask, estimator=a.kl_loss_type)
            kl = aggregate(per_token, mask, weights=weights, num_tokens=self.num_tokens)
            metrics["kl_loss"] = kl.detach()
            total = total + a.kl_loss_coef * kl
        if a.positive_nll_coef:
            (rewards,) = self._pick(rows, "rewards")
            nll = positive_nll(
                outputs.log_probs,
                rewards,
                mask,
                threshold=a.positive_nll_threshold,
                num_tokens=max(1, self._counts.positive_tokens),
            )
            metrics["positive_nll"] = nll.detach()
            total = total + a.positive_nll_coef * nll
        return total


@dataclass(frozen=True)
class StepCounts:
    """What a step's losses are divided by: sums over all its samples, on whichever rank they are."""

    tokens: int
    """Trainable ones."""
    samples: int
    """With a trainable token."""
    positive_tokens: int
    """Trainable tokens of samples that did well."""

    @classmethod
    def of(cls, experience: Experience, rows: list[int], algorithm: AlgorithmConfig) -> StepCounts:
        """The counts of the given samples."""
        rollouts = experience.rollouts
        mask = rollouts.response_mask[rows]
        positive = positive_tokens(rollouts.rewards[rows], mask, threshold=algorithm.positive_nll_threshold)
        return cls(int(mask.sum()), int(mask.any(1).sum()), int(positive.sum()))


def importance_of(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, algorithm: AlgorithmConfig
) -> ImportanceWeights:
    """The importance weights that the configuration asks for; `importance_cap` is set."""
    assert algorithm.importance_cap is not None
    return importance_weights(
        old_log_probs,
        rollout_log_probs,
        mask,
        cap=algorithm.importance_cap,
        floor=algorithm.importance_floor,
        level=algorithm.importance_level,
        mode=algorithm.importance_mode,
    )


def importance_statistics(experience: Experience, algorithm: AlgorithmConfig) -> dict[str, float]:
    """Metrics of an iteration's importance weights; none where there are no such weights."""
    if algorithm.importance_cap is None:
        return {}
    rollouts, mask = experience.rollouts, experience.rollouts.response_mask
    found = importance_of(experience.old_log_probs, rollouts.rollout_log_probs, mask, algorithm)
    return importance_metrics(importance_sums(found, mask), mode=algorithm.importance_mode)


def run_steps(
    role: MegatronRole,
    experience: Experience,
    batching: Batching,
    steps: Iterator[list[int]],
    algorithm: AlgorithmConfig,
    before_step: BeforeStep,
    after_step: Callable[[StepResult, list[int]], bool],
) -> StepLog:
    """The optimizer steps of a role over an iteration's experience.

    A step whose samples have no trainable token is left out: nothing moves, no counter counts.

    Args:
        role: Actor or critic.
        experience: The iteration's record.
        batching: Makes the micro-batches.
        steps: Rows of each step.
        algorithm: The arithmetic.
        before_step: Asked for the learning-rate factor of each step.
        after_step: Told each result and its rows; answers whether to go on.
    """
    log = StepLog(role.name)
    is_trainable = experience.rollouts.response_mask.any(1).tolist()
    for rows in steps:
        loss = StepLoss(experience, rows, algorithm, role.device)
        if loss.num_tokens == 0:
            continue
        learnable = [row for row in rows if is_trainable[row]]
        groups = batching.groups(experience, learnable, role.groups)
        scale = before_step(role.num_steps_done)
        if isinstance(role, Critic):
            packed = [role.pack(experience.rollouts, group) for group in groups]
            result = role.update(packed, role.head(), loss.critic, scale)
        else:
            assert isinstance(role, Actor)
            packed = [role.pack(experience.rollouts, group) for group in groups]
            result = role.update(packed, role.head(experience.rollouts.temperature), loss.actor, scale)
        log.steps.append(result)
        if not after_step(result, rows):
            break
    return log
