"""What the driver waits for while a job runs: what its ranks say, how they end, and whether all parts go on."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from relax_lightning.distributed.coordinator import Entered, Event
from relax_lightning.distributed.interruptions import SIGNALS, Aborted, Interruptions
from relax_lightning.distributed.processes import LostRayError, Place, RayProcesses, log_end
from relax_lightning.distributed.rank import Outcome
from relax_lightning.distributed.screen import Screen
from relax_lightning.distributed.stopped import SILENT, STOPPED, MachineWatch

COORDINATOR = "the coordinator"

_GRACE_SECONDS = 2.0
"""After a first error: one rank's death shows in others as a broken connection, sometimes a moment earlier."""
_SAVE_SECONDS = 45.0
"""What ranks get to save without Ray, which ends them after 60."""
_LEAVE_SECONDS = 10.0
"""After a rank has left: where all of them leave, they do so at one point of the work."""


class LostPartError(RuntimeError):
    """A process of the job died, or was stopped for good; the message names it and ends with its log."""


class RankError(RuntimeError):
    """A rank's work raised an exception, or left while others went on.

    Args:
        rank: The first one that did.
        outcome: How it ended.
    """

    def __init__(self, rank: int, outcome: Outcome) -> None:
        if outcome.has_left:
            when = f" in its {outcome.phase} phase" if outcome.phase else ""
            text = f"rank {rank} left with status {outcome.status} (sys.exit){when}, others did not"
        else:
            phase = f", {outcome.phase} phase" if outcome.phase else ""
            text = f"rank {rank}{phase}: {outcome.message}"
        super().__init__(text)


