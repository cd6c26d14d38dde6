"""Memory of each phase and process: what every part takes, what must leave, and what the host holds."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache

from relax_lightning.config.model import ParallelConfig
from relax_lightning.config.tree import Config
from relax_lightning.plan import memory
from relax_lightning.plan.machine import count_gpus
from relax_lightning.plan.memory import RoleName
from relax_lightning.plan.schedule import longest_sample, microbatch_tokens, samples_per_iteration
from relax_lightning.plan.topology import TRAINED, data_parallel_size, parallel_of, ranks
from relax_lightning.strategies.residency import PHASES, Holding, Need, leaving, uses

GIB = 2**30
CUDA_CONTEXT = 512 * 2**20
"""Bytes that the driver takes of a GPU for a training rank."""
NCCL_BUFFERS = GIB
"""Of a rank among several: a third of a GiB for each group that talks, of which there are about three."""
ENGINE_WORKING = 3 * GIB
"""What an SGLang engine holds in every phase beside weights and KV cache: activations and logits that its allocator
does not give back, and its CUDA context. On an H200, a Qwen3-0.6B shape, 256 samples: 2.1 to 3.1 GiB."""

MARGIN = 0.05
"""Share of a GPU that `auto` leaves free where something can still leave: for what torch keeps beside the plan, and
NCCL's buffers. docs/performance.md has what was measured."""
SAVE_BYTES = 20
"""Of host memory a parameter while the first of several replicas writes a checkpoint: main weight and both moments, and
one of the three on its way, twice (Megatron's DistributedOptimizer.get_parameter_state_dp_zero)."""

ASSUMED_PROMPT_TOKENS = 2048
"""Longest prompt where the configuration sets no bound."""


@dataclass(frozen=True)
class PhaseMemory:
    """One phase on one GPU, or in one process without GPUs."""

    phase: str
    parts: dict[str, int]
    """Bytes by part, what left not among them."""
    total: int
    leaves: list[str]


@dataclass(frozen=True)
class MemoryPlan:
    """What a run holds, phase by phase."""

    on_gpu: bool
    budget: int | None
    """Bytes of one GPU; None: not known, or no GPU."""
    columns: list[str]
    phases: list[PhaseMemory]
    host: dict[str, int]
    """Bytes of host memory of one process beside the process itself: what has left, and what is stepped there."""
    checkpoint: int
    """Bytes of one checkpoint on disk, both roles, all ranks."""
    contexts: int = 0
    """Bytes of one GPU that CUDA takes for the processes on it."""
    note: str = ""

    @property
    def room(self) -> int | None:
        """Bytes of one GPU that are ours to fill; None: not known."""
        return None if self.budget is None else self.budget - self.contexts

    @property
    def filled(self) -> int | None:
        """Bytes of one GPU that are filled before anything leaves; None: not known."""
        return None if self.budget is None else _filled(self.budget, self.contexts)

    @property
    def working(self) -> dict[str, int]:
        """Bytes that each phase needs beside what can leave the GPU."""
        return {phase.phase: phase.parts["working"] for phase in self.phases}

    @property
    def critic(self) -> int:
        """Bytes of one GPU that the critic holds."""
        (phase,) = (phase for phase in self.phases if phase.phase == "critic")
        return sum(size for part, size in phase.parts.items() if part.startswith("critic "))

    @property
    def predicted(self) -> dict[str, int]:
        """Bytes of one GPU in each phase, CUDA's own among them.

        Where nothing leaves, torch keeps what other phases worked with, as far as there is room.
        """
        most = max(self.working.values())
        found = {}
        for phase in self.phases:
            kept = phase.total if phase.leaves else phase.total + most - phase.parts["working"]
            found[phase.phase] = self.contexts + (
                kept if self.room is None or kept <= self.room else phase.total
            )
        return found


def _filled(budget: int, contexts: int) -> int:
    return int(budget * (1 - MARGIN)) - contexts


