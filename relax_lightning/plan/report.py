"""The plan of a run, made from its configuration alone: who runs where, how much work, which rates, what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relax_lightning.checkpoints.resuming import plain_checkpoint, resumed_folder, whole_checkpoint
from relax_lightning.config.tree import Config
from relax_lightning.plan.footprint import MemoryPlan, memory_plan, phases_of, runs_on_gpu, uses_reference
from relax_lightning.plan.schedule import (
    RoleSchedule,
    critic_only_iterations,
    longest_sample,
    microbatch_tokens,
    optimizer_steps,
    role_schedule,
    samples_per_iteration,
)
from relax_lightning.plan.topology import TRAINED, data_parallel_size, parallel_of, ranks

FORMAT = 1
"""Version of what `plan --json` prints; it changes when a key is renamed, moved or removed."""


@dataclass(frozen=True)
class Placement:
    """Where one role runs."""

    role: str
    where: str
    processes: int
    gpus: int
    shares: list[str]
    """The other roles that take turns on the same GPUs, in one placement group."""
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    data: int | None = None


@dataclass(frozen=True)
class BatchPlan:
    """The work of one iteration, all ranks together."""

    prompts: int
    samples: int
    samples_per_optimizer_step: int
    optimizer_steps: dict[str, int]
    microbatches_per_step: int | None
    """Of one data-parallel rank; with packing the most there can be; None: the longest sample is not known."""
    tokens_per_microbatch: int | None
    longest_sample: int | None
    """Prompt and response in tokens; None where the prompts are not bounded."""
    most_response_tokens: int


@dataclass(frozen=True)
class PhasePlan:
    """One phase of an iteration."""

    phase: str
    does: str
    from_iteration: int


@dataclass(frozen=True)
class PathPlan:
    """Where things go, and what the run begins with."""

    run_folder: str
    actor_checkpoints: str
    critic_checkpoints: str
    saves: str
    tracking: str
    begins: str


@dataclass(frozen=True)
class Plan:
    """Everything that `relax-lightning plan` prints."""

    placement: list[Placement]
    batch: BatchPlan | None
    learning_rates: dict[str, RoleSchedule]
    phases: list[PhasePlan]
    memory: MemoryPlan | None
    paths: PathPlan


def build_plan(
    config: Config, *, check_files: bool = True, resume: str | None = None, gpu_memory: int | None = None
) -> Plan:
    """The plan of a resolved configuration.

    Args:
        config: Resolved; faults in it leave their part of the plan out.
        check_files: Look at the model's folder and the checkpoints.
        resume: What `--ckpt_path` says.
        gpu_memory: Bytes of one GPU; None: of those found here.
    """
    schedules = {role: role_schedule(config, role) for role in TRAINED}
    on_gpu = runs_on_gpu(config, gpu_memory)
    return Plan(
        placement=list(_placement(config, on_gpu)),
        batch=_batch(config, on_gpu),
        learning_rates={role: found for role, found in schedules.items() if found is not None},
        phases=_phases(config),
        memory=memory_plan(config, check_files=check_files, gpu_memory=gpu_memory),
        paths=_paths(config, resume if check_files else None, check_files),
    )


def _placement(config: Config, on_gpu: bool) -> Iterator[Placement]:
    cluster = config.cluster
    if cluster is None:
        device = "GPU 0" if on_gpu else "CPU"
        for role in (*TRAINED, "rollout", "advantages"):
            where = "this process, CPU" if role == "advantages" else f"this process, {device}"
            yield Placement(role, where, 1, int(device != "CPU" and role != "advantages"), [])
        return
    for role, (replicas, gpus) in cluster.resources.items():
        same = [r for r, shape in cluster.resources.items() if r != role and shape == (replicas, gpus)]
        if gpus == 0:
            yield Placement(role, "Ray actor, CPU", replicas, 0, [])
            continue
        where = f"Ray, {'CPU rank' if cluster.accelerator == 'cpu' else 'GPU'}s 0-{replicas * gpus - 1}"
        shares = same if cluster.colocate else []
        if role not in TRAINED:
            tensor = config.data.rollout.engine.init_args.get("tensor_parallel_size", 1)
            yield Placement(role, where, ranks(config, role) // tensor, replicas * gpus, shares, tensor)
            continue
        cut = parallel_of(config, role)
        data = data_parallel_size(config, role)
        sizes = (cut.tensor, cut.pipeline, cut.context, data)
        yield Placement(role, where, ranks(config, role), replicas * gpus, shares, *sizes)


def _batch(config: Config, on_gpu: bool) -> BatchPlan | None:
    samples, model, rollout = samples_per_iteration(config), config.model, config.data.rollout
    if samples is None or rollout.batch_size is None:
        return None
    step, data = model.global_batch_size or samples, data_parallel_size(config, "actor") or 1
    longest = longest_sample(config)
    budget = None if model.micro_batch_size is not None else microbatch_tokens(config, longest, on_gpu)
    share = -(-step // data)
    if model.micro_batch_size is not None:
        count = -(-share // model.micro_batch_size)
    else:
        count = None if longest is None or budget is None else -(-share // max(1, budget // longest))
    return BatchPlan(
        prompts=rollout.batch_size,
        samples=samples,
        samples_per_optimizer_step=step,
        optimizer_steps={role: optimizer_steps(config, role) or 0 for role in TRAINED},
        microbatches_per_step=count,
        tokens_per_microbatch=budget,
        longest_sample=longest,
        most_response_tokens=samples * rollout.sampling.max_new_tokens,
    )


def _phases(config: Config) -> list[PhasePlan]:
    engine = config.data.rollout.engine.class_path.rpartition(".")[2]
    actor_from = critic_only_iterations(config) + 1
    reference = "reference" in phases_of(config)
    old = "old " if config.model.algorithm.old_log_probs == "recompute" else ""
    ref = "reference " if uses_reference(config) else ""
    wanted = " and ".join(name for name in (old.strip(), ref.strip()) if name)
    first = f", {wanted} log-probs first" if wanted and not reference else ""
    found = [
        PhasePlan("rollout", f"{engine} generates; rewards are scored beside it", 1),
        PhasePlan("critic", "values; advantages on the CPU; the critic's optimizer steps", 1),
        PhasePlan("actor", f"the actor's optimizer steps{first}", actor_from),
        PhasePlan("publish", "the actor's new weights go to the engine", actor_from),
    ]
    if reference:
        found.insert(
            1, PhasePlan("reference", f"{wanted} log-probs, by weights that take the actor's place", 1)
        )
    if 0 < config.trainer.max_steps < actor_from:
        found = [phase for phase in found if phase.from_iteration == 1]
    return found


def _paths(config: Config, resume: str | None, check_files: bool) -> PathPlan:
    checkpoint, folder = config.callbacks.checkpoint, config.trainer.default_root_dir
    saves = "never: callbacks.checkpoint is null"
    if checkpoint is not None:
        times = [f"every {checkpoint.every_n_steps} iterations"] if checkpoint.every_n_steps else []
        times += ["at the end"] if checkpoint.save_last else []
        saves = f"{' and '.join(times) or 'never'}, the last {checkpoint.keep_last} kept"
    mlflow = config.tracking.mlflow
    return PathPlan(
        run_folder=folder,
        actor_checkpoints=config.model.actor.save or str(Path(folder) / "checkpoints"),
        critic_checkpoints=config.model.critic.save or str(Path(folder) / "checkpoints"),
        saves=saves,
        tracking="metrics.jsonl in the run folder only" if mlflow is None else f"MLflow at {mlflow.uri}",
        begins=_beginning(config, resume, check_files),
    )


def _beginning(config: Config, resume: str | None, check_files: bool) -> str:
    actor = config.model.actor
    fresh = f"weights of {actor.hf_checkpoint}" if actor.hf_checkpoint else "random weights"
    if actor.warm_start is not None:
        fresh = f"weights of {actor.warm_start}"
    if config.model.critic.warm_start is not None:
        fresh += f"; the critic's weights from {config.model.critic.warm_start}"
    else:
        fresh += f"; the critic's value head from {config.model.critic.head_init}"
    if not check_files:
        return fresh if actor.load is None else f"what lies in {actor.load} then"
    try:
        folder = resumed_folder(config, resume) if resume is not None else None
        whole = str(folder) if folder is not None else whole_checkpoint(config)
        plain = None if whole is not None else plain_checkpoint(config)
    except ValueError:
        return "nothing: see the problems"
    if whole is not None:
        return f"everything from {whole}"
    if plain is not None:
        kept = "weights only" if plain.is_release else "weights, optimizers and schedules"
        return f"{kept} from {' and '.join(map(str, plain.folders.values()))}"
    return fresh