class Watch:
    """Follows the ranks of a job to their end.

    Args:
        parts: Actor handles of the parts that are no ranks, by name.
        places: Where each part and rank runs, by name.
        watchers: The parts that look after their machine, one a machine.
        screen: Shows what the ranks say.
        interruptions: Signals at the driver.
        processes: Ray's own, where they are this process's.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        places: Mapping[str, Place],
        watchers: Sequence[str],
        screen: Screen,
        interruptions: Interruptions,
        processes: RayProcesses,
    ) -> None:
        self._parts = parts
        self._places = places
        self._screen = screen
        self._interruptions = interruptions
        self._processes = processes
        self._machines = [MachineWatch(name, places) for name in watchers]
        self._waiting: dict[Any, tuple[str, Callable[[Any], None]]] = {}
        """What is waited for: the part that will answer, and what is done with its answer."""
        self._events: Any = None
        self._phases: dict[str, str | None] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._first_left: float | None = None
        """When a rank was first seen to have left, on this machine's monotonic clock."""
        self._is_passed_on = False
        self._lost_ray: LostRayError | None = None
        self._gives_up = math.inf
        """When the ranks have had their time to save after that, on this machine's monotonic clock."""

    def follow(self, works: Sequence[Any]) -> dict[int, Outcome]:
        """How each rank ended.

        Args:
            works: Ray's reference to the outcome of each rank.

        Raises:
            LostPartError: A process died, or is stopped and does not go on.
            LostRayError: A process of Ray's own died.
            RankError: A rank's work raised, or left while others went on.
            Aborted: A signal ended a rank outside training.
        """
        for rank, work in enumerate(works):
            self._waiting[work] = rank_name(rank), partial(self._outcomes.__setitem__, rank)
        for name, part in self._parts.items():
            self._waiting[part.lives.remote()] = name, _never
        for machine in self._machines:
            self._look(machine)
        self._take()
        while len(self._outcomes) < len(works) and not self._failed() and not self._is_left_alone():
            began = time.monotonic()
            # Ray looks for signals about once a second while it waits; the timeout is for ours that came just before.
            self._wait(1.0)
            self._look_at_ray()
            self._pass_signal_on()
            for machine in self._machines:
                if machine.is_silent(time.monotonic() - began):
                    raise self._lost(machine.watcher, SILENT)
        if self._failed():
            self._wait_for_causes()
        self.show_rest()
        if self._lost_ray is not None and any(outcome.status for outcome in self._outcomes.values()):
            raise self._lost_ray
        self._refuse_bad_ends(len(works))
        return self._outcomes

    def _wait(self, seconds: float) -> None:
        """Until something is answered, at most so long."""
        ready, _ = ray.wait(list(self._waiting), timeout=seconds)
        for reference in ready:
            name, act = self._waiting.pop(reference)
            try:
                answer = ray.get(reference)
            except RayError as error:
                raise self._lost(name, "was killed or crashed") from error
            act(answer)

    def _look(self, machine: MachineWatch) -> None:
        watcher = self._parts[machine.watcher]
        self._waiting[machine.ask(watcher)] = machine.watcher, partial(self._looked, machine)

    def _looked(self, machine: MachineWatch, stopped: Sequence[int]) -> None:
        lost = machine.lost(stopped)
        if lost is not None:
            raise self._lost(lost, STOPPED)
        self._look(machine)

    def _take(self) -> None:
        self._events = self._parts[COORDINATOR].take.remote()
        self._waiting[self._events] = COORDINATOR, self._taken

    def _taken(self, events: Sequence[Event]) -> None:
        self._show(events)
        self._take()

    def _show(self, events: Sequence[Event]) -> None:
        self._phases |= {rank_name(e.rank): e.phase for e in events if isinstance(e, Entered)}
        self._screen.show([event for event in events if not isinstance(event, Entered)])

    def show_rest(self) -> None:
        """Show what the ranks have said and the driver has not: on its way already, or still with the coordinator."""
        with suppress(RayError):
            self._parts[COORDINATOR].post.remote([])
            self._show(ray.get(self._events, timeout=_GRACE_SECONDS))

    def _pass_signal_on(self) -> None:
        if self._interruptions.aborted is not None:
            # The handler raised it in vain: in a destructor, Python only prints it.
            raise self._interruptions.aborted
        if self._interruptions.received is not None and not self._is_passed_on:
            self._parts[COORDINATOR].signal.remote(self._interruptions.received)
            self._is_passed_on = True

    def _look_at_ray(self) -> None:
        """Let the ranks end and save, where Ray has died and they live: it ends them too after a minute.

        Raises:
            LostRayError: They had their time for it.
        """
        if self._lost_ray is None:
            self._lost_ray = self._processes.lost()
            if self._lost_ray is None:
                return
            self._gives_up = time.monotonic() + _SAVE_SECONDS
            print(f"{self._lost_ray}: this iteration ends, then the run is saved", file=sys.stderr)
            self._parts[COORDINATOR].signal.remote(int(signal.SIGTERM))
            self._is_passed_on = True
        if time.monotonic() > self._gives_up:
            raise self._lost_ray

    def _failed(self) -> dict[int, Outcome]:
        return {rank: outcome for rank, outcome in self._outcomes.items() if outcome.message is not None}

    def _is_left_alone(self) -> bool:
        """Whether a rank has left, and the others had time to leave as well."""
        if self._first_left is None:
            if any(outcome.has_left for outcome in self._outcomes.values()):
                self._first_left = time.monotonic()
            return False
        return time.monotonic() - self._first_left > _LEAVE_SECONDS

    def _wait_for_causes(self) -> None:
        """A death goes before an error, which may only be its echo.

        Raises:
            LostPartError: A process died.
        """
        deadline = time.monotonic() + _GRACE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._wait(left)

    def _refuse_bad_ends(self, num_ranks: int) -> None:
        """A signal goes before the errors, and of these the earliest: others may only be its echo.

        Raises:
            RankError: A rank raised, or left and not all of them with the same status.
            Aborted: A rank left because of a signal.
        """
        failed = self._failed()
        left = {rank: outcome for rank, outcome in self._outcomes.items() if outcome.has_left}
        for outcome in left.values():
            if outcome.status - 128 in SIGNALS:
                raise Aborted(outcome.status - 128, is_second=False)
        statuses = [outcome.status for outcome in self._outcomes.values()]
        ended_alike = len(statuses) == num_ranks and len(set(statuses)) == 1
        if failed or (left and not ended_alike):
            early = failed | left
            rank = min(early, key=lambda rank: early[rank].ended)
            raise RankError(rank, early[rank])

    def _lost(self, name: str, how: str) -> LostPartError:
        # With Ray's own processes all parts die.
        lost = self._processes.lost()
        if lost is not None:
            raise lost
        self.show_rest()
        place, phase = self._places[name], self._phases.get(name)
        when = f" in its {phase} phase" if phase else ""
        where = f"process {place.pid} on {place.address}"
        return LostPartError(f"{name} {how}{when} ({where}); {log_end(place)}")


def rank_name(rank: int) -> str:
    """What messages call a rank."""
    return f"rank {rank} (actor, critic and rollout)"


def _never(answer: Any) -> None:
    raise AssertionError("lives() has returned")
