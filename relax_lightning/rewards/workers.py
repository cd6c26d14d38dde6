"""The pool of worker processes that score responses."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self

from relax_lightning.config import RewardConfig
from relax_lightning.rewards.records import NOT_TRIED, RewardError, RewardOutcome, RewardRequest
from relax_lightning.rewards.worker_process import WorkerProcess

_LOGGER = logging.getLogger(__name__)
_AHEAD = 32
"""Samples a worker may have at a time."""
_MOST_LOST = 8
"""Samples that may hang or end their worker, if they are more than those that were scored: each costs a new worker."""
_SHORTEST_REST_SECONDS = 5.0


class RewardWorkers:
    """Scores samples in processes of their own, so that a reward that hangs or crashes can be ended and named.

    A context manager: the workers start, and the reward is known to load, on entry; they end on exit.

    Args:
        config: Which reward, how many workers, how long a sample may take, and what follows an error.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._workers: list[WorkerProcess] = []
        self._pending: deque[tuple[int, RewardRequest]] = deque()
        self._num_lost = self._num_scored = 0
        self._end: float | None = None
        """When the rest of the samples is left, after a failure under `on_error: raise`."""

    def __enter__(self) -> Self:
        """Start all workers and wait until each has loaded the reward.

        Raises:
            ValueError: The reward cannot be imported or built.
        """
        try:
            self._workers = [WorkerProcess(self._config) for _ in range(self._config.num_workers)]
            while not all(worker.is_loaded for worker in self._workers):
                self._listen({})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers at once."""
        while self._workers:
            self._workers.pop().close()

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardOutcome]:
        """Score all samples, each within `timeout_seconds`.

        Returns:
            One outcome a request, in the same order. With `on_error: zero` a failed one has reward 0 and its error.

        Raises:
            RewardError: It names the failed samples. With `on_error: raise`, after a failure and as many of the other
                samples as are scored in another `timeout_seconds`; with `zero`, where the reward hangs or ends its
                worker on most of all samples so far, and on several.
        """
        assert self._workers, "score() outside of the context manager"
        self._pending = deque(enumerate(requests))
        self._end = None
        outcomes: dict[int, RewardOutcome] = {}
        try:
            while len(outcomes) < len(requests) and not self._is_hopeless and not self._is_over:
                self._hand_out()
                self._listen(outcomes)
        finally:
            self._pending.clear()
            self._replace([worker for worker in self._workers if worker.given])
        left = (RewardOutcome(request.sample_id, 0.0, NOT_TRIED) for request in requests)
        return self._settle([outcomes.get(position, rest) for position, rest in enumerate(left)])

    @property
    def _is_hopeless(self) -> bool:
        return self._num_lost >= max(_MOST_LOST, 2 * len(self._workers)) and self._num_lost > self._num_scored

    @property
    def _is_over(self) -> bool:
        return self._end is not None and self._end <= time.monotonic()

    def _hand_out(self) -> None:
        self._replace([worker for worker in self._workers if worker.is_idle and worker.has_ended])
        # Fewer are sent ahead towards the end, so that no worker is left with a queue when the others are done.
        ahead = min(_AHEAD, max(1, len(self._pending) // (2 * len(self._workers))))
        while self._pending and (free := [worker for worker in self._workers if worker.has_room(ahead)]):
            min(free, key=lambda worker: len(worker.given)).give(*self._pending.popleft())

    def _listen(self, outcomes: dict[int, RewardOutcome]) -> None:
        """Wait for the next word from any worker, or for the next one whose time is over."""
        waiting = [worker for worker in self._workers if not worker.is_idle]
        soonest = min([worker.deadline for worker in waiting] + ([] if self._end is None else [self._end]))
        ready = wait([worker.connection for worker in waiting], timeout=max(0.0, soonest - time.monotonic()))
        for worker in waiting:
            if worker.connection in ready:
                self._hear(worker, outcomes)
            elif worker.deadline <= time.monotonic():
                self._end_late(worker, outcomes)

    def _hear(self, worker: WorkerProcess, outcomes: dict[int, RewardOutcome]) -> None:
        if not worker.is_loaded:
            if (problem := worker.finish_loading()) is not None:
                raise ValueError(f"data.rollout.reward: {problem}")
            return
        is_alive = True
        while is_alive and worker.given and worker.connection.poll():
            position, outcome, is_alive = worker.take()
            outcomes[position] = self._noted(outcome, is_lost=not is_alive)
        if not is_alive:
            self._replace([worker])

    def _end_late(self, worker: WorkerProcess, outcomes: dict[int, RewardOutcome]) -> None:
        if not worker.is_loaded:
            raise ValueError("data.rollout.reward: the reward took too long to import and build")
        position, outcome = worker.give_up()
        outcomes[position] = self._noted(outcome, is_lost=True)
        self._replace([worker])

    def _noted(self, outcome: RewardOutcome, *, is_lost: bool) -> RewardOutcome:
        self._num_lost += is_lost
        self._num_scored += outcome.error is None
        if outcome.error is not None and self._end is None and self._config.on_error == "raise":
            rest_seconds = max(self._config.timeout_seconds, _SHORTEST_REST_SECONDS)
            self._end = time.monotonic() + rest_seconds
        return outcome

    def _replace(self, workers: list[WorkerProcess]) -> None:
        """Close workers and start others; what was sent ahead to a closed one is given out again."""
        for worker in workers:
            self._pending.extendleft(reversed(worker.given))
            worker.close()
            self._workers[self._workers.index(worker)] = WorkerProcess(self._config)

    def _settle(self, outcomes: list[RewardOutcome]) -> list[RewardOutcome]:
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if failed and (self._config.on_error == "raise" or self._is_hopeless):
            raise RewardError(outcomes, is_hopeless=self._is_hopeless)
        if failed:
            _LOGGER.warning(
                "%d of %d rewards failed and count 0; sample %d: %s",
                len(failed),
                len(outcomes),
                failed[0].sample_id,
                failed[0].error,
            )
        return outcomes
