"""How checkpoints lie on disk: folder names, the tracker, what is complete. Loads nothing."""

from __future__ import annotations

import errno
import glob
import itertools
import os
import re
from pathlib import Path
from typing import Literal

from relax_lightning.checkpoints.manifest import MANIFEST, read_manifest

TRACKER = "latest_checkpointed_iteration.txt"
"""The one commit point of a checkpoint root."""

RELEASE = "release"
ROLES = ("actor", "critic")


def iteration_folder(root: str | Path, iteration: int) -> Path:
    """Folder of one iteration: `<root>/iter_0000012`."""
    return Path(root) / f"iter_{iteration:07d}"


def iteration_of(folder: str | Path) -> int | None:
    """The iteration that a folder's name says, or None for any other name."""
    match = re.fullmatch(r"iter_(\d{7}|[1-9]\d{7,17})", Path(folder).name, re.ASCII)
    return int(match[1]) if match else None


def is_same_folder(one: str | Path, other: str | Path) -> bool:
    """Whether two paths, however they are spelt, mean one folder; it need not be there."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def read_tracker(root: str | Path) -> int | Literal["release"] | None:
    """What the tracker of a root says: an iteration, `release` (weights only), or None without a tracker.

    Raises:
        ValueError: The tracker holds something else.
    """
    path = Path(root) / TRACKER
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise  # no path at all, which is told once for all keys
        raise ValueError(f"{path} cannot be read: {error.strerror}; correct it") from error
    if text == RELEASE:
        return RELEASE
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text)
    raise ValueError(
        f"{path}: wanted an iteration or `release`, got {text[:40]!r}; "
        "write the number of the newest complete iter_ folder"
    )


def committed_folder(root: str | Path) -> Path | None:
    """The folder that the tracker of a root points to, whether it exists or not; None without a tracker."""
    tracker = read_tracker(root)
    if tracker is None:
        return None
    return Path(root) / RELEASE if tracker == RELEASE else iteration_folder(root, int(tracker))


def role_folder(path: str | Path, role: str) -> Path:
    """The Megatron checkpoint of a role that a path means: a checkpoint root, an `iter_` folder, or itself.

    Raises:
        ValueError: The root's tracker cannot be read.
    """
    folder = committed_folder(path) or Path(path)
    return folder / role if (folder / role).is_dir() else folder


def complete_iterations(root: str | Path, roles: tuple[str, ...] = ROLES) -> list[int]:
    """Iterations of a root of ours that are committed and hold the given roles, oldest first.

    A folder newer than the tracker was renamed but not committed, and does not count.
    """
    newest = read_tracker(root)
    if not isinstance(newest, int):
        return []
    numbers = [
        n for folder in Path(root).iterdir() if (n := iteration_of(folder)) is not None and n <= newest
    ]
    return sorted(n for n in numbers if is_complete(iteration_folder(root, n), roles))


def is_complete(folder: Path, roles: tuple[str, ...] = ROLES) -> bool:
    """Whether an iteration's folder has its manifest and the folders of the given roles."""
    return (folder / MANIFEST).is_file() and all((folder / role).is_dir() for role in roles)


def complete_pairs(save_root: str | Path, critic_root: str | Path | None = None) -> list[int]:
    """Iterations that are committed in both roots and whose halves were saved together, oldest first.

    Args:
        save_root: where the actor and the trainer are saved.
        critic_root: where the critic is saved; None or the same path is the layout with one root.
    """
    if critic_root is None or is_same_folder(critic_root, save_root):
        return complete_iterations(save_root, ROLES)
    of_critic = complete_iterations(critic_root, ("critic",))
    common = sorted(set(complete_iterations(save_root, ("actor",))).intersection(of_critic))
    roots = (save_root, critic_root)
    return [n for n in common if were_saved_together(*(iteration_folder(root, n) for root in roots))]


def were_saved_together(actor_folder: str | Path, critic_folder: str | Path) -> bool:
    """Whether two halves come from one save: a crash between them can leave halves of different runs."""
    pairs = [(read_manifest(folder) or {}).get("pair") for folder in (actor_folder, critic_folder)]
    return pairs[0] == pairs[1]


