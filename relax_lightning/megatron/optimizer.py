"""Megatron's data-parallel wrapper, distributed optimizer and learning-rate schedule for one role."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core import utils as megatron_utils
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from relax_lightning import config as configuration
from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.groups import ModelGroups
from relax_lightning.megatron.host_optimizer import HostAdamW
from relax_lightning.megatron.models.model import PolicyModel


def wrap_model(model: PolicyModel, optimizer: configuration.OptimizerConfig) -> DistributedDataParallel:
    """Megatron's DDP around `model`: one contiguous fp32 gradient buffer, summed over data-parallel ranks."""
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=optimizer.distributed
    )
    with cuda_stand_in():
        return DistributedDataParallel(model.config, ddp, model, pg_collection=model.groups.collection)


def build_optimizer(
    model: DistributedDataParallel,
    optimizer: configuration.OptimizerConfig,
    dtype: torch.dtype,
    groups: ModelGroups,
) -> MegatronOptimizer:
    """Megatron's AdamW over the wrapped model. Learning rate and weight decay are set by the schedule.

    Raises:
        ValueError: A part is to be stepped on the host, but Megatron does not use torch's AdamW.
    """
    megatron_config = OptimizerConfig(
        optimizer="adam",
        lr=optimizer.lr,
        min_lr=optimizer.min_lr,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_eps=optimizer.eps,
        clip_grad=optimizer.clip_grad,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=optimizer.distributed,
    )
    _clip_at_once()
    with cuda_stand_in():
        built = get_megatron_optimizer(
            megatron_config, [model], use_gloo_process_groups=False, pg_collection=groups.collection
        )
    for part in outer_optimizers(built):
        # A distributed one is gathered over it to be saved.
        part.data_parallel_group_gloo = groups.replicas_on_host
        _fuse(part.optimizer)
        if optimizer.cpu_offload_fraction:
            part.optimizer = _on_host(part.optimizer, optimizer.cpu_offload_fraction, model)
        _allocate_moments(part.optimizer)
    return built


def build_schedule(
    optimizer: MegatronOptimizer, settings: configuration.OptimizerConfig, num_steps: int
) -> OptimizerParamScheduler:
    """The decay of the learning rate over the role's own `num_steps` optimizer steps; warm-up is the callbacks'."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=settings.lr,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=0,
        lr_decay_steps=max(num_steps, 1),
        lr_decay_style=settings.decay,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=1,
        wd_incr_style="constant",
        # A resumed run takes rates and length from its configuration, and only the position from the checkpoint.
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )


def _clip_at_once() -> None:
    """One wait for the GPU a gradient norm, and clipping in place, where Megatron falls back to its own loops."""
    if clip_grads.l2_norm_impl is megatron_utils.local_multi_tensor_l2_norm:
        clip_grads.l2_norm_impl = _l2_norm
        clip_grads.multi_tensor_scale_impl = _scale


def _l2_norm(_chunk: Any, _overflow: Any, tensor_lists: list[list[Tensor]], *_: Any) -> tuple[Tensor, None]:
    """The norm of all tensors together, [1] float32, as amp_C.multi_tensor_l2norm answers."""
    norms = torch._foreach_norm([tensor for tensors in tensor_lists for tensor in tensors])
    return torch.stack(norms).float().norm().reshape(1), None


def _scale(_chunk: Any, _overflow: Any, tensor_lists: list[list[Tensor]], scale: float) -> None:
    """Writes `scale` times the first list to the second, which may be the same, as amp_C.multi_tensor_scale does."""
    sources, targets = tensor_lists
    if sources is not targets:
        torch._foreach_copy_(targets, sources)
    torch._foreach_mul_(targets, scale)


def _fuse(inner: Any) -> None:
    """One kernel a step in place of ten a tensor, where Megatron falls back to torch's AdamW."""
    if isinstance(inner, torch.optim.AdamW):
        for group in inner.param_groups:
            group["fused"] = True


def _on_host(inner: Any, fraction: float, model: DistributedDataParallel) -> HostAdamW:
    if not isinstance(inner, torch.optim.AdamW):
        raise ValueError(
            f"optimizer.cpu_offload_fraction: wanted torch's AdamW, got {type(inner).__name__} of Transformer Engine "
            "or Apex, which Megatron prefers; uninstall it, or leave the fraction out"
        )
    return HostAdamW(inner, fraction, {p.untyped_storage().data_ptr() for p in model.parameters()})


def _allocate_moments(inner: Any) -> None:
    """Adam's state from the start, so that a role that has not stepped yet can be saved like any other."""
    held = inner.held if isinstance(inner, HostAdamW) else {}
    for group in inner.param_groups:
        for parameter in group["params"]:
            if parameter in held:
                moments = (held[parameter].exp_avg, held[parameter].exp_avg_sq)
            else:
                moments = (torch.zeros_like(parameter), torch.zeros_like(parameter))
            inner.state[parameter] = {
                "step": adam_step(moments[0], 0.0),
                "exp_avg": moments[0],
                "exp_avg_sq": moments[1],
            }


def adam_step(moment: Tensor, value: float) -> Tensor:
    """The step counter that the fused AdamW keeps beside each parameter's moments, on their device."""
    return torch.tensor(value, dtype=torch.float32, device=moment.device)


def outer_optimizers(optimizer: MegatronOptimizer) -> list[Any]:
    """Megatron's optimizers, which it chains or not."""
    return getattr(optimizer, "chained_optimizers", [optimizer])


def inner_optimizers(optimizer: MegatronOptimizer) -> Iterator[Any]:
    """The torch optimizers inside, whichever way Megatron chained and wrapped them."""
    for part in outer_optimizers(optimizer):
        yield part.optimizer


def device_tensors(optimizer: MegatronOptimizer) -> list[Tensor]:
    """Parameters that are stepped on the device, and their state."""
    found: list[Tensor] = []
    for inner in inner_optimizers(optimizer):
        held = inner.held if isinstance(inner, HostAdamW) else {}
        for parameter, values in inner.state.items():
            if parameter not in held:
                found += [parameter.data, *values.values()]
    return found


@contextmanager
def main_weights_on_device(optimizer: MegatronOptimizer, *, changed: bool) -> Iterator[None]:
    """All main weights on the device inside the block, where Megatron reads and writes them to save and load.

    Args:
        optimizer: Of a role.
        changed: Whether the block sets weights, so that the host has to take its share of them.
    """
    on_host = _host_parts(optimizer)
    for inner in on_host:
        inner.bring_weights()
    try:
        yield
        if changed:
            for inner in on_host:
                inner.take_weights()
    finally:
        for inner in on_host:
            inner.release()


@contextmanager
def main_weights_released(optimizer: MegatronOptimizer) -> Iterator[None]:
    """Around a step: afterwards the main weights that the host holds have no device memory."""
    try:
        yield
    finally:
        for inner in _host_parts(optimizer):
            inner.release()


def _host_parts(optimizer: MegatronOptimizer) -> list[HostAdamW]:
    return [inner for inner in inner_optimizers(optimizer) if isinstance(inner, HostAdamW)]
