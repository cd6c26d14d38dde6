"""Megatron's process groups, of the actor and of the critic, from the parallel sizes of the configuration."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from relax_lightning.config import ParallelConfig
from relax_lightning.distributed.peers import ALONE, DEADLINE, Peers
from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.run.rendezvous import LOOPBACK, all_are_here, free_port, store_at, talk_on_loopback


@dataclass(frozen=True)
class ModelGroups:
    """The groups that one model is cut over, and this process's place in them."""

    collection: ProcessGroupCollection
    """Megatron's groups; passed to everything of Megatron's that takes it."""
    replicas_on_host: Any
    """The group of the data-parallel replicas, for tensors of the host."""
    peers: Peers = ALONE
    """All processes of the job."""

    @property
    def tensor_size(self) -> int:
        """Ranks that a layer is cut over."""
        return self.collection.tp.size()

    @property
    def tensor_rank(self) -> int:
        """Place among them."""
        return self.collection.tp.rank()

    @property
    def num_stages(self) -> int:
        """Pipeline stages that the layers are cut into."""
        return self.collection.pp.size()

    @property
    def stage(self) -> int:
        """This process's stage."""
        return self.collection.pp.rank()

    @property
    def num_replicas(self) -> int:
        """Data-parallel copies of the model, which share its samples."""
        return self.collection.dp.size()

    @property
    def replica(self) -> int:
        """Which copy this process is part of."""
        return self.collection.dp.rank()

    @property
    def is_first_stage(self) -> bool:
        """Whether the embedding is here."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether the head is here."""
        return self.stage == self.num_stages - 1

    @property
    def reports(self) -> bool:
        """Whether this process is the one of its replica whose results count."""
        return self.is_last_stage and self.tensor_rank == 0


@dataclass
class _Current:
    """The groups of this process, by (tensor, pipeline, context)."""

    peers: Peers | None = None
    by_sizes: dict[tuple[int, int, int], ModelGroups] = field(default_factory=dict)
    abandoned_with: int | None = None


_current = _Current()


def initialize_groups(
    parallel: ParallelConfig, device: torch.device, seed: int, *, critic: ParallelConfig | None = None
) -> Peers:
    """Join the default process group (alone, when no launcher set one up) and make Megatron's groups.

    They last as long as the process: a second Trainer of the same sizes takes them as they are, for torch never ends
    all the threads of a group that was destroyed.

    Args:
        parallel: How the actor is cut; Megatron's own global state is of these groups.
        device: This process's.
        seed: Of Megatron's random states.
        critic: How the critic is cut; None: as the actor.

    Returns:
        All processes of the job.
    """
    _current.abandoned_with = None
    if not dist.is_initialized():
        _initialize_default_group(device)
        atexit.register(_leave)
        _current.peers = None
    if _current.peers is None:
        _current.peers, _current.by_sizes = Peers.join(), {}
    wanted = [_sizes(parallel), _sizes(critic or parallel)]
    if any(sizes not in _current.by_sizes for sizes in wanted) or _global_sizes() != wanted[0]:
        # The actor's come last, so that Megatron's global state is theirs.
        _current.by_sizes = {sizes: _make(sizes, _current.peers) for sizes in dict.fromkeys(wanted[::-1])}
    with cuda_stand_in():
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    return _current.peers


def groups_of(parallel: ParallelConfig) -> ModelGroups:
    """The groups of a model that is cut like this; `initialize_groups` made them."""
    return _current.by_sizes[_sizes(parallel)]


def abandon_groups(status: int = 1) -> None:
    """This process ends before the others: at its exit it does not wait for them, who wait for it.

    To destroy an NCCL group takes all its members.

    Args:
        status: What it exits with.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        _current.abandoned_with = status


def _leave() -> None:
    if _current.abandoned_with is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_current.abandoned_with)
    destroy_groups()


def destroy_groups() -> None:
    """Leave Megatron's groups and the default one."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
    _current.peers, _current.by_sizes = None, {}


def _sizes(parallel: ParallelConfig) -> tuple[int, int, int]:
    return parallel.tensor, parallel.pipeline, parallel.context


def _global_sizes() -> tuple[int, int, int] | None:
    if not parallel_state.model_parallel_is_initialized():
        return None
    return (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_world_size(),
        parallel_state.get_context_parallel_world_size(),
    )


def _make(sizes: tuple[int, int, int], peers: Peers) -> ModelGroups:
    if parallel_state.model_parallel_is_initialized():
        # Megatron forgets the groups; whoever holds their collection goes on with them.
        parallel_state.destroy_model_parallel()
    tensor, pipeline, context = sizes
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        context_parallel_size=context,
        create_gloo_process_groups=False,
        distributed_timeout_minutes=int(DEADLINE.total_seconds() // 60),
    )
    collection = ProcessGroupCollection.use_mpu_process_groups()
    is_nccl = dist.get_backend() == "nccl"
    on_host = _on_host(collection.dp_cp, peers) if is_nccl else collection.dp_cp
    if pipeline > 1:
        # The first message through a group connects it, for which NCCL needs all its ranks: later only two would talk.
        dist.all_reduce(torch.zeros(1, device="cuda" if is_nccl else "cpu"), group=collection.pp)
    return ModelGroups(collection, on_host, peers)


def _on_host(group: Any, peers: Peers) -> Any:
    """A group of gloo's of the same ranks: Megatron's own are destroyed when it makes the groups of other sizes."""
    ranks = sorted({tuple(members) for members in peers.gather(dist.get_process_group_ranks(group))})
    own, _ = dist.new_subgroups_by_enumeration([list(r) for r in ranks], timeout=DEADLINE, backend="gloo")
    return own


def _initialize_default_group(device: torch.device) -> None:
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(device)
    # Not bound to the device: NCCL would connect all of Megatron's twenty groups at once, of which few ever talk, for a
    # third of a GiB of the GPU each, and half a second when it is left.
    backend = "nccl" if is_gpu else "gloo"
    if all_are_here():
        talk_on_loopback()
    if "RANK" not in os.environ:
        # Not a HashStore, with which NCCL crashes in its first coalesced call.
        alone = store_at(LOOPBACK, free_port(LOOPBACK), is_server=True, timeout=DEADLINE)
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # The store of torchrun's own process.
        dist.init_process_group(backend, timeout=DEADLINE)
    else:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = store_at(host, port, is_server=rank == 0, timeout=DEADLINE)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=DEADLINE)
