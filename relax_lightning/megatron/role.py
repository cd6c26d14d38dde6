"""One trained model: its Megatron parts, its forward over micro-batches, and its optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from torch import Tensor

from relax_lightning.algorithms.aggregation import join_parts
from relax_lightning.config import ArchitectureConfig, OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import hugging_face_config
from relax_lightning.distributed.peers import Peers
from relax_lightning.megatron.checkpoint import load_role, save_role
from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.groups import groups_of
from relax_lightning.megatron.hugging_face import hugging_face_tensors, load_weights
from relax_lightning.megatron.microbatch import Microbatch, empty_microbatch, pack
from relax_lightning.megatron.models.decoder import MegatronDecoder
from relax_lightning.megatron.models.heads import CriticOutputs, PolicyOutputs, critic_outputs, policy_outputs
from relax_lightning.megatron.models.model import PolicyModel, build_model, transformer_config
from relax_lightning.megatron.optimizer import (
    build_optimizer,
    build_schedule,
    device_tensors,
    main_weights_released,
    wrap_model,
)
from relax_lightning.ppo.batch import Rollouts
from relax_lightning.rollout.engine import Share

LossFunction = Callable[[Any, tuple[int, ...]], tuple[Tensor, dict[str, Tensor]]]
"""Takes a head's outputs and the rows they belong to; gives the loss, already divided by what the whole optimizer
step counts, and metrics divided likewise, so that both may be added over micro-batches; see `join_parts`."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did."""

    applied: bool
    """False when the loss or the gradient norm was not finite: then nothing moved."""
    loss: float
    grad_norm: float
    """Before clipping."""
    lr: float
    """The learning rate that was really used."""
    metrics: dict[str, float]
    not_finite_ranks: tuple[int, ...] = ()
    """Ranks whose part of the loss was not finite; none where only the gradients were not."""