@dataclass(frozen=True)
class Parts:
    """Everything that a run holds on one GPU, or in one process without GPUs."""

    holdings: list[Holding]
    working: dict[str, int]
    """Bytes that live within one phase only, by phase."""
    host: dict[str, int]
    """Bytes that are on the host from the start."""


def memory_plan(config: Config, *, check_files: bool, gpu_memory: int | None = None) -> MemoryPlan | None:
    """The plan of a resolved configuration; None where the model's sizes are not known, or cannot be cut as asked.

    Args:
        config: Resolved.
        check_files: Read the model's folder for its sizes.
        gpu_memory: Bytes of one GPU; None: of those found here.
    """
    known = memory.architecture_of(config, check_files=check_files)
    if known is None or any(data_parallel_size(config, role) is None for role in TRAINED):
        return None
    on_gpu = runs_on_gpu(config, gpu_memory)
    budget = (gpu_memory or gpu_memory_here()) if on_gpu else None
    try:
        parts = _parts(config, known.architecture, on_gpu, budget)
    except (
        ValueError
    ):  # sizes that do not divide, or a fraction below the weights, which the checks have named
        return None
    needs = _needs(config, parts)
    contexts = 0 if not on_gpu else CUDA_CONTEXT + (NCCL_BUFFERS if ranks(config, "actor") > 1 else 0)
    filled = None if budget is None else _filled(budget, contexts)
    gone = leaving(parts.holdings, needs, budget=filled, mode=config.strategy.offload if on_gpu else "never")
    phases = [_phase(name, parts, gone[name]) for name in needs]
    moved = {h for left in gone.values() for h in left if h.tag in ("optimizer", "weights")}
    host = {f"{h.owner} {h.tag}": h.size for h in sorted(moved, key=lambda h: (h.owner, h.tag))}
    actor = config.model.actor.optimizer
    return MemoryPlan(
        on_gpu=on_gpu,
        budget=budget,
        columns=list(dict.fromkeys(part for phase in phases for part in phase.parts)),
        phases=phases,
        host={**parts.host, **host},
        checkpoint=memory.checkpoint_bytes(
            known.architecture,
            memory.resolved_dtype(config.model.dtype, on_gpu=on_gpu),
            actor,
            config.model.critic.optimizer.following(actor),
        ),
        contexts=contexts,
        note=_note(config, known, on_gpu, budget, contexts),
    )


def _parts(config: Config, architecture: memory.Architecture, on_gpu: bool, budget: int | None) -> Parts:
    dtype = memory.resolved_dtype(config.model.dtype, on_gpu=on_gpu)
    roles = _roles(config, architecture, dtype)
    working: dict[str, int] = dict.fromkeys(phases_of(config), 0)
    for role, held in roles.items():
        # Activations are gone when the optimizer steps.
        working[role] = max(_activations(config, architecture, role, dtype, on_gpu), held.returned_weights)
    holdings, host = _role_holdings(roles)
    if on_gpu:
        largest = max(held.weights for held in roles.values())
        host["checkpoint while it is written"] = largest // memory.element_bytes(dtype) * SAVE_BYTES
    if "reference" in working:
        # A bound from above: without gradients less is kept than between layers that are computed again.
        working["reference"] = _activations(config, architecture, "actor", dtype, on_gpu, forward_only=True)
    if uses_reference(config):
        weights = next(h.size for h in holdings if (h.owner, h.tag) == ("actor", "weights"))
        host["reference weights, and the actor's while they are in its place"] = 2 * weights
    engine = _engine(config, architecture, dtype, budget)
    if engine is not None and has_own_process(config):
        holdings.append(Holding("engine", "engine_weights", engine.weights))
        holdings.append(Holding("engine", "kv_cache", engine.kv_cache))
        working = {phase: size + ENGINE_WORKING for phase, size in working.items()}
        # Two buckets of weights are on their way at a time.
        bucket = config.data.rollout.engine.init_args.get("bucket_mib", 512) * 2**20
        working["publish"] += min(2 * bucket, engine.weights)
    elif engine is not None:
        working["rollout"] = engine.working + engine.kv_cache
    return Parts([h for h in holdings if h.size], working, host)


