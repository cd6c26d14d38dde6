"""How many processes a configuration asks for, how each model is cut over them, and whether that fits together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from relax_lightning.config.cluster import ROLES, ClusterConfig
from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.model import ArchitectureConfig, ParallelConfig
from relax_lightning.config.tree import Config
from relax_lightning.plan.memory import architecture_of, trunk_of

TRAINED = ("actor", "critic")
_ADDRESS = re.compile(r"auto|(ray://)?([^\s/:\[\]]+|\[[\da-fA-F:]+\]):\d+", re.ASCII)


def topology_problems(config: Config, *, check_files: bool) -> Iterator[Problem]:
    """What cannot be placed or cut as a resolved configuration asks; `check_files`: read the model's folder."""
    if config.cluster is None and launched_ranks() is None:
        yield from _one_process_problems(config)
        return
    if config.cluster is not None:
        yield from _cluster_problems(config.cluster)
    yield from _rank_problems(config)
    yield from _engine_problems(config)
    if any(data_parallel_size(config, role) is None for role in TRAINED):
        return
    known = architecture_of(config, check_files=check_files)
    if known is not None:
        yield from _cut_problems(config, trunk_of(known.architecture))


def launched_ranks() -> int | None:
    """Processes of the job that this one is a rank of, as torchrun and its like say; None: nobody launched it."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else None


def ranks(config: Config, role: str) -> int:
    """Processes of a role: its replicas times its GPUs; without a cluster those that were launched, else one."""
    if config.cluster is None:
        return launched_ranks() or 1
    replicas, gpus = config.cluster.resources.get(role, (0, 0))
    return replicas * gpus


def parallel_of(config: Config, role: str) -> ParallelConfig:
    """How a role of a resolved configuration is cut."""
    actor = config.model.actor.parallel
    return actor if role == "actor" else config.model.critic.parallel or actor


def data_parallel_size(config: Config, role: str) -> int | None:
    """Copies of a role's model that share its samples; None where the sizes do not divide."""
    size = _model_ranks(parallel_of(config, role))
    return ranks(config, role) // size if ranks(config, role) % size == 0 else None


def _model_ranks(parallel: ParallelConfig) -> int:
    return parallel.tensor * parallel.pipeline * parallel.context


def _cluster_problems(cluster: ClusterConfig) -> Iterator[Problem]:
    address = cluster.address
    # What a variable holds that is not set here is not known.
    if address is not None and "${" not in address and not _ADDRESS.fullmatch(address):
        change = "change it, or leave it out to start a cluster here"
        yield Problem("cluster.address", fault("auto, HOST:PORT or ray://HOST:PORT", address, change))
    for role in [role for role in ROLES if role not in cluster.resources]:
        shape = "[1, 0]" if role == "advantages" else "[1, 8]"
        yield Problem("cluster.resources", f"wanted the role {role}, got none; add {role}: {shape}")
    if not cluster.colocate:
        change = "synchronous colocate is what is supported; leave it out"
        yield Problem("cluster.colocate", fault("true", False, change))
    shapes = {role: cluster.resources[role] for role in ROLES[:3] if role in cluster.resources}
    if len(set(shapes.values())) > 1:
        got = ", ".join(f"{role} {list(shape)}" for role, shape in shapes.items())
        change = "roles that take turns on the same GPUs need the same shape; make them equal"
        message = f"wanted one shape for actor, critic and rollout, got {got}; {change}"
        yield Problem("cluster.resources", message)


def _rank_problems(config: Config) -> Iterator[Problem]:
    for role in _roles_with_own_sizes(config):
        key, size, parallel = f"model.{role}.parallel", ranks(config, role), parallel_of(config, role)
        if size == 0:
            continue
        if size % _model_ranks(parallel):
            got = f"{parallel.tensor} * {parallel.pipeline} * {parallel.context}"
            message = f"wanted tensor * pipeline * context to divide the {role}'s {size} ranks, got {got}; "
            yield Problem(key, message + "change one, or cluster.resources", involves=("cluster.resources",))
        else:
            yield from _share_problems(config, role, size // _model_ranks(parallel))


def _share_problems(config: Config, role: str, data_parallel: int) -> Iterator[Problem]:
    rollout, model = config.data.rollout, config.model
    if rollout.batch_size is None:
        return
    samples = model.global_batch_size or rollout.batch_size * rollout.n_samples_per_prompt
    micro = model.micro_batch_size or 1
    if samples % (data_parallel * micro):
        unit = f"the {role}'s {data_parallel} data-parallel ranks"
        unit += f" * micro_batch_size {micro}" if micro > 1 else ""
        message = fault(f"a multiple of {unit} = {data_parallel * micro}", samples, "change one of them")
        involves = ("cluster.resources", "model.micro_batch_size", "data.rollout.batch_size")
        yield Problem("model.global_batch_size", message, involves=involves)


def _engine_problems(config: Config) -> Iterator[Problem]:
    tensor, gpus = (
        config.data.rollout.engine.init_args.get("tensor_parallel_size", 1),
        ranks(config, "rollout"),
    )
    if isinstance(tensor, int) and tensor >= 1 and gpus % tensor:
        message = fault(f"a divisor of the rollout's {gpus} GPUs", tensor, "change it or cluster.resources")
        key = "data.rollout.engine.init_args.tensor_parallel_size"
        yield Problem(key, message, involves=("cluster.resources",))


def _one_process_problems(config: Config) -> Iterator[Problem]:
    for role in _roles_with_own_sizes(config):
        for name in ("tensor", "pipeline", "context"):
            size = getattr(parallel_of(config, role), name)
            if size > 1:
                change = "one process is all there is; add a cluster, or start ranks with torchrun"
                message = fault("1 without a cluster", size, change)
                yield Problem(f"model.{role}.parallel.{name}", message, involves=("cluster",))


def _cut_problems(config: Config, architecture: ArchitectureConfig) -> Iterator[Problem]:
    a = architecture
    groups = a.num_query_groups or a.num_attention_heads
    of_tensor = {
        "attention heads": a.num_attention_heads,
        "key/value heads": groups,
        "columns of the feed-forward layer": a.ffn_hidden_size or 4 * a.hidden_size,
    }
    for role in _roles_with_own_sizes(config):
        key, parallel = f"model.{role}.parallel", parallel_of(config, role)
        for what, number in of_tensor.items():
            if number % parallel.tensor:
                message = fault(f"a divisor of the model's {number} {what}", parallel.tensor, "change it")
                yield Problem(f"{key}.tensor", message, involves=("model.actor",))
        if a.num_layers % parallel.pipeline:
            message = fault(f"a divisor of the model's {a.num_layers} layers", parallel.pipeline, "change it")
            yield Problem(f"{key}.pipeline", message, involves=("model.actor",))


def _roles_with_own_sizes(config: Config) -> list[str]:
    """The critic follows the actor unless it says otherwise: one line for both."""
    return [
        role
        for role in TRAINED
        if role == "actor" or parallel_of(config, role) != parallel_of(config, "actor")
    ]
