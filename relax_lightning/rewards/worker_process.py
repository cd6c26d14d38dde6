"""One worker process of a reward, seen from the process that started it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress

from relax_lightning.config import RewardConfig
from relax_lightning.rewards.records import RewardOutcome, RewardRequest

_STARTUP_SECONDS = 120.0
_AHEAD_BYTES = 32_768


class WorkerProcess:
    """Starts a worker, gives it samples, which it scores in order, and ends it.

    Some samples are sent ahead, so that a quick reward does not wait for each answer to be read. The worker answers
    after each, so the first unanswered one is the one it works on.

    A fresh interpreter rather than a fork: the parent's threads, GPU context and `__main__` stay out of it. It has a
    process group of its own, so Ctrl-C on the terminal does not reach it and its children end with it.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self.given: deque[tuple[int, RewardRequest]] = deque()
        """The samples it has not answered, each with its place in the batch; it works on the first."""
        self._sizes: deque[int] = deque()
        self.is_loaded = False
        self.deadline = time.monotonic() + _STARTUP_SECONDS
        self.connection, child_end = multiprocessing.Pipe()
        command = [
            sys.executable,
            "-u",
            "-P",
            "-m",
            "relax_lightning.rewards.worker",
            str(child_end.fileno()),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=2,
            pass_fds=[child_end.fileno()],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path)},  # noqa: PTH100
        )
        child_end.close()
        self.connection.send((config.name, config.class_path, config.init_args, config.timeout_seconds))

    @property
    def is_idle(self) -> bool:
        """Whether it has loaded the reward and has nothing to do."""
        return self.is_loaded and not self.given

    def has_room(self, ahead: int) -> bool:
        """Whether it can be given another sample when at most `ahead` of them may be unanswered.

        What is sent ahead has to fit into the pipe: a send that waits for a hung worker would wait for ever.
        """
        return self.is_idle or (
            self.is_loaded and len(self.given) < ahead and sum(self._sizes) < _AHEAD_BYTES
        )

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def finish_loading(self) -> str | None:
        """Read the worker's word on its reward: None when it is loaded, else what went wrong."""
        try:
            problem = self.connection.recv()
        except (EOFError, ConnectionError):
            return self._how_it_ended()
        self.is_loaded = problem is None
        return problem

    def give(self, position: int, request: RewardRequest) -> None:
        """Send a sample; its time runs from when the one before it is answered. A dead worker shows when it is read."""
        if not self.given:
            self.deadline = time.monotonic() + self._config.timeout_seconds
        message = pickle.dumps(request)
        self.given.append((position, request))
        self._sizes.append(len(message))
        with suppress(ConnectionError):
            self.connection.send_bytes(message)

    def take(self) -> tuple[int, RewardOutcome, bool]:
        """Read the next answer: the sample's place, its outcome, and whether the worker lives."""
        position, request = self.given[0]
        try:
            outcome = self.connection.recv()
        except (EOFError, ConnectionError):
            self.given.popleft()
            return position, RewardOutcome(request.sample_id, 0.0, self._how_it_ended()), False
        self.given.popleft()
        self._sizes.popleft()
        self.deadline = time.monotonic() + self._config.timeout_seconds
        return position, outcome, True

    def give_up(self) -> tuple[int, RewardOutcome]:
        """Place and outcome of the sample whose time is over. The worker has to be closed."""
        position, request = self.given.popleft()
        seconds = self._config.timeout_seconds
        error = f"ran longer than timeout_seconds = {seconds:g}, so it was ended"
        return position, RewardOutcome(request.sample_id, 0.0, error)

    def close(self) -> None:
        """End the process and its children at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        return (
            f"its process was ended by {signal.Signals(-code).name}"
            if code < 0
            else f"its process ended with exit code {code}"
        )
