"""Whether checkpoints that a configuration names hold the model that it describes. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from relax_lightning.checkpoints.folders import role_folder
from relax_lightning.checkpoints.manifest import read_manifest
from relax_lightning.checkpoints.resuming import resumed_folder, whole_checkpoint
from relax_lightning.config.architecture import architecture_of, read_architecture
from relax_lightning.config.faults import Problem
from relax_lightning.config.model import ModelConfig
from relax_lightning.config.tree import Config


def same_model_problems(config: Config, resume: str | None) -> Iterator[Problem]:
    """Checkpoints of another model than the actor's: to resume from, to start from, or of the reference.

    Args:
        config: resolved.
        resume: what `--ckpt_path` says.
    """
    model = config.model
    try:
        architecture_of(model)
        folder = whole_checkpoint(config) if resume is None else resumed_folder(config, resume)
        manifest = None if folder is None else read_manifest(folder)
    except (ValueError, OSError):
        return  # the model, or the checkpoint, is a problem of its own
    if folder is not None and manifest is not None:
        key = "model.actor.load" if resume is None else "--ckpt_path"
        yield from _refused(key, lambda: check_same_model(model, manifest, str(folder)))
    elif folder is None:
        starts = {"actor": model.actor.warm_start, "critic": model.critic.warm_start}
        for role, path in starts.items():
            if path is not None:
                yield from _refused(f"model.{role}.warm_start", partial(_check_start, model, path, role))
    algorithm, reference = model.algorithm, model.reference
    directory = None if reference is None else reference.hf_checkpoint
    if directory is not None and not (Path(directory) / "config.json").is_file():
        return
    if algorithm.kl_coef > 0 or algorithm.use_kl_loss:
        yield from _refused("model.reference", lambda: check_reference(model))


def _check_start(model: ModelConfig, path: str, role: str) -> None:
    try:
        folder = role_folder(path, role)
        read_manifest(folder.parent)
    except (ValueError, OSError):
        return  # a problem of its own
    check_same_trunk(model, folder)


def _refused(key: str, check: Callable[[], None]) -> Iterator[Problem]:
    try:
        check()
    except ValueError as error:
        yield Problem(key, str(error), involves=("model.actor",))


def check_same_model(config: ModelConfig, manifest: dict[str, Any], folder: str) -> None:
    """Refuse to resume with another model than the checkpoint's.

    Raises:
        ValueError: Names every key that differs, with both values.
    """
    saved = manifest.get("model")
    if saved is None:
        raise ValueError(f"{folder}: its manifest describes no model; use another checkpoint")
    ours, theirs = asdict(architecture_of(config)), saved["architecture"]
    ours["optimizer.distributed"] = config.actor.optimizer.distributed
    theirs = {**theirs, "optimizer.distributed": saved.get("distributed_optimizer", True)}
    _refuse_different(ours, theirs, folder)


def check_same_trunk(config: ModelConfig, folder: Path) -> None:
    """Refuse weights of another architecture than the actor's.

    Args:
        config: Of this run.
        folder: A role's part of a checkpoint; nothing is known of one without a manifest beside it.

    Raises:
        ValueError: Names every key that differs, with both values.
    """
    saved = (read_manifest(folder.parent) or {}).get("model")
    if saved is not None:
        _refuse_different(asdict(architecture_of(config)), saved["architecture"], str(folder))


def check_reference(config: ModelConfig) -> None:
    """Refuse a reference of another architecture than the actor's.

    Raises:
        ValueError: Names every key that differs, with both values.
    """
    reference, actor = config.reference, config.actor
    if reference is None:
        return
    if reference.load is not None:
        check_same_trunk(config, role_folder(reference.load, "actor"))
    elif reference.hf_checkpoint not in (None, actor.hf_checkpoint):
        theirs = asdict(read_architecture(reference.hf_checkpoint))
        _refuse_different(asdict(architecture_of(config)), theirs, reference.hf_checkpoint)


def _refuse_different(ours: dict[str, Any], theirs: dict[str, Any], folder: str) -> None:
    different = [
        f"{key} {theirs.get(key)!r}, now {ours[key]!r}" for key in ours if theirs.get(key) != ours[key]
    ]
    if different:
        raise ValueError(
            f"{folder} holds another model than model.actor describes: {'; '.join(different)}; "
            "correct the configuration or start fresh"
        )
