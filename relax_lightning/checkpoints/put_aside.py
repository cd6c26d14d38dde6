"""A fresh run and the checkpoints of an earlier one in the same place."""

from __future__ import annotations

from pathlib import Path

from relax_lightning.checkpoints.folders import (
    RELEASE,
    TRACKER,
    free_folder,
    is_same_folder,
    iteration_of,
)
from relax_lightning.config import Config
from relax_lightning.run.rendezvous import is_first_rank


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