def _roles(
    config: Config, architecture: memory.Architecture, dtype: str
) -> dict[RoleName, memory.RoleMemory]:
    actor = config.model.actor.optimizer
    optimizers = {"actor": actor, "critic": config.model.critic.optimizer.following(actor)}
    found: dict[RoleName, memory.RoleMemory] = {}
    for role in TRAINED:
        parallel, data = parallel_of(config, role), data_parallel_size(config, role) or 1
        found[role] = memory.role_memory(architecture, parallel, optimizers[role], dtype, role, data)
    return found


def _role_holdings(
    roles: dict[RoleName, memory.RoleMemory],
) -> tuple[list[Holding], dict[str, int]]:
    """What actor and critic hold on one GPU, and on the host from the start."""
    holdings: list[Holding] = []
    host: dict[str, int] = {}
    for role, held in roles.items():
        sizes = {"weights": held.weights, "gradients": held.gradients, "optimizer": held.optimizer}
        holdings += [Holding(role, tag, size) for tag, size in sizes.items()]
        if held.host_optimizer:
            host[f"{role} optimizer stepped on the host"] = held.host_optimizer
    return holdings, host


def uses_reference(config: Config) -> bool:
    """Whether a KL term compares with a reference model."""
    algorithm = config.model.algorithm
    return config.model.reference is not None and (algorithm.kl_coef > 0 or algorithm.use_kl_loss)


def phases_of(config: Config) -> list[str]:
    """The phases that an iteration of a resolved configuration has, in order."""
    has_reference = uses_reference(config) and config.model.algorithm.kl_coef > 0
    return [phase for phase in PHASES if phase != "reference" or has_reference]


def _longest_sample(config: Config, architecture: memory.Architecture) -> int:
    assumed = ASSUMED_PROMPT_TOKENS + config.data.rollout.sampling.max_new_tokens
    return longest_sample(config) or min(assumed, memory.trunk_of(architecture).max_position_embeddings)


