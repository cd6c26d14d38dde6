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
    load_roots = {
        Path(root).absolute() for root in (config.model.actor.load, config.model.critic.load) if root
    }
    save_roots = {
        Path(root).absolute() for root in (config.model.actor.save, config.model.critic.save) if root
    }
    run_folder = Path(config.trainer.default_root_dir).absolute()
    for root in sorted(save_roots - load_roots):
        if not (root / TRACKER).is_file():
            continue
        holds_the_run = root == run_folder or root in run_folder.parents
        aside = _move_checkpoints(root) if holds_the_run else root.rename(free_folder(root))
        print(
            f"The checkpoints of an earlier run are now in {aside}; --ckpt_path auto would have resumed it."
        )


def _move_checkpoints(root: Path) -> Path:
    aside = free_folder(root / "checkpoints")
    aside.mkdir()
    for folder in list(root.iterdir()):
        if iteration_of(folder) is not None or folder.name == RELEASE:
            folder.rename(aside / folder.name)
    # Last: while it is there, what is left counts as an earlier run's.
    (root / TRACKER).rename(aside / TRACKER)
    return aside
