"""Where a process of a job runs, and what it last said: known while it lives, asked for when it is dead."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_LOG_LINES = 25
_SECONDS = 10.0
_NEEDED = ("gcs_server", "raylet")
"""Ray's processes without which it starts and ends nothing."""


class LostRayError(RuntimeError):
    """A process of Ray's own died: no part of a job can be started or ended there any more."""


class RayProcesses:
    """Ray's own processes, where this process has started them; of a cluster that it joined, none.

    Args:
        folder: Ray's, which holds their logs.
        started: They.
    """

    def __init__(self, folder: str = "", started: Sequence[psutil.Process] = ()) -> None:
        self._all = started
        self._processes = {process.name(): process for process in started if process.name() in _NEEDED}
        self._logs = Path(folder) / "session_latest" / "logs"

    def lost(self) -> LostRayError | None:
        """What to raise for the first of them that does not live."""
        for name, process in self._processes.items():
            # A child that died is a zombie until somebody waits for it.
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                what = f"Ray's {name} was killed or crashed (process {process.pid})"
                return LostRayError(f"{what}; its logs are in {self._logs}")
        return None

    def end_rest(self) -> None:
        """After Ray was shut down: end what is left, as agents that try for a minute to tell a dead `gcs_server`."""
        for process in self._all:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@dataclass(frozen=True)
class Place:
    """One process of a job."""

    pid: int
    node: str
    """Ray's id of its machine."""
    address: str
    """The machine's address in the cluster."""
    logs: tuple[str, ...]
    """Files that hold its standard output and error."""


class Part:
    """A process of a job as an asynchronous Ray actor: it answers the driver while it works."""

    async def place(self) -> Place:
        """Where this runs."""
        return place_here()

    async def lives(self) -> None:
        """Never returns: the caller learns at once when this process ends."""
        await asyncio.Event().wait()

    async def stopped(self, pids: Sequence[int], seconds: float) -> list[int]:
        """Which processes of this machine a signal like SIGSTOP holds, a while from now."""
        await asyncio.sleep(seconds)
        return [pid for pid in pids if is_stopped(pid)]


def is_stopped(pid: int) -> bool:
    """Whether a signal holds a process of this machine. One that a debugger holds is none: it has another state."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The name before it is in parentheses, and may hold some: man 5 proc.
    return stat.rpartition(")")[2].split()[0] == "T"


def place_here() -> Place:
    """The place of the calling process, which Ray started: its output goes to files."""
    logs = dict.fromkeys(str(Path(f"/proc/self/fd/{descriptor}").readlink()) for descriptor in (1, 2))
    context = ray.get_runtime_context()
    return Place(os.getpid(), context.get_node_id(), ray.util.get_node_ip_address(), tuple(logs))


def log_end(place: Place) -> str:
    """The last lines of a process's log and where they come from, read on its own machine."""
    if all(Path(log).is_file() for log in place.logs):
        return _told(place, last_lines(place.logs))
    strategy = NodeAffinitySchedulingStrategy(place.node, soft=False)
    read = ray.remote(last_lines).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
    try:
        lines = ray.get(read.remote(place.logs), timeout=_SECONDS)
    except RayError as error:
        return (
            f"its log on {place.address}, {' and '.join(place.logs)}, cannot be read ({type(error).__name__})"
        )
    return _told(place, lines)


def last_lines(paths: tuple[str, ...]) -> list[str]:
    """The last lines of files, one file after the other, without the marks that Ray leaves there."""
    lines: list[str] = []
    for path in paths:
        with Path(path).open(errors="replace") as file:
            kept = (line.rstrip() for line in file if line.strip() and not line.startswith(":"))
            lines += deque(kept, maxlen=_LOG_LINES)
    return lines or ["(nothing)"]


def _told(place: Place, lines: list[str]) -> str:
    return "\n  ".join([f"the end of its log on {place.address}, {' and '.join(place.logs)}:", *lines])
