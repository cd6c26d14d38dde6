"""Megatron's data-parallel wrapper, distributed optimizer and learning-rate schedule for one role."""

from __future__ import annotations

from collections.abc import Iterator
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
from relax_lightning.megatron.model import PolicyModel


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
    """Megatron's AdamW over the wrapped model. Learning rate and weight decay are set by the schedule."""
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
    _norm_at_once()
    with cuda_stand_in():
        built = get_megatron_optimizer(
            megatron_config, [model], use_gloo_process_groups=False, pg_collection=groups.collection
        )
    for inner in inner_optimizers(built):
        _fuse(inner)
        _allocate_moments(inner)
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


def _norm_at_once() -> None:
    """One wait for the GPU a gradient norm, where Megatron's own falls back to one a parameter."""
    if clip_grads.l2_norm_impl is megatron_utils.local_multi_tensor_l2_norm:
        clip_grads.l2_norm_impl = _l2_norm


def _l2_norm(_chunk: Any, _overflow: Any, tensor_lists: list[list[Tensor]], *_: Any) -> tuple[Tensor, None]:
    """The norm of all tensors together, [1] float32, as amp_C.multi_tensor_l2norm answers."""
    norms = torch._foreach_norm([tensor for tensors in tensor_lists for tensor in tensors])
    return torch.stack(norms).float().norm().reshape(1), None


def _fuse(inner: Any) -> None:
    """One kernel a step in place of ten a tensor, where Megatron falls back to torch's AdamW."""
    if isinstance(inner, torch.optim.AdamW):
        for group in inner.param_groups:
            group["fused"] = True


def _allocate_moments(inner: Any) -> None:
    """Adam's state from the start, so that a role that has not stepped yet can be saved like any other."""
    for group in inner.param_groups:
        for parameter in group["params"]:
            inner.state[parameter] = {
                "step": adam_step(parameter, 0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def adam_step(parameter: Tensor, value: float) -> Tensor:
    """The step counter that the fused AdamW keeps beside each parameter's moments."""
    return torch.tensor(value, dtype=torch.float32, device=parameter.device)


def inner_optimizers(optimizer: MegatronOptimizer) -> Iterator[Any]:
    """The torch optimizers inside, whichever way Megatron chained and wrapped them."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        yield part.optimizer