def _activations(
    config: Config,
    architecture: memory.Architecture,
    role: RoleName,
    dtype: str,
    on_gpu: bool,
    *,
    forward_only: bool = False,
) -> int:
    samples, longest = config.model.micro_batch_size, _longest_sample(config, architecture)
    tokens = microbatch_tokens(config, longest, on_gpu)
    assert tokens is not None
    rows = samples or max(1, tokens // longest)
    share = config.data.rollout.sampling.max_new_tokens / longest
    recompute = config.model.actor.recompute if role == "actor" else config.model.critic.recompute
    found = memory.activations(
        architecture,
        parallel_of(config, role),
        tokens,
        dtype,
        "full" if forward_only else recompute,
        role,
        response_tokens=int(tokens * share),
        padded_tokens=rows * longest,
        on_gpu=on_gpu,
    )
    return 0 if found is None else found.peak


def _engine(
    config: Config, architecture: memory.Architecture, dtype: str, budget: int | None
) -> memory.EngineMemory | None:
    settings, rollout = config.data.rollout.engine.init_args, config.data.rollout
    if has_own_process(config):
        tensor = settings.get("tensor_parallel_size", 1)
        if budget is None:
            weights = memory.parameters(architecture, ParallelConfig(tensor=tensor), "actor")
            return memory.EngineMemory(weights * memory.element_bytes(dtype), 0, 0)
        fraction = settings.get("mem_fraction_static") or _planned_fraction(
            config, architecture, dtype, budget
        )
        return memory.sglang_engine(architecture, tensor, fraction, budget - CUDA_CONTEXT, dtype)
    samples, length = samples_per_iteration(config), _longest_sample(config, architecture)
    if samples is None or rollout.engine.class_path.rpartition(".")[2] != "MegatronEngine":
        return None
    rows = min(samples, settings.get("max_batch_size", 512))
    return memory.embedded_engine(architecture, parallel_of(config, "actor"), rows, length, dtype)


def planned_fraction(config: Config) -> float | None:
    """SGLang's `mem_fraction_static` where the configuration leaves it open; None where nothing is known to plan with.

    Weights and room for all samples of an iteration at their longest, as far as that fits beside what must stay.
    """
    known, budget = memory.architecture_of(config, check_files=True), gpu_memory_here()
    if known is None or budget is None or not has_own_process(config):
        return None
    dtype = memory.resolved_dtype(config.model.dtype, on_gpu=True)
    return _planned_fraction(config, known.architecture, dtype, budget)


def _planned_fraction(config: Config, architecture: memory.Architecture, dtype: str, budget: int) -> float:
    tensor = ParallelConfig(tensor=config.data.rollout.engine.init_args.get("tensor_parallel_size", 1))
    free = budget - CUDA_CONTEXT
    stays = 0
    if config.strategy.offload == "never":
        stays = sum(h.size for h in _role_holdings(_roles(config, architecture, dtype))[0])
    most = 1 - MARGIN - (ENGINE_WORKING + stays) / free
    weights = memory.parameters(architecture, tensor, "actor") * memory.element_bytes(dtype)
    samples, length = samples_per_iteration(config), _longest_sample(config, architecture)
    if samples is None:
        return round(most, 3)
    engines = max(1, ranks(config, "rollout") // tensor.tensor)
    share = -(-samples // engines)
    cache = memory.kv_cache(architecture, tensor, share * length, dtype, num_sequences=share)
    return round(max(min(most, (weights + 1.1 * cache) / free), 1.02 * weights / free), 3)


def has_own_process(config: Config) -> bool:
    """Whether the engine is SGLang on the same GPUs, with weights and a KV cache of its own."""
    engine = config.data.rollout.engine
    return engine.class_path.rpartition(".")[2] == "SGLangEngine" and engine.init_args.get("url") is None


def _needs(config: Config, parts: Parts) -> dict[str, Need]:
    own = has_own_process(config)
    return {
        phase: Need(uses(phase, engine_has_weights=own), parts.working[phase]) for phase in phases_of(config)
    }


def _phase(name: str, parts: Parts, gone: list[Holding]) -> PhaseMemory:
    held = {f"{h.owner} {h.tag.removeprefix('engine_')}": h.size for h in parts.holdings if h not in gone}
    held["working"] = parts.working[name]
    leaves = [f"{h.owner} {h.tag.removeprefix('engine_')}" for h in gone]
    return PhaseMemory(name, held, sum(held.values()), leaves)


def _note(config: Config, known: memory.Known, on_gpu: bool, budget: int | None, contexts: int) -> str:
    told = [f"sizes from {known.source}"]
    if isinstance(known.architecture, memory.HybridArchitecture):
        told.append(
            f"a hybrid model, which needs {known.architecture.needs}; its activations are not counted"
        )
    if on_gpu:
        size = "of unknown size (give --gpu_memory_gib)" if budget is None else f"of {budget / GIB:.0f} GiB"
        told.append(f"GPUs {size}, {contexts / GIB:.1f} GiB of each for CUDA and NCCL")
        told.append(f"offload: {config.strategy.offload}")
    if longest_sample(config) is None:
        told.append(
            f"prompts have no bound and are taken to be of {ASSUMED_PROMPT_TOKENS:,} tokens at most: give "
            "data.rollout.train.max_prompt_tokens"
        )
    return "; ".join(told)


def runs_on_gpu(config: Config, gpu_memory: int | None) -> bool:
    """Whether the roles will be on GPUs: by the configuration, this machine, or a size that was given to plan for."""
    if config.cluster is not None:
        return config.cluster.accelerator != "cpu"
    return gpu_memory is not None or count_gpus() > 0


@cache
def gpu_memory_here() -> int | None:
    """Bytes of the smallest GPU of this machine, as the driver says; None without one."""
    if not count_gpus():
        return None
    # The driver's own share is part of the total, and nobody else's.
    query = ["nvidia-smi", "--query-gpu=memory.total,memory.reserved", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [line.split(", ") for line in told.splitlines()]
        # Some drivers do not tell their share.
        return min(int(total) - int(own if own.isdigit() else 0) for total, own in rows) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
