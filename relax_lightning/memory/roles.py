"""What Megatron's data-parallel wrapper and optimizer allocate for one role."""

from __future__ import annotations

import math
from dataclasses import dataclass

from relax_lightning.config.model import ParallelConfig
from relax_lightning.config.optimizer import OptimizerConfig
from relax_lightning.memory.architectures import Architecture
from relax_lightning.memory.parameters import Parameter, RoleName, stage_parameters
from relax_lightning.memory.widths import FP32, element_bytes, round_up

PARAMETER_ALIGNMENT = 64
"""Elements that a parameter's start is rounded up to (core/optimizer/param_layout.py: pad_param_start)."""
BUCKET_ALIGNMENT = 128
"""Besides the ranks, what a bucket's end is a multiple of (the same file: bucket_end_divisor)."""


@dataclass(frozen=True)
class RoleMemory:
    """Bytes that one rank holds of a role between its steps; the fused AdamW adds nothing to them."""

    weights: int
    gradients: int
    optimizer: int
    """Main weights and both moments of Adam, as far as they are on the device."""
    host_optimizer: int
    """The share that `cpu_offload_fraction` moves to the host, with its pinned gradients."""

    @property
    def total(self) -> int:
        """Bytes on the device between steps."""
        return self.weights + self.gradients + self.optimizer


def role_memory(
    architecture: Architecture,
    parallel: ParallelConfig,
    optimizer: OptimizerConfig,
    dtype: str,
    role: RoleName,
    data_parallel: int = 1,
    stage: int | None = None,
) -> RoleMemory:
    """What `megatron/optimizer.py: wrap_model` and `build_optimizer` allocate, to the byte.

    * Gradients: one fp32 buffer (core/distributed/param_and_grad_buffer.py: _ParamAndGradBuffer, with
      grad_reduce_in_fp32 and without overlap_grad_reduce, so in one bucket).
    * Weights: with the distributed optimizer a second buffer of that layout, in the model's dtype; else as they are.
    * Optimizer: fp32 main weights where the model's dtype is not fp32, and exp_avg and exp_avg_sq in fp32
      (core/optimizer/distrib_optimizer.py: _build_model_and_main_param_groups; optimizer.py:
      Float16OptimizerWithFloat16Params, FP32Optimizer). The distributed one keeps a rank's share of each bucket.
    * Offload: core/optimizer/cpu_offloading/hybrid_optimizer.py copies whole parameters until the fraction is reached;
      here it is the fraction itself. Beside its state, the host holds a pinned fp32 copy of the gradients.

    Args:
        architecture: The trunk.
        parallel: How the role is cut.
        optimizer: Of this role, with every null followed.
        dtype: `bfloat16` or `float32`.
        role: `actor` or `critic`.
        data_parallel: Ranks that hold the same weights, without context parallelism, which the shares count as well.
        stage: Pipeline stage; None: the one that holds most.

    Returns:
        The bytes of the rank with the largest share of the optimizer.

    Raises:
        ValueError: Heads, widths or layers do not divide over the ranks.
    """
    stages = range(parallel.pipeline) if stage is None else [stage]
    ranks = data_parallel * parallel.context
    held = [stage_parameters(architecture, parallel, role, s) for s in stages]
    return max((_stage_memory(p, optimizer, dtype, ranks) for p in held), key=lambda memory: memory.total)


def _stage_memory(held: list[Parameter], optimizer: OptimizerConfig, dtype: str, ranks: int) -> RoleMemory:
    element = element_bytes(dtype)
    if optimizer.distributed:
        layout = buffer_layout(held, ranks)
        buffer, owned = layout.size, max(layout.share(rank) for rank in range(ranks))
    else:
        buffer = owned = sum(p.size for p in held)
    state = (2 if element == FP32 else 3) * FP32
    on_host = optimizer.cpu_offload_fraction
    return RoleMemory(
        weights=buffer * element,
        gradients=buffer * FP32,
        optimizer=round(owned * state * (1 - on_host)),
        # Main weights (or a copy of fp32 ones), both moments, and the gradients.
        host_optimizer=round(owned * 4 * FP32 * on_host),
    )


@dataclass(frozen=True)
class BufferLayout:
    """Where parameters lie in one rank's contiguous buffer, in elements."""

    spans: tuple[tuple[int, int], ...]
    """Start and end of each parameter, last parameter first."""
    buckets: tuple[tuple[int, int], ...]
    """Start and padded end of each bucket."""
    ranks: int
    """That each bucket is shared over."""

    @property
    def size(self) -> int:
        """Elements of the buffer, padding included."""
        return self.buckets[-1][1]

    def share(self, rank: int) -> int:
        """Elements of parameters in a rank's part of every bucket.

        Megatron-Core's core/optimizer/distrib_optimizer.py: _build_model_gbuf_range.
        """
        owned = 0
        for start, end in self.buckets:
            part = (end - start) // self.ranks
            low, high = start + rank * part, start + (rank + 1) * part
            owned += sum(max(0, min(high, e) - max(low, s)) for s, e in self.spans)
        return owned


def buffer_layout(held: list[Parameter], ranks: int) -> BufferLayout:
    """The distributed optimizer's layout (core/optimizer/distrib_optimizer.py: _compute_per_buffer_param_layout).

    Args:
        held: A rank's parameters in the order of their names; they are laid out backwards.
        ranks: That share the optimizer.
    """
    bucket_alignment = math.lcm(ranks, BUCKET_ALIGNMENT)
    spans: list[tuple[int, int]] = []
    buckets: list[tuple[int, int]] = []
    position = bucket_start = 0
    for parameter in reversed(held):
        position = round_up(position, PARAMETER_ALIGNMENT)
        if parameter.has_own_bucket and position > bucket_start:
            buckets.append((bucket_start, round_up(position, bucket_alignment)))
            position = bucket_start = buckets[-1][1]
        spans.append((position, position + parameter.size))
        position += parameter.size
        if parameter.has_own_bucket:
            buckets.append((bucket_start, round_up(position, bucket_alignment)))
            position = bucket_start = buckets[-1][1]
    if position > bucket_start:
        buckets.append((bucket_start, round_up(position, bucket_alignment)))
    return BufferLayout(tuple(spans), tuple(buckets), ranks)
