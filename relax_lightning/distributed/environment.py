"""The order of ranks and the environment of each, as torchrun sets it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from relax_lightning.distributed.processes import Place


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


def rank_environments(places: Sequence[RankPlace], address: str, port: int) -> list[dict[str, str]]:
    """The variables of every rank.

    Args:
        places: By rank.
        address: Of the machine of rank 0.
        port: A free one there.
    """
    return [_environment(rank, places, address, port) for rank in range(len(places))]


def num_threads(sharers: int, num_cores: int) -> str:
    """`OMP_NUM_THREADS`: the user's, or an equal share of the cores. Ray would set it to 1."""
    return os.environ.get("OMP_NUM_THREADS") or str(max(1, num_cores // sharers))


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
        "OMP_NUM_THREADS": num_threads(len(local), own.num_cores),
    }


def _gpu_key(place: RankPlace) -> tuple[int, str]:
    gpu = place.gpu or ""
    return (int(gpu), "") if gpu.isdigit() else (0, gpu)
