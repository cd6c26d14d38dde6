"""Actor, critic and trainer on disk as one: written aside, renamed, and only then committed by the tracker."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relax_lightning.config.checkpoints import (
    MANIFEST,
    TRACKER,
    complete_pairs,
    iteration_folder,
    iteration_of,
)

WriteRole = Callable[[str, Path], None]
"""Writes the named role into a folder; called on every rank."""


class PairedCheckpoints:
    """The checkpoints of one run, in one root, or the critic's in a root of its own.

    Args:
        root: Where the actor and the trainer go.
        critic_root: Where the critic goes; the same as `root` for one folder an iteration.
        is_writer: Whether this rank writes what is not sharded.
        barrier: Waits for all ranks.
    """

    def __init__(
        self, root: str | Path, critic_root: str | Path, *, is_writer: bool, barrier: Callable[[], None]
    ) -> None:
        self.root = Path(root).absolute()
        self.critic_root = Path(critic_root).absolute()
        self._is_writer = is_writer
        self._barrier = barrier

    @property
    def _shared(self) -> bool:
        return self.root == self.critic_root

    def save(
        self,
        iteration: int,
        write_role: WriteRole,
        write_trainer: Callable[[Path], None],
        manifest: dict[str, Any],
    ) -> Path:
        """Save one iteration; a crash at any point leaves the last committed one in use.

        The critic's own root is committed first: an iteration counts only where both roots have it.

        Returns:
            The committed folder of the actor.
        """
        # A crash between the two roots must not pair a new half with an older one of the same iteration.
        manifest = {**manifest, "pair": uuid.uuid4().hex}
        if not self._shared:
            self._commit(self.critic_root, iteration, ("critic",), write_role, None, manifest)
        roles = ("actor", "critic") if self._shared else ("actor",)
        return self._commit(self.root, iteration, roles, write_role, write_trainer, manifest)

    def prune(self, keep_last: int) -> None:
        """Remove all but the newest `keep_last` whole pairs, and what crashed saves left behind."""
        if not self._is_writer:
            return
        kept = complete_pairs(self.root, self.critic_root)[-keep_last:]
        for root in {self.root, self.critic_root}:
            for folder in root.iterdir():
                number = iteration_of(folder)
                stale = number is not None and kept and number < kept[0]
                if stale or (folder.name.startswith(".iter_") and folder.name.endswith(".partial")):
                    shutil.rmtree(folder)

    def _commit(
        self,
        root: Path,
        iteration: int,
        roles: tuple[str, ...],
        write_role: WriteRole,
        write_trainer: Callable[[Path], None] | None,
        manifest: dict[str, Any],
    ) -> Path:
        folder = iteration_folder(root, iteration)
        partial = root / f".{folder.name}.partial"
        if self._is_writer:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._barrier()
        for role in roles:
            write_role(role, partial / role)
        self._barrier()
        if self._is_writer:
            if write_trainer is not None:
                write_trainer(partial / "trainer")
            (partial / MANIFEST).write_text(json.dumps({**manifest, "iteration": iteration}, indent=2) + "\n")
            _flush(partial)
            self._replace(partial, folder)
            _write_tracker(root, iteration)
        self._barrier()
        return folder

    @staticmethod
    def _replace(partial: Path, folder: Path) -> None:
        if folder.exists():
            # A folder that was committed before, as after a resume from an older one: swap, then remove.
            old = folder.with_name(f".{folder.name}.replaced.partial")
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
            partial.rename(folder)
            shutil.rmtree(old)
        else:
            partial.rename(folder)
        _sync(folder.parent)


def _write_tracker(root: Path, iteration: int) -> None:
    temporary = root / f".{TRACKER}.partial"
    temporary.write_text(f"{iteration}\n")
    _sync(temporary)
    temporary.replace(root / TRACKER)
    _sync(root)


def _flush(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
