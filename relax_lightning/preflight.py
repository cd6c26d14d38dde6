"""Last looks before anything is built: at what only imports can tell, and at what an earlier run left."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, callbacks

from relax_lightning.config import Config
from relax_lightning.config.checkpoints import (
    RELEASE,
    TRACKER,
    free_folder,
    is_same_folder,
    iteration_of,
)
from relax_lightning.config.same_model import check_reference, check_same_model, check_same_trunk
from relax_lightning.import_path import import_object

__all__ = [
    "check_callbacks",
    "check_reference",
    "check_same_model",
    "check_same_trunk",
    "is_first_rank",
    "put_aside_earlier_checkpoints",
]


def check_callbacks(entries: list[dict[str, Any]]) -> None:
    """Import the user's callbacks and hold their arguments against their signatures.

    Raises:
        ValueError: One cannot be imported, is no callback, or does not take its `init_args`.
    """
    for number, entry in enumerate(entries):
        key, path = f"trainer.callbacks.{number}.class_path", entry["class_path"]
        # LightningCLI knows Lightning's own by their names alone.
        found = getattr(callbacks, path, None) or import_object(key, path)
        if not (isinstance(found, type) and issubclass(found, Callback)):
            raise ValueError(f"{key}: wanted a class of callbacks, got {path}, which is {found!r}")
        try:
            inspect.signature(found).bind(**(entry.get("init_args") or {}))
        except TypeError as error:
            raise ValueError(
                f"trainer.callbacks.{number}.init_args: {path} does not take them: {error}"
            ) from error


def is_first_rank() -> bool:
    """Whether this process is the one of its job that writes what one process writes."""
    return os.environ.get("RANK", "0") == "0"


def put_aside_earlier_checkpoints(config: Config) -> None:
    """Move another run's checkpoints out of the save roots: a fresh run would prune them and mix with them."""
    if not is_first_rank():
        return
    actor, critic = config.model.actor, config.model.critic
    loaded = [root for root in (actor.load, critic.load) if root]
    for root in dict.fromkeys(Path(root).absolute() for root in (actor.save, critic.save) if root):
        if (root / TRACKER).is_file() and not any(is_same_folder(root, other) for other in loaded):
            aside = free_folder(_room_beside(root, Path(config.trainer.default_root_dir)))
            _move_checkpoints(root, aside)
            print(
                f"The checkpoints of an earlier run are now in {aside}; --ckpt_path auto would have resumed it."
            )


def _room_beside(root: Path, run_folder: Path) -> Path:
    """Where the checkpoints of a root go, less a number: beside it, but inside of it where beside is another place."""
    holds_the_run = root.resolve() in (run_folder.resolve(), *run_folder.resolve().parents)
    # A link, and what is mounted, may be on another disk than the folder that they are seen in.
    return root / "checkpoints" if holds_the_run or root.is_symlink() or root.is_mount() else root


def _move_checkpoints(root: Path, aside: Path) -> None:
    aside.mkdir()
    for folder in list(root.iterdir()):
        if iteration_of(folder) is None and folder.name != RELEASE:
            continue
        if folder.is_symlink():
            # It may lead on from where it lies.
            (aside / folder.name).symlink_to(folder.resolve())
            folder.unlink()
        else:
            folder.rename(aside / folder.name)
    # Last: while it is there, what is left counts as an earlier run's.
    (root / TRACKER).rename(aside / TRACKER)