class MegatronRole:
    """A model with its optimizer and schedule. `actor` and `critic` differ only in the head.

    Args:
        name: `actor` or `critic`.
        architecture: The trunk.
        parallel: How it is cut over ranks.
        optimizer: Its optimizer's settings.
        num_steps: Optimizer steps that the learning rate decays over.
        dtype: Dtype of weights and activations.
        device: Where it lives.
        recompute: None, `selective` or `full`.
        weights: Hugging Face directory to start from; None: fresh weights.
        head_init: None for a policy; `zero` or `normal` for a critic's value head.
    """

    def __init__(
        self,
        name: str,
        architecture: ArchitectureConfig,
        parallel: ParallelConfig,
        optimizer: OptimizerConfig,
        *,
        num_steps: int,
        dtype: torch.dtype,
        device: torch.device,
        recompute: str | None = None,
        weights: str | None = None,
        head_init: str | None = None,
    ) -> None:
        self.name = name
        self.device = device
        self.dtype = dtype
        self.architecture = architecture
        self.num_steps_done = 0
        self.groups = groups_of(parallel)
        config = transformer_config(architecture, parallel, dtype, recompute)
        self.model: PolicyModel = build_model(architecture, config, self.groups, device, head_init=head_init)
        if weights is not None:
            load_weights(self.model, weights)
        self.ddp = wrap_model(self.model, optimizer)
        if weights is None:
            # Drawn on each rank by itself, and on a GPU by the actor's tensor rank: replicas must begin alike.
            self.ddp.broadcast_params()
        self.optimizer = build_optimizer(self.ddp, optimizer, dtype, self.groups)
        self.schedule = build_schedule(self.optimizer, optimizer, num_steps)
        config.finalize_model_grads_func = _add_gradients
        config.grad_scale_func = self.optimizer.scale_loss
        config.no_sync_func = self.ddp.no_sync

    def update(
        self,
        microbatches: Sequence[Microbatch],
        head: Callable[..., Any],
        loss: LossFunction,
        lr_scale: float,
    ) -> StepResult:
        """One optimizer step over the micro-batches of all replicas, whose losses are added; every rank calls it.

        Args:
            microbatches: This replica's; may be none.
            head: From hidden states to what the loss takes.
            loss: Of one micro-batch.
            lr_scale: Factor on the learning rate.

        Returns:
            The same on every rank: what all replicas did together.

        A loss or gradient norm that is not finite leaves weights, moments and schedule as they were.
        """
        with cuda_stand_in():
            self.ddp.train()
            self.ddp.zero_grad_buffer()
            self.optimizer.zero_grad()
            batches = microbatches or [empty_microbatch(self.device, self.model.token_multiple)]
            parts = self._run(batches, head, loss, forward_only=False)
            grad_norm = self._gradient_norm()
            by_rank = self.groups.peers.gather(self._joined(parts))
            joined = _join([of for of in by_rank if of])
            total = joined.pop("loss")
            applied = math.isfinite(total) and math.isfinite(grad_norm)
            lr = self._step(lr_scale) if applied else 0.0
        bad = tuple(rank for rank, of in enumerate(by_rank) if of and not math.isfinite(of["loss"]))
        return StepResult(applied, total, grad_norm, lr, joined, bad)

    def _joined(self, parts: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Loss and metrics over this replica's micro-batches, on the rank of it that reports; else empty."""
        if not self.groups.reports:
            return {}
        return _join([{name: float(value) for name, value in part.items()} for part in parts if part])

    def evaluate(self, microbatches: Sequence[Microbatch], head: Callable[..., Any]) -> list[Any]:
        """The head's outputs of each micro-batch, without gradient; none but on the last pipeline stage."""
        if not microbatches:
            return []
        with cuda_stand_in(), torch.no_grad():
            self.ddp.eval()
            return [part["outputs"] for part in self._run(microbatches, head, None, forward_only=True)]

    def _reported(
        self, batches: Sequence[Microbatch], outputs: Sequence[Any]
    ) -> list[tuple[Microbatch, Any]]:
        """Micro-batches with their outputs, where this rank is the one of its replica to tell them."""
        return list(zip(batches, outputs, strict=True)) if self.groups.reports else []

    def tensors(self, tag: str) -> list[Tensor]:
        """The tensors behind one part of the role's memory.

        Args:
            tag: `weights`; `gradients` (zeroed at the start of every step, so worth nothing between steps); or
                `optimizer` (main weights and moments, as far as they are neither the weights themselves nor on the
                host for good).
        """
        weights = [parameter.data for parameter in self.model.parameters()]
        if tag == "weights":
            return weights
        if tag == "gradients":
            return [buffer.grad_data for buffer in cast(Any, self.ddp).buffers]
        held = {tensor.untyped_storage().data_ptr() for tensor in weights}
        state = device_tensors(self.optimizer)
        # Scalars such as Adam's step stay: they are too small to be worth a move.
        return [t for t in state if t.numel() > 1 and t.untyped_storage().data_ptr() not in held]

    def save(self, directory: Path) -> None:
        """Write weights, optimizer and schedule as a Megatron distributed checkpoint; every rank calls it."""
        save_role(self, directory)

    def load(self, directory: Path, *, weights_only: bool = False, trusted: bool = False) -> None:
        """Restore what `save` wrote, at any parallel sizes.

        Args:
            directory: Of this role's checkpoint.
            weights_only: Leave optimizer and schedule fresh.
            trusted: Run the code that it may hold.

        Raises:
            ValueError: The directory holds no such checkpoint.
        """
        load_role(self, directory, weights_only=weights_only, trusted=trusted)

    def _run(
        self,
        microbatches: Sequence[Microbatch],
        head: Callable[..., Any],
        loss: LossFunction | None,
        *,
        forward_only: bool,
    ) -> list[dict[str, Any]]:
        def forward_step(
            batches: Iterator[Microbatch], model: torch.nn.Module
        ) -> tuple[Tensor, Callable[..., Any]]:
            batch = next(batches)
            return model(batch.tokens, batch.layout), partial(self._finish, batch, head, loss)

        collection = self.groups.collection
        pipeline: dict[str, Any] = {}
        if self.groups.num_stages > 1:
            pipeline["p2p_communicator"] = P2PCommunicator(collection.pp, self.model.config)
        return get_forward_backward_func(pp_size=self.groups.num_stages)(
            forward_step_func=forward_step,
            data_iterator=iter(microbatches),
            model=[self.ddp],
            num_microbatches=len(microbatches),
            seq_length=max(len(batch.tokens) for batch in microbatches),
            micro_batch_size=1,
            forward_only=forward_only,
            pg_collection=collection,
            **pipeline,
        )

    def _finish(
        self, batch: Microbatch, head: Callable[..., Any], loss: LossFunction | None, hidden: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        count = torch.tensor(0, dtype=torch.int, device=hidden.device)
        if not batch.rows:
            return hidden.sum() * 0, count, {}
        outputs = head(self.model, hidden, batch)
        if loss is None:
            return hidden.sum() * 0, count, {"outputs": outputs}
        value, metrics = loss(outputs, batch.rows)
        return value, count, {"loss": value.detach(), **metrics}

    def _gradient_norm(self) -> float:
        self.optimizer.prepare_grads()
        norm = self.optimizer.get_grad_norm()
        return float(norm)

    def _step(self, lr_scale: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] *= lr_scale
        lr = float(self.optimizer.param_groups[0]["lr"])
        with main_weights_released(self.optimizer):
            self.optimizer.step()
        self.schedule.step(1)
        self.num_steps_done += 1
        return lr


def _join(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Loss and metrics of a step from those of its micro-batches or replicas; empty from none."""
    return {name: join_parts(name, [part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _add_gradients(models: list[Any], num_tokens: Tensor | None, **kwargs: Any) -> None:
    """Megatron's gradient reduction, without its division by tokens: our losses are divided already."""
    finalize_model_grads(models, None, **kwargs)


class Actor(MegatronRole):
    """The policy."""

    def decoder(self) -> MegatronDecoder:
        """A decoder on these weights, for the embedded engine."""
        return MegatronDecoder(self.model)

    def hf_config(self) -> dict[str, Any]:
        """The Hugging Face `config.json` of these weights, without special tokens."""
        return hugging_face_config(self.architecture, str(self.dtype).removeprefix("torch."), {})

    @property
    def share(self) -> Share:
        """The part of the samples that this process's replica generates, when it decodes on these weights."""
        groups = self.groups
        is_alone = groups.tensor_size * groups.num_stages == 1
        return Share(groups.replica, groups.num_replicas, reports=groups.reports, is_alone=is_alone)

    @property
    def peers(self) -> Peers:
        """All processes of the job."""
        return self.groups.peers

    def hf_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under their Hugging Face names, each whole; every rank takes all of them."""
        return hugging_face_tensors(self.model)

    def pack(self, rollouts: Rollouts, rows: Sequence[int]) -> Microbatch:
        """A micro-batch of the given samples."""
        return pack(rollouts, rows, self.device, token_multiple=self.model.token_multiple)

    def log_probs(self, rollouts: Rollouts, row_groups: Sequence[Sequence[int]]) -> Tensor:
        """Log-probs of the responses under the weights as they are.

        Args:
            rollouts: The record.
            row_groups: Rows of each micro-batch of this replica; the replicas' rows are apart.

        Returns:
            [batch, response] float32 on CPU, at the sampling temperature, of all replicas; 0 in padding and for rows
            in no group.
        """
        batches = [self.pack(rollouts, rows) for rows in row_groups]
        evaluated = self.evaluate(batches, self.head(rollouts.temperature))
        result = torch.zeros(rollouts.response_tokens.shape)
        for batch, outputs in self._reported(batches, evaluated):
            result[list(batch.rows)] = outputs.log_probs.cpu()
        return self.groups.peers.merge(result)

    @staticmethod
    def head(temperature: float) -> Callable[[PolicyModel, Tensor, Microbatch], PolicyOutputs]:
        """The policy's head at the sampling temperature."""
        return partial(policy_outputs, temperature=temperature)


class Critic(MegatronRole):
    """The value model."""

    def pack(self, rollouts: Rollouts, rows: Sequence[int], *, feed_last: bool = False) -> Microbatch:
        """A micro-batch of the given samples; `feed_last` also gives the value after the last token."""
        multiple = self.model.token_multiple
        return pack(rollouts, rows, self.device, feed_last=feed_last, token_multiple=multiple)

    def values(
        self, rollouts: Rollouts, row_groups: Sequence[Sequence[int]], *, with_final: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Values under the weights as they are.

        Args:
            rollouts: The record.
            row_groups: Rows of each micro-batch of this replica; the replicas' rows are apart.
            with_final: Also the value of the state after each response.

        Returns:
            Of all replicas: [batch, response] float32 on CPU, V_t at the state before token t; and [batch] final
            values or None.
        """
        batches = [self.pack(rollouts, rows, feed_last=with_final) for rows in row_groups]
        values = torch.zeros(rollouts.response_tokens.shape)
        final = torch.zeros(len(rollouts)) if with_final else None
        for batch, outputs in self._reported(batches, self.evaluate(batches, critic_outputs)):
            rows = list(batch.rows)
            values[rows] = outputs.values.cpu()
            if final is not None:
                final[rows] = outputs.final_values.cpu()
        merge = self.groups.peers.merge
        return merge(values), None if final is None else merge(final)

    @staticmethod
    def head() -> Callable[[PolicyModel, Tensor, Microbatch], CriticOutputs]:
        """The critic's head."""
        return critic_outputs
