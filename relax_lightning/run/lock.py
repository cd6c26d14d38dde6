"""One training at a time in a folder: a second one would prune and move the checkpoints of the first."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from relax_lightning.config.tree import Config

LOCK_NAME = "run.lock"


def save_roots(config: Config) -> dict[str, str]:
    """Where a run of a resolved configuration saves its checkpoints, by key; empty where it saves none."""
    if config.callbacks.checkpoint is None or config.trainer.fast_dev_run:
        return {}
    roots = {"model.actor.save": config.model.actor.save, "model.critic.save": config.model.critic.save}
    return {key: root for key, root in roots.items() if root is not None}


@contextmanager
def run_lock(folder: str | Path, save_roots: Mapping[str, str] | None = None) -> Iterator[None]:
    """Hold the run folder and the save roots. The kernel lets go of them when the process ends, however that happens.

    Args:
        folder: The run folder; made where it is missing.
        save_roots: Where checkpoints are saved, by the key that says so; made where they are missing.

    Raises:
        ValueError: Another process holds one of them, or one cannot be written.
    """
    held: dict[tuple[int, int], int] = {}
    try:
        for key, path in {"trainer.default_root_dir": str(folder), **(save_roots or {})}.items():
            _hold(key, Path(path).absolute(), Path(folder).absolute(), held)
        yield
    finally:
        for descriptor in held.values():
            os.close(descriptor)


def _hold(key: str, path: Path, run_folder: Path, held: dict[tuple[int, int], int]) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ValueError(f"{key}: {path} cannot be written: {error}") from error
    status = os.fstat(descriptor)
    # One folder may go by several names, and a second lock of this process on it would wait for the first.
    if (status.st_dev, status.st_ino) in held:
        os.close(descriptor)
        return
    held[status.st_dev, status.st_ino] = descriptor
    _lock(descriptor, key, path, run_folder)


def _lock(descriptor: int, key: str, path: Path, run_folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise ValueError(
            f"{key}: wanted a folder that nobody trains in, got {path}, where {holder} trains; end that, or give "
            "another folder"
        ) from error
    except OSError as error:
        # Some network file systems have no locks.
        message = f"{path / LOCK_NAME} cannot be locked ({error}): see to it that one run alone trains in this folder"
        print(f"relax-lightning: warning: {message}", file=sys.stderr)
    elsewhere = "" if path == run_folder else f", of the run in {run_folder},"
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}{elsewhere}\n".encode(), 0)
    except OSError as error:
        raise ValueError(f"{key}: {path} cannot be written: {error}") from error
