"""The order of ranks and the environment of each, as torchrun sets it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from relax_lightning.distributed.processes import Place
from relax_lightning.run.rendezvous import LOOPBACK


@dataclass(frozen=True)
class RankPlace:
    """Where one rank's process runs, and the GPU that Ray gave it."""

    place: Place
    gpu: str | None
    """Ray's id of the GPU on that machine; None for a rank on the CPU."""
    num_cores: int
    """Cores that the process may use."""


def rank_order(places: Sequence[RankPlace]) -> list[int]:
    """Indices into `places` by rank: machine after machine, so that neighbours share one, and by GPU within each."""
    nodes = list(dict.fromkeys(p.place.node for p in places))
    return sorted(range(len(places)), key=lambda n: (nodes.index(places[n].place.node), _gpu_key(places[n])))


def meeting_address(places: Sequence[RankPlace]) -> str:
    """Where the ranks meet: at rank 0's machine, and where that is the only one, at its loopback address."""
    if len({p.place.node for p in places}) == 1:
        return LOOPBACK
    return places[0].place.address


def rank_environments(places: Sequence[RankPlace], address: str, port: int) -> list[dict[str, str]]:
    """The variables of every rank.

    Args:
        places: By rank.
        address: Where they meet.
        port: A free one there.
    """
    return [_environment(rank, places, address, port) for rank in range(len(places))]


def thread_variables(sharers: int, num_cores: int) -> dict[str, str]:
    """Threads of torch and of TransferQueue: the user's, or an equal share of the cores. Ray would set torch's to 1."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, num_cores // sharers))
    return {"OMP_NUM_THREADS": threads, "TQ_NUM_THREADS": os.environ.get("TQ_NUM_THREADS") or threads}


def _environment(rank: int, places: Sequence[RankPlace], address: str, port: int) -> dict[str, str]:
    own = places[rank]
    local = [n for n, other in enumerate(places) if other.place.node == own.place.node]
    gpus = [places[n].gpu for n in local]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(places)),
        "LOCAL_RANK": str(local.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(local)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        # All of the job's GPUs on the machine: an engine may span several, and LOCAL_RANK counts among them.
        "CUDA_VISIBLE_DEVICES": ",".join(gpu for gpu in gpus if gpu is not None),
        **thread_variables(len(local), own.num_cores),
    }


def _gpu_key(place: RankPlace) -> tuple[int, str]:
    gpu = place.gpu or ""
    return (int(gpu), "") if gpu.isdigit() else (0, gpu)
