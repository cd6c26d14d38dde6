"""One attempt at a job: its processes, from their start to the end of all of them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from relax_lightning.config import Config
from relax_lightning.distributed.coordinator import Coordinator
from relax_lightning.distributed.environment import (
    RankPlace,
    num_threads,
    rank_environments,
    rank_order,
)
from relax_lightning.distributed.interruptions import Interruptions
from relax_lightning.distributed.placement import SharedGroup
from relax_lightning.distributed.processes import Place, log_end
from relax_lightning.distributed.rank import Outcome, RankWorker, Work
from relax_lightning.distributed.screen import Screen
from relax_lightning.distributed.services import AdvantagesProcess, StoreProcess

COORDINATOR, STORE, ADVANTAGES = "the coordinator", "the sample store", "the advantages service"

_START_SECONDS = 120.0
_GRACE_SECONDS = 2.0
"""After a first error: one rank's death shows in others as a broken connection, sometimes a moment earlier."""


class LostPartError(RuntimeError):
    """A process of the job was killed or crashed; the message names it and ends with its log."""


class RankError(RuntimeError):
    """A rank's work raised an exception.

    Args:
        rank: The first one that did.
        outcome: How it ended.
    """

    def __init__(self, rank: int, outcome: Outcome) -> None:
        phase = f", {outcome.phase} phase" if outcome.phase else ""
        super().__init__(f"rank {rank}{phase}: {outcome.message}")


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
        self._events: Any = None

    def __enter__(self) -> Job:
        """Start all processes; they come up side by side."""
        worker, coordinator = ray.remote(RankWorker), ray.remote(Coordinator)
        store, advantages = ray.remote(StoreProcess), ray.remote(AdvantagesProcess)
        self._workers = [
            worker.options(**self._named(f"rank-{bundle}"), **self._group.options(bundle)).remote()
            for bundle in range(self._num_ranks)
        ]
        # Many wait at the coordinator at a time, and a thread of the store serves while it waits.
        asynchronous = {"num_cpus": 0, "max_concurrency": 10_000}
        self._parts[COORDINATOR] = coordinator.options(**self._named("coordinator"), **asynchronous).remote()
        self._parts[STORE] = store.options(**self._named("store"), **asynchronous).remote()
        self._parts[ADVANTAGES] = advantages.options(**self._named("advantages"), **asynchronous).remote(
            self._parts[STORE], self._parts[COORDINATOR], {"OMP_NUM_THREADS": num_threads(1, 1)}
        )
        return self

    def __exit__(self, *exception: object) -> None:
        for process in (*self._workers, *self._parts.values()):
            ray.kill(process)

    def _named(self, name: str) -> dict[str, str]:
        return {"name": f"relax-lightning-{self._job_id}-{name}"}

    def run(self, task: Task, screen: Screen, interruptions: Interruptions) -> int:
        """Let the ranks work to the end, and show what they do meanwhile.

        Returns:
            The first status of a rank that is not 0; or 0.

        Raises:
            LostPartError: A process died.
            RankError: A rank's work raised.
        """
        works = self._works(task)
        runs = {
            worker.train.remote(work): rank
            for rank, (worker, work) in enumerate(zip(self._workers, works, strict=True))
        }
        lives = {self._parts[name].lives.remote(): name for name in (STORE, ADVANTAGES)}
        interruptions.is_training = True
        try:
            outcomes = self._watch(runs, lives, screen, interruptions)
        finally:
            interruptions.is_training = False
        self.show_rest(screen)
        return next((o.status for o in outcomes.values() if o.status), 0)

    def _works(self, task: Task) -> list[Work]:
        """What each rank gets; the workers are in the order of ranks after it."""
        places = self._wait_for_places()
        order = rank_order(places)
        self._workers = [self._workers[n] for n in order]
        places = [places[n] for n in order]
        self.places |= {_rank_name(rank): p.place for rank, p in enumerate(places)}
        port: Any = ray.get(self._workers[0].free_port.remote(), timeout=_START_SECONDS)
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
            for environment in rank_environments(places, places[0].place.address, port)
        ]

    def _wait_for_places(self) -> list[RankPlace]:
        ranks = [worker.place.remote() for worker in self._workers]
        parts = {name: part.place.remote() for name, part in self._parts.items()}
        # Who needs another part to start is asked after it: its own error would only be an echo.
        self.places |= {name: _started(name, place) for name, place in parts.items()}
        return [_started(_rank_name(bundle), place) for bundle, place in enumerate(ranks)]

    def _watch(
        self, runs: dict[Any, int], lives: dict[Any, str], screen: Screen, interruptions: Interruptions
    ) -> dict[int, Outcome]:
        coordinator = self._parts[COORDINATOR]
        self._events = coordinator.take.remote()
        outcomes: dict[int, Outcome] = {}
        is_passed_on = False
        while runs:
            # Ray looks for signals about once a second while it waits; the timeout is for ours that came just before.
            ready, _ = ray.wait([*runs, *lives, self._events], timeout=1.0)
            if interruptions.received is not None and not is_passed_on:
                coordinator.signal.remote(interruptions.received)
                is_passed_on = True
            for reference in ready:
                name = self._name(reference, runs, lives)
                try:
                    result = ray.get(reference)
                except RayError as error:
                    raise self._lost(name) from error
                if reference in runs:
                    outcomes[runs.pop(reference)] = result
                    if result.message is not None:
                        raise self._first_error(outcomes, runs, lives)
                else:
                    screen.show(result)
                    self._events = coordinator.take.remote()
        return outcomes

    def _name(self, reference: Any, runs: dict[Any, int], lives: dict[Any, str]) -> str:
        return _rank_name(runs[reference]) if reference in runs else lives.get(reference, COORDINATOR)

    def _first_error(
        self, outcomes: dict[int, Outcome], runs: dict[Any, int], lives: dict[Any, str]
    ) -> RuntimeError:
        """What ended the job: a death before any exception, for that may only be its echo; else the earliest."""
        coordinator = self._parts[COORDINATOR].lives.remote()
        waiting = {**runs, **lives, coordinator: COORDINATOR}
        deadline = time.monotonic() + _GRACE_SECONDS
        while waiting and time.monotonic() < deadline:
            ready, _ = ray.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            for reference in ready:
                name = self._name(reference, runs, lives)
                try:
                    outcomes[runs[reference]] = ray.get(reference)
                except RayError:
                    return self._lost(name)
                del waiting[reference]
        failed = {rank: o for rank, o in outcomes.items() if o.message is not None}
        rank = min(failed, key=lambda rank: failed[rank].ended)
        return RankError(rank, failed[rank])

    def _lost(self, name: str) -> LostPartError:
        place = self.places[name]
        where = f"process {place.pid} on {place.address}"
        return LostPartError(f"{name} was killed or crashed ({where}); {log_end(place)}")

    def show_rest(self, screen: Screen) -> None:
        """Show what the ranks have said and the driver has not: on its way already, or still with the coordinator."""
        if self._events is None:
            return
        coordinator = self._parts[COORDINATOR]
        with suppress(RayError):
            coordinator.post.remote([])
            screen.show(ray.get(self._events, timeout=_GRACE_SECONDS))


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


def _rank_name(rank: int) -> str:
    return f"rank {rank} (actor, critic and rollout)"
