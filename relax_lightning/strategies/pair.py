"""Actor, critic and trainer on disk as one: written aside, renamed, and only then committed by the tracker."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relax_lightning.checkpoints.checksums import files_in, take
from relax_lightning.checkpoints.folders import (
    TRACKER,
    complete_pairs,
    is_same_folder,
    iteration_folder,
    iteration_of,
)
from relax_lightning.checkpoints.manifest import FORMAT, MANIFEST

log = logging.getLogger("relax_lightning")

WriteRole = Callable[[str, Path], None]
"""Writes the named role into a folder; called on every rank."""


class PairedCheckpoints:
    """The checkpoints of one run, in one root, or the critic's in a root of its own.

    Args:
        root: Where the actor and the trainer go.
        critic_root: Where the critic goes; the same as `root` for one folder an iteration.
        is_writer: Whether this rank writes what is not sharded.
        barrier: Waits for all ranks.
        share: `(rank, ranks)`: whose files this rank takes the checksums of.
        gather: Everyone's value, by rank.
    """

    def __init__(
        self,
        root: str | Path,
        critic_root: str | Path,
        *,
        is_writer: bool,
        barrier: Callable[[], None],
        share: tuple[int, int] = (0, 1),
        gather: Callable[[Any], list[Any]] = lambda value: [value],
    ) -> None:
        self.root = Path(root).absolute()
        self.critic_root = Path(critic_root).absolute()
        self._is_writer = is_writer
        self._barrier = barrier
        self._share = share
        self._gather = gather
        self._kept: set[Path] = set()

    @property
    def _shared(self) -> bool:
        return is_same_folder(self.root, self.critic_root)

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
        """Remove all but the newest `keep_last` whole pairs, and what crashed saves left behind.

        What cannot be removed, or is a link to somewhere else, stays with a warning: training goes on.
        """
        if not self._is_writer:
            return
        try:
            kept = complete_pairs(self.root, self.critic_root)[-keep_last:]
            for root in {self.root, self.critic_root}:
                for folder in root.iterdir():
                    number = iteration_of(folder)
                    stale = number is not None and kept and number < kept[0]
                    if stale or (folder.name.startswith(".iter_") and folder.name.endswith(".partial")):
                        self._remove(folder)
        except (OSError, ValueError) as error:
            log.warning("old checkpoints were not removed: %s", error)

    def _remove(self, folder: Path) -> None:
        reason = "it is a link" if folder.is_symlink() else _removal_fault(folder)
        if reason and folder not in self._kept:
            self._kept.add(folder)
            log.warning("%s stays, for it cannot be removed: %s", folder, reason)

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
            _clear(partial)
            partial.mkdir(parents=True)
        self._barrier()
        for role in roles:
            write_role(role, partial / role)
        if self._is_writer and write_trainer is not None:
            write_trainer(partial / "trainer")
        self._barrier()
        files = self._sums(partial, roles if write_trainer is None else (*roles, "trainer"))
        if self._is_writer:
            manifest = {"format": FORMAT, **manifest, "iteration": iteration, "files": files}
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
            _flush(partial)
            self._replace(partial, folder)
            _write_tracker(root, iteration)
        self._barrier()
        return folder

    def _sums(self, folder: Path, parts: tuple[str, ...]) -> dict[str, Any]:
        """Checksums of all files, of which every rank reads its share."""
        names = sorted(
            (name for part in parts for name in files_in(folder, part)),
            key=lambda name: -(folder / name).stat().st_size,
        )
        # The writer's list: a network's file system may show others an older one.
        names = self._gather(names)[0]
        rank, ranks = self._share
        return {
            name: kept
            for part in self._gather(take(folder, names[rank::ranks]))
            for name, kept in sorted(part.items())
        }

    def _replace(self, partial: Path, folder: Path) -> None:
        if os.path.lexists(folder):
            # A folder that was committed before, as after a resume from an older one: swap, then remove.
            old = folder.with_name(f".{folder.name}.replaced.partial")
            _clear(old)
            folder.rename(old)
            partial.rename(folder)
            self._remove(old)
        else:
            partial.rename(folder)
        _sync(folder.parent)


def _removal_fault(folder: Path) -> str:
    """Removes a folder; what stands in the way, or nothing."""
    try:
        # First: what is left of a folder may not pass for a checkpoint.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)
    except OSError as error:
        return str(error)
    return ""


def _clear(path: Path) -> None:
    """Make sure that nothing is there; what cannot be removed makes way under another name."""
    if path.is_symlink():
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        path.rename(path.with_name(f"{path.name.removesuffix('.partial')}.{uuid.uuid4().hex[:8]}.partial"))


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
