"""Whether what a configuration holds finds room: on the GPU beside the engine, and on the disk."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.tree import Config
from relax_lightning.plan import memory
from relax_lightning.plan.files import nearest_existing
from relax_lightning.plan.footprint import (
    CUDA_CONTEXT,
    GIB,
    MemoryPlan,
    gpu_memory_here,
    has_own_process,
    memory_plan,
    runs_on_gpu,
)

_FRACTION = "data.rollout.engine.init_args.mem_fraction_static"


def room_problems(config: Config, *, check_files: bool, gpu_memory: int | None) -> Iterator[Problem]:
    """Phases and checkpoints of a resolved configuration that do not fit.

    Args:
        config: Resolved.
        check_files: Read the model's folder, and look at the disks.
        gpu_memory: Bytes of one GPU; None: of those found here.
    """
    yield from _fraction_below_weights(config, check_files, gpu_memory)
    plan = memory_plan(config, check_files=check_files, gpu_memory=gpu_memory)
    if plan is None:
        return
    yield from _phase_problems(config, plan)
    if check_files:
        yield from _disk_problems(config, plan.checkpoint)


def _fraction_below_weights(config: Config, check_files: bool, gpu_memory: int | None) -> Iterator[Problem]:
    settings, on_gpu = config.data.rollout.engine.init_args, runs_on_gpu(config, gpu_memory)
    fraction, known = (
        settings.get("mem_fraction_static"),
        memory.architecture_of(config, check_files=check_files),
    )
    if fraction is None or known is None or not has_own_process(config) or not on_gpu:
        return
    budget = gpu_memory or gpu_memory_here()
    if budget is None:
        return
    dtype = memory.resolved_dtype(config.model.dtype, on_gpu=on_gpu)
    tensor = settings.get("tensor_parallel_size", 1)
    try:
        memory.sglang_engine(known.architecture, tensor, fraction, budget - CUDA_CONTEXT, dtype)
    except ValueError as error:
        yield Problem(_FRACTION, str(error).removeprefix("mem_fraction_static: "), involves=("model.actor",))


def _phase_problems(config: Config, plan: MemoryPlan) -> Iterator[Problem]:
    if plan.room is None or plan.budget is None:
        return
    phase = max(plan.phases, key=lambda phase: phase.total)
    over = phase.total - plan.room
    if over <= 0:
        return
    fraction = config.data.rollout.engine.init_args.get("mem_fraction_static")
    if fraction is not None and has_own_process(config):
        held = sum(size for part, size in phase.parts.items() if not part.startswith(("engine", "working")))
        most = fraction - over / (plan.budget - CUDA_CONTEXT)
        wanted = (
            f"at most {max(most, 0):.2f} beside the {held / GIB:.1f} GiB that stay in the {phase.phase} phase"
        )
        change = "lower it, or let more leave with strategy.offload: always"
        yield Problem(_FRACTION, fault(wanted, fraction, change), involves=("model", "strategy"))
        return
    shorter = "data.rollout.sampling.max_new_tokens or data.rollout.train.max_prompt_tokens"
    change = f"lower model.max_tokens_per_microbatch, {shorter}, or set model.actor.recompute: full"
    if phase.phase == "rollout":
        change = f"lower data.rollout.engine.init_args.max_batch_size, {shorter}"
    got = f"{phase.total / GIB:.1f} GiB in the {phase.phase} phase"
    message = f"wanted at most {plan.room / GIB:.1f} GiB a GPU, got {got} by the plan; {change}"
    yield Problem("model", message, "warning", ("strategy", "data.rollout"))


def _disk_problems(config: Config, checkpoint: int) -> Iterator[Problem]:
    settings = config.callbacks.checkpoint
    if settings is None or config.trainer.max_steps < 1:
        return
    # One more than are kept: the oldest goes after the newest is complete. A root of its own takes a half.
    roots = {"model.actor.save": config.model.actor.save, "model.critic.save": config.model.critic.save}
    wanted: dict[int, int] = defaultdict(int)
    named: dict[int, tuple[str, Path]] = {}
    for key, root in roots.items():
        folder = nearest_existing(Path(root or "").absolute())
        disk = folder.stat().st_dev
        wanted[disk] += (settings.keep_last + 1) * checkpoint // 2
        named.setdefault(disk, (key, folder))
    for disk, size in wanted.items():
        key, folder = named[disk]
        free = shutil.disk_usage(folder).free
        if free < size:
            number = f"{settings.keep_last + 1} checkpoints of {_size(checkpoint)}"
            change = "free some, save elsewhere, or lower callbacks.checkpoint.keep_last"
            message = f"wanted {_size(size)} on its disk for {number}, got {_size(free)}; {change}"
            yield Problem(key, message, involves=("model", "callbacks.checkpoint"))


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.1f} MiB"
