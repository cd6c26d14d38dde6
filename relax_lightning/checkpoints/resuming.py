"""What a configuration goes on from: the checkpoint that `--ckpt_path` or `load` means. Loads nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from relax_lightning.checkpoints.folders import (
    RELEASE,
    TRACKER,
    committed_folder,
    find_latest,
    iteration_of,
    read_folders,
    read_tracker,
    role_folder,
)
from relax_lightning.checkpoints.manifest import MANIFEST, read_manifest
from relax_lightning.config.faults import fault
from relax_lightning.config.tree import Config


def resumed_folder(config: Config, resume: str) -> Path | None:
    """The iteration's folder that `--ckpt_path` means; None when `auto` finds nothing and starts fresh.

    Args:
        config: a resolved configuration.
        resume: `auto`, a checkpoint root, or an `iter_` folder.

    Raises:
        ValueError: There is no complete checkpoint, or its halves were not saved together.
    """
    if resume == "auto":
        latest = find_latest(config.model.actor.save or "", config.model.critic.save)
        return None if latest is None else latest[1]
    folder = Path(resume)
    if folder.is_dir() and iteration_of(folder) is None:
        folder = committed_folder(folder) or folder
    if (folder / MANIFEST).is_file():
        read_folders(folder, critic_root(config))
        return folder
    change = "give `auto`, a checkpoint root or one of its iter_ folders"
    named = "" if str(folder) == str(Path(resume)) else f", whose {TRACKER} names {folder.name}"
    raise ValueError(fault(f"a complete checkpoint (with {MANIFEST}{named})", resume, change))


@dataclass(frozen=True)
class PlainCheckpoint:
    """What `model.actor.load` and `model.critic.load` name where no trainer state lies beside the roles."""

    folders: dict[str, Path]
    """The Megatron checkpoint of each role."""
    iteration: int
    """The iteration that the trackers agree on; 0 for a release."""
    is_release: bool
    """Weights only: optimizer and schedule start fresh."""


def whole_checkpoint(config: Config) -> str | None:
    """The folder that `model.actor.load` means when trainer state lies in it, so that everything resumes from it."""
    root = config.model.actor.load
    folder = None if root is None else committed_folder(root)
    return str(folder) if folder is not None and (folder / "trainer").is_dir() else None


def plain_checkpoint(config: Config) -> PlainCheckpoint | None:
    """The roles' own checkpoints under `load`, of a resolved configuration that passed its checks; None without."""
    roots = {"actor": config.model.actor.load, "critic": config.model.critic.load}
    folders = {}
    for role, root in roots.items():
        folder = None if root is None else committed_folder(root)
        if folder is not None:
            folders[role] = role_folder(folder, role)
    if not folders:
        return None
    tracker = read_tracker(roots["actor"] or "")
    is_release = tracker == RELEASE
    return PlainCheckpoint(folders, 0 if is_release else int(tracker or 0), is_release)


def nothing_left(config: Config, ckpt_path: str | None) -> str | None:
    """What is said where the checkpoint that `fit` goes on from has all iterations; None where some are left.

    Args:
        config: a resolved configuration that passed its checks.
        ckpt_path: the iteration's folder to resume from, or None.
    """
    done = _iterations_done(config, ckpt_path or whole_checkpoint(config))
    if not 0 < config.trainer.max_steps <= done:
        return None
    return f"nothing to do: the checkpoint is at iteration {done} of {config.trainer.max_steps}"


def _iterations_done(config: Config, ckpt_path: str | None) -> int:
    if ckpt_path is not None:
        return int((read_manifest(ckpt_path) or {}).get("iteration") or iteration_of(ckpt_path) or 0)
    loaded = plain_checkpoint(config)
    return 0 if loaded is None else loaded.iteration


def critic_root(config: Config) -> Path | None:
    """Where the critic's half of a checkpoint lies, of a resolved configuration."""
    root = config.model.critic.load or config.model.critic.save
    return None if root is None else Path(root)
