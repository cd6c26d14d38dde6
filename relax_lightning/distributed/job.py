"""One attempt at a job: its processes, from their start to the end of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from relax_lightning.config import Config
from relax_lightning.distributed.coordinator import Coordinator
from relax_lightning.distributed.environment import (
    RankPlace,
    meeting_address,
    rank_environments,
    rank_order,
    thread_variables,
)
from relax_lightning.distributed.interruptions import Interruptions
from relax_lightning.distributed.placement import SharedGroup
from relax_lightning.distributed.processes import Part, Place
from relax_lightning.distributed.rank import RankWorker, Work
from relax_lightning.distributed.screen import Screen
from relax_lightning.distributed.services import AdvantagesProcess, StoreProcess
from relax_lightning.distributed.watch import COORDINATOR, LostPartError, Watch, rank_name

STORE, ADVANTAGES = "the sample store", "the advantages service"

_START_SECONDS = 120.0
_ASYNCHRONOUS = {"num_cpus": 0, "max_concurrency": 10_000}
"""Many wait at the coordinator at a time, and a thread of the store serves while it waits."""


@dataclass(frozen=True)
class Task:
    """What every rank of a job does."""

    entry: str
    command: str
    config: Config
    ckpt_path: str | None


class Job:
    """The processes of one attempt; leaving the context ends every one of them.

    Args:
        job_id: Part of the name of every actor, so that jobs on one cluster do not meet.
        group: Where the ranks go.
        num_ranks: Bundles of the group.
    """

    def __init__(self, job_id: str, group: SharedGroup, num_ranks: int) -> None:
        self._job_id = job_id
        self._group = group
        self._num_ranks = num_ranks
        self._parts: dict[str, Any] = {}
        self.places: dict[str, Place] = {}
        """Where each process runs, by its name in messages."""
        self._workers: list[Any] = []

    def __enter__(self) -> Job:
        """Start all processes; they come up side by side."""
        worker, coordinator = ray.remote(RankWorker), ray.remote(Coordinator)
        store, advantages = ray.remote(StoreProcess), ray.remote(AdvantagesProcess)
        self._workers = [
            worker.options(**self._named(f"rank-{bundle}"), **self._group.options(bundle)).remote()
            for bundle in range(self._num_ranks)
        ]
        self._parts[COORDINATOR] = coordinator.options(**self._named("coordinator"), **_ASYNCHRONOUS).remote()
        self._parts[STORE] = store.options(**self._named("store"), **_ASYNCHRONOUS).remote()
        self._parts[ADVANTAGES] = advantages.options(**self._named("advantages"), **_ASYNCHRONOUS).remote(
            self._parts[STORE], self._parts[COORDINATOR], thread_variables(1, 1)
        )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._group.processes.lost() is None:
            for process in (*self._workers, *self._parts.values()):
                ray.kill(process)

    def _named(self, name: str) -> dict[str, str]:
        return {"name": f"relax-lightning-{self._job_id}-{name}"}

    def run(self, task: Task, screen: Screen, interruptions: Interruptions) -> int:
        """Let the ranks work to the end, and show what they do meanwhile.

        Returns:
            The first status of a rank that is not 0; or 0.

        Raises:
            LostPartError: A process died, or is stopped and does not go on.
            LostRayError: A process of Ray's own died.
            RankError: A rank's work raised, or left while others went on.
            Aborted: A signal ended a rank outside training.
        """
        works = self._works(task)
        watchers = self._start_watchers()
        runs = [worker.train.remote(work) for worker, work in zip(self._workers, works, strict=True)]
        interruptions.is_training = True
        try:
            watch = Watch(self._parts, self.places, watchers, screen, interruptions, self._group.processes)
            outcomes = watch.follow(runs)
        finally:
            interruptions.is_training = False
        return next((o.status for o in outcomes.values() if o.status), 0)

    def _works(self, task: Task) -> list[Work]:
        """What each rank gets; the workers are in the order of ranks after it."""
        places = self._wait_for_places()
        order = rank_order(places)
        self._workers = [self._workers[n] for n in order]
        places = [places[n] for n in order]
        self.places |= {rank_name(rank): p.place for rank, p in enumerate(places)}
        address = meeting_address(places)
        port = _started(rank_name(0), self._workers[0].free_port.remote(address))
        return [
            Work(
                task.entry,
                task.command,
                task.config,
                task.ckpt_path,
                str(Path.cwd()),
                environment,
                self._parts[COORDINATOR],
                self._parts[STORE],
                self._parts[ADVANTAGES],
            )
            for environment in rank_environments(places, address, port)
        ]

    def _wait_for_places(self) -> list[RankPlace]:
        ranks = [worker.place.remote() for worker in self._workers]
        parts = {name: part.place.remote() for name, part in self._parts.items()}
        # Who needs another part to start is asked after it: its own error would only be an echo.
        self.places |= {name: _started(name, place) for name, place in parts.items()}
        return [_started(rank_name(bundle), place) for bundle, place in enumerate(ranks)]

    def _start_watchers(self) -> list[str]:
        """A part that looks after each machine: the coordinator its own, and one for nothing else every other."""
        watchers = {self.places[COORDINATOR].node: COORDINATOR}
        for node, address in {place.node: place.address for place in self.places.values()}.items():
            if node not in watchers:
                watchers[node] = name = f"the watcher on {address}"
                there = NodeAffinitySchedulingStrategy(node, soft=False)
                options = {**self._named(f"watcher-{node}"), **_ASYNCHRONOUS, "scheduling_strategy": there}
                self._parts[name] = ray.remote(Part).options(**options).remote()
        self.places |= {name: _started(name, self._parts[name].place.remote()) for name in watchers.values()}
        return list(watchers.values())


def _started(name: str, place: Any) -> Any:
    try:
        return ray.get(place, timeout=_START_SECONDS)
    except GetTimeoutError as error:
        raise LostPartError(
            f"{name} did not start within {_START_SECONDS:g} s; the cluster is overloaded, or a machine of it hangs"
        ) from error
    except RayError as error:
        raise LostPartError(f"{name} did not start: {_first_line(error)}") from error


def _first_line(error: RayError) -> str:
    return str(error).strip().split("\n", 1)[0]
