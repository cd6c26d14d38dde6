"""What Megatron's data-parallel wrapper and optimizer allocate for one role."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from relax_lightning.config.model import ParallelConfig
from relax_lightning.config.optimizer import OptimizerConfig
from relax_lightning.plan.memory.architectures import Architecture
from relax_lightning.plan.memory.parameters import Parameter, RoleName, stage_parameters
from relax_lightning.plan.memory.widths import FP32, element_bytes, round_up

PARAMETER_ALIGNMENT = 64
"""Elements that a parameter's start is rounded up to (core/optimizer/param_layout.py: pad_param_start)."""
BUCKET_ALIGNMENT = 128
"""Besides the ranks, what a bucket's end is a multiple of (the same file: bucket_end_divisor)."""


@dataclass(frozen=True)
class RoleMemory:
    """Bytes that one rank holds of a role between its steps; the fused AdamW adds nothing to what it steps on a GPU."""

    weights: int
    gradients: int
    optimizer: int
    """Main weights and both moments of Adam, as far as they are on the device."""
    host_optimizer: int
    """What `cpu_offload_fraction` puts in host memory: weights, gradients and both moments of that share."""
    returned_weights: int = 0
    """Main weights of the host's share, which are on the device at the end of every step, until Megatron has copied
    them to the model's."""

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
    * Offload: `megatron/host_optimizer.py: HostAdamW` holds whole parameters of a rank's share: `host_share`.

    Args:
        architecture: The trunk.
        parallel: How the role is cut.
        optimizer: Of this role, with every null followed.
        dtype: `bfloat16` or `float32`.
        role: `actor` or `critic`.
        data_parallel: Ranks that hold the same weights, without context parallelism, which the shares count as well.
        stage: Pipeline stage; None: the one that holds most.

    Returns:
        The most that any rank holds, of each part.

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
        buffer, owned = layout.size, [layout.shards(rank) for rank in range(ranks)]
    else:
        owned = [[p.size for p in held]]
        buffer = sum(owned[0])
    main = 0 if element == FP32 else FP32
    on_host = [_sum_on_host(sizes, optimizer.cpu_offload_fraction) for sizes in owned]
    on_device = [sum(sizes) - host for sizes, host in zip(owned, on_host, strict=True)]
    return RoleMemory(
        weights=buffer * element,
        gradients=buffer * FP32,
        optimizer=max(on_device) * (main + 2 * FP32),
        host_optimizer=max(on_host) * 4 * FP32,
        returned_weights=max(on_host) * main,
    )


def host_share(sizes: Sequence[int], fraction: float) -> list[int]:
    """Which parameters the host steps, whole ones: together as near to the fraction as filling it allows.

    The largest first as long as they do not exceed it, then the smallest other where that comes closer.

    Args:
        sizes: Elements of each parameter, or of a rank's part of it.
        fraction: Of all elements, 0 to 1.

    Returns:
        Their indices, in order.
    """
    wanted, taken, chosen = fraction * sum(sizes), 0, set[int]()
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if taken + sizes[index] <= wanted:
            chosen.add(index)
            taken += sizes[index]
    others = [index for index in range(len(sizes)) if index not in chosen]
    if others:
        smallest = min(others, key=lambda index: sizes[index])
        if taken + sizes[smallest] - wanted < wanted - taken:
            chosen.add(smallest)
    return sorted(chosen)


def _sum_on_host(sizes: Sequence[int], fraction: float) -> int:
    return sum(sizes[index] for index in host_share(sizes, fraction))


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
        return sum(self.shards(rank))

    def shards(self, rank: int) -> list[int]:
        """Elements of each parameter of which a rank has a part."""
        owned: list[int] = []
        for start, end in self.buckets:
            part = (end - start) // self.ranks
            low, high = start + rank * part, start + (rank + 1) * part
            owned += [min(high, e) - max(low, s) for s, e in self.spans if min(high, e) > max(low, s)]
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
