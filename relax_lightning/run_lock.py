"""One training at a time in a run folder: a second one would prune and move the checkpoints of the first."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = "run.lock"


@contextmanager
def run_lock(folder: str | Path) -> Iterator[None]:
    """Hold the run folder. The kernel lets go of it when the process ends, however that happens.

    Args:
        folder: The run folder; made where it is missing.

    Raises:
        ValueError: Another process holds it, or it cannot be written.
    """
    path = Path(folder).absolute() / LOCK_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ValueError(f"trainer.default_root_dir: {path.parent} cannot be written: {error}") from error
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise ValueError(
            f"trainer.default_root_dir: wanted a run folder that nobody trains in, got {path.parent}, where "
            f"{holder} trains; end that, or give another folder"
        ) from error
    except OSError as error:
        # Some network file systems have no locks.
        message = f"{path} cannot be locked ({error}): see to it that one run alone trains in this folder"
        print(f"relax-lightning: warning: {message}", file=sys.stderr)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
