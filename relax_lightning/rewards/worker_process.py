"""One worker process of a reward, seen from the process that started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from relax_lightning.config import RewardConfig
from relax_lightning.rewards.records import RewardOutcome, RewardRequest

_STARTUP_SECONDS = 120.0


class WorkerProcess:
    """Starts a worker, gives it one sample at a time, and ends it.

    A fresh interpreter rather than a fork: the parent's threads, GPU context and `__main__` stay out of it. It has a
    process group of its own, so Ctrl-C on the terminal does not reach it and its children end with it.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self.position = -1
        """Place, in its batch, of the sample that was given last."""
        self.request: RewardRequest | None = None
        """The sample being scored."""
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
        """Whether it can be given a sample."""
        return self.is_loaded and self.request is None

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
        """Send a sample; its time runs from here. A worker that is gone shows when the outcome is read."""
        self.position, self.request = position, request
        self.deadline = time.monotonic() + self._config.timeout_seconds
        with suppress(ConnectionError):
            self.connection.send(request)

    def take(self) -> RewardOutcome:
        """Read the outcome of the sample that was given last."""
        assert self.request is not None
        try:
            outcome = self.connection.recv()
        except (EOFError, ConnectionError):
            return RewardOutcome(self.request.sample_id, 0.0, self._how_it_ended())
        self.request = None
        return outcome

    def give_up(self) -> RewardOutcome:
        """The outcome of a sample whose time is over. The worker has to be closed."""
        assert self.request is not None
        seconds = self._config.timeout_seconds
        return RewardOutcome(
            self.request.sample_id, 0.0, f"ran longer than timeout_seconds = {seconds:g}, so it was ended"
        )

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