def read_folders(actor_folder: Path, critic_root: Path | None) -> dict[str, Path]:
    """Where each role of a checkpoint lies.

    Args:
        actor_folder: `<root>/iter_N`.
        critic_root: The critic's own root, or None where both lie together.

    Raises:
        ValueError: A half is missing, or belongs to another save.
    """
    number = iteration_of(actor_folder)
    critic_folder = actor_folder
    if not (actor_folder / "critic").is_dir() and critic_root is not None and number is not None:
        critic_folder = iteration_folder(critic_root, number)
    for role, folder in (("actor", actor_folder), ("critic", critic_folder)):
        if not is_complete(folder, (role,)):
            raise ValueError(
                f"checkpoint {actor_folder} has no complete {role}: wanted {folder / role} and {folder / MANIFEST}; "
                "actor and critic resume from one iteration, so give a checkpoint that holds both"
            )
    if not were_saved_together(actor_folder, critic_folder):
        raise ValueError(
            f"wanted two halves of one checkpoint, got {actor_folder} and {critic_folder}, which were not saved "
            "together; give --ckpt_path another iteration"
        )
    return {"actor": actor_folder / "actor", "critic": critic_folder / "critic"}


def free_folder(root: Path) -> Path:
    """The first of `<root>.1`, `<root>.2`, ... that is not there: where the checkpoints of `root` are put aside."""
    return next(f for n in itertools.count(1) if not (f := root.with_name(f"{root.name}.{n}")).exists())


def newest_put_aside(root: str | Path) -> Path | None:
    """The last folder that the checkpoints of a save root were put aside in; None without."""
    root = Path(root)
    found = [
        (int(folder.suffix[1:]), folder)
        for base in (root, root / "checkpoints")
        for folder in base.parent.glob(f"{glob.escape(base.name)}.*")
        if folder.suffix[1:].isdecimal() and (folder / TRACKER).is_file()
    ]
    return max(found)[1] if found else None


def passed_over(save_root: str | Path, critic_root: str | Path | None, iteration: int) -> str | None:
    """Why a resume takes `iteration` although the tracker of `save_root` names a newer one; None where it does not."""
    newest = read_tracker(save_root)
    if not isinstance(newest, int) or newest <= iteration:
        return None
    folder = iteration_folder(save_root, newest)
    of_critic = folder if critic_root is None else iteration_folder(critic_root, newest)
    wanted = {"manifest": folder / MANIFEST, "actor": folder / "actor", "critic": of_critic / "critic"}
    wanted["critic's manifest"] = of_critic / MANIFEST
    missing = [
        name
        for name, path in wanted.items()
        if not (path.is_file() if path.name == MANIFEST else path.is_dir())
    ]
    why = f"it has no {missing[0]}" if missing else "its halves were not saved together"
    return f"{folder} is newer, but {why}: the run resumes from iteration {iteration}"


def find_latest(save_root: str | Path, critic_root: str | Path | None = None) -> tuple[int, Path] | None:
    """The newest iteration complete in both roots, and its folder under `save_root`; None for a fresh start.

    Args:
        save_root: where the actor and the trainer are saved.
        critic_root: where the critic is saved; None or the same path is the layout with one root.

    Raises:
        ValueError: `save_root` has a tracker, yet no iteration is complete in both roots.
    """
    pairs = complete_pairs(save_root, critic_root)
    if pairs:
        return pairs[-1], iteration_folder(save_root, pairs[-1])
    # The tracker of the actor's root moves last, so with it a whole pair has been there.
    if read_tracker(save_root) is None:
        return None
    roots = " and ".join(dict.fromkeys(str(root) for root in (save_root, critic_root) if root is not None))
    raise ValueError(
        f"wanted an iteration with actor and critic under {roots}, got none, although "
        f"{Path(save_root) / TRACKER} says {read_tracker(save_root)}; "
        "restore the folders, or remove the tracker to start fresh"
    )
