"""One rank of a job: a Ray actor, in whose process the Trainer is built from the resolved configuration and runs."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import ray

from relax_lightning.config import Config
from relax_lightning.distributed.coordinator import Entered, Event, Line, Shown
from relax_lightning.distributed.environment import RankPlace
from relax_lightning.distributed.processes import place_here
from relax_lightning.run.errors import text_of
from relax_lightning.run.import_path import import_object
from relax_lightning.run.rendezvous import all_are_here, free_port, talk_on_loopback
from relax_lightning.tracking.progress import Progress


@dataclass(frozen=True)
class Work:
    """What a rank is to do."""

    entry: str
    """Import path of the function that trains."""
    command: str
    config: Config
    ckpt_path: str | None
    folder: str
    """The driver's working directory: relative paths mean the same, and the user's own classes lie there."""
    environment: dict[str, str]
    coordinator: Any
    store: Any
    advantages: Any


@dataclass(frozen=True)
class Outcome:
    """How a rank ended that ended of itself."""

    status: int
    message: str | None = None
    """Of the exception that ended it."""
    phase: str | None = None
    """The phase it came from."""
    ended: float = 0.0
    """Seconds since the epoch."""
    has_left: bool = False
    """By `sys.exit` or a signal, which the other ranks may know nothing of."""

    @classmethod
    def of(cls, error: BaseException, phase: str | None) -> Outcome:
        """What an exception makes of the work, as the interpreter itself would."""
        now = time.time()
        if isinstance(error, KeyboardInterrupt):
            return cls(128 + signal.SIGINT, None, phase, now, has_left=True)
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            return cls(error.code or 0, None, phase, now, has_left=True)
        return cls(1, text_of(error), phase, now)


class RankWorker:
    """A synchronous Ray actor: its methods run in the main thread, where signal handlers belong."""

    def place(self) -> RankPlace:
        """Where this runs, and the GPU that it was given."""
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return RankPlace(place_here(), str(gpus[0]) if gpus else None, len(os.sched_getaffinity(0)))

    def free_port(self, host: str) -> int:
        """A port for the ranks to meet at, if this becomes rank 0."""
        return free_port(host)

    def train(self, work: Work) -> Outcome:
        """Run the job's entry; returns instead of raising, so that one error is told once."""
        # Before torch is imported, which reads some of these then.
        os.environ.update(work.environment)
        if all_are_here():
            talk_on_loopback()
        progress = ForwardedProgress(work.coordinator, int(work.environment["RANK"]))
        with _signals(), _output_to(work.coordinator, is_shown=progress.is_shown):
            try:
                self._enter_folder(work.folder)
                threading.Thread(target=_listen, args=(work.coordinator,), daemon=True).start()
                return Outcome(_run(work, progress))
            except BaseException as error:  # noqa: BLE001 the driver tells it
                return Outcome.of(error, progress.current_phase)

    def _enter_folder(self, folder: str) -> None:
        if not Path(folder).is_dir():
            raise ValueError(
                f"wanted the working directory {folder} on every machine, {socket.gethostname()} lacks it; "
                "start from a file system that all machines share"
            )
        os.chdir(folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)


class ForwardedProgress(Progress):
    """Sends what rank 0 has to show to the driver, and of every rank the phase.

    Args:
        coordinator: Actor handle of `Coordinator`.
        rank: This process's.
    """

    def __init__(self, coordinator: Any, rank: int) -> None:
        self._coordinator = coordinator
        self._rank = rank
        self.is_shown = rank == 0
        self.current_phase: str | None = None

    def start(self, first_iteration: int, max_iterations: int | None) -> None:
        """Send it on."""
        self._send("start", first_iteration, max_iterations)

    def phase(self, name: str | None) -> None:
        """Remember it, and send it on."""
        self.current_phase = name
        _post(self._coordinator, [Entered(self._rank, name)])
        self._send("phase", name)

    def iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Send it on."""
        self._send("iteration", iteration, dict(metrics))

    def validation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Send it on."""
        self._send("validation", iteration, dict(metrics))

    def stop(self) -> None:
        """Send it on."""
        self._send("stop")

    def _send(self, method: str, *arguments: Any) -> None:
        if self.is_shown:
            _post(self._coordinator, [Shown(method, arguments)])


class ForwardedStream(io.TextIOBase):
    """A standard stream whose whole lines also go to the driver.

    Args:
        own: The process's stream, which Ray keeps in a file.
        coordinator: Actor handle of `Coordinator`.
        is_error: Whether this is standard error.
    """

    def __init__(self, own: TextIO, coordinator: Any, *, is_error: bool) -> None:
        self._own = own
        self._coordinator = coordinator
        self._is_error = is_error
        self._begun = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Keep it, and send the lines that it completes."""
        self._own.write(text)
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            _post(self._coordinator, [Line(line, self._is_error) for line in lines])
        return len(text)

    def flush(self) -> None:
        """Of the process's own stream; a line goes out when it is whole."""
        self._own.flush()

    def fileno(self) -> int:
        """The process's own: what writes there by number goes to the log alone."""
        return self._own.fileno()

    def finish(self) -> None:
        """Send what has no end of line."""
        if self._begun:
            self.write("\n")


def _post(coordinator: Any, events: list[Event]) -> None:
    """Leave events for the driver; waits, for an asynchronous actor may take up calls in another order."""
    ray.get(coordinator.post.remote(events))


def _run(work: Work, progress: ForwardedProgress) -> int:
    entry = import_object("entry", work.entry)
    from relax_lightning.distributed.services import RemoteAdvantages
    from relax_lightning.distributed.store import DEADLINE_SECONDS, TransferQueueStore

    store = TransferQueueStore(work.store, work.coordinator)
    service = RemoteAdvantages(work.advantages, DEADLINE_SECONDS)
    try:
        return entry(
            work.command, work.config, work.ckpt_path, store=store, advantages=service, progress=progress
        )
    finally:
        store.close()


@contextmanager
def _output_to(coordinator: Any, *, is_shown: bool) -> Iterator[None]:
    """Send what is printed to the driver as well."""
    if not is_shown:
        yield
        return
    own = sys.stdout, sys.stderr
    sys.stdout = ForwardedStream(own[0], coordinator, is_error=False)
    sys.stderr = ForwardedStream(own[1], coordinator, is_error=True)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.finish()
        sys.stdout, sys.stderr = own


@contextmanager
def _signals() -> Iterator[None]:
    """Until training takes the signals over, one ends the process's work at once. Ray blocks SIGINT in its workers."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, _interrupt) for number in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _listen(coordinator: Any) -> None:
    """Give this process the signal that the driver received."""
    os.kill(os.getpid(), ray.get(coordinator.wait_for_signal.remote()))
