"""Checks of what a configuration's paths point to: model, data, folders to write, checkpoints."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from relax_lightning.checkpoints.checksums import is_listed, refuse_misfits
from relax_lightning.checkpoints.folders import (
    RELEASE,
    TRACKER,
    committed_folder,
    iteration_of,
    newest_put_aside,
    passed_over,
    read_folders,
    read_tracker,
    role_folder,
)
from relax_lightning.checkpoints.manifest import MANIFEST
from relax_lightning.checkpoints.megatron_metadata import MEGATRON_CONFIG, METADATA, refuse_other_role
from relax_lightning.checkpoints.resuming import critic_root, resumed_folder
from relax_lightning.config.architecture import (
    MODEL_CLASSES,
    described_model,
    read_architecture,
    refuse_variants,
)
from relax_lightning.config.bridge import missing_packages
from relax_lightning.config.faults import ConfigurationError, Problem, fault, show
from relax_lightning.config.tree import Config


@contextmanager
def looking_at_paths() -> Iterator[None]:
    """What the disk refuses in the body, such as a name that is too long, is a fault of the configuration.

    Raises:
        ConfigurationError: The disk refused it.
    """
    try:
        yield
    except OSError as error:
        got = f"{error.strerror}: {show(error.filename)}"
        change = "correct the path, or what may be done there"
        raise ConfigurationError([f"wanted paths that can be looked at, got {got}; {change}"]) from error


def shadowing_callbacks(folder: Path) -> Problem | None:
    """A user's own `callbacks` in `folder` that would be imported instead of ours."""
    ours = Path(__file__).resolve().parents[2] / "callbacks"
    # A folder without __init__.py shadows nothing: Python prefers a package later on the path.
    for theirs in (folder / "callbacks" / "__init__.py", folder / "callbacks.py"):
        if theirs.is_file() and theirs.resolve() != ours / "__init__.py":
            found = theirs.parent if theirs.name == "__init__.py" else theirs
            message = f"wanted only {ours} under the name `callbacks`, got {found} as well; rename yours"
            return Problem("callbacks", message)
    return None


def model_problems(config: Config) -> Iterator[Problem]:
    """A Hugging Face directory that is missing, or holds a model that cannot be read."""
    directory = config.model.actor.hf_checkpoint
    if directory is None:
        return
    key, path = "model.actor.hf_checkpoint", Path(directory) / "config.json"
    if not Path(directory).is_dir():
        yield Problem(
            key, fault("a Hugging Face directory", directory, "there is none at this path; change it")
        )
    elif not path.is_file():
        change = "give the folder that holds config.json and the weights"
        yield Problem(key, fault("a directory with config.json", directory, change))
    else:
        yield from _model_type_problems(key, path, config.model.bridge)


def source_problems(config: Config) -> Iterator[Problem]:
    """Weights of the reference and of a warm critic that are not there."""
    reference, critic = config.model.reference, config.model.critic
    paths = {"model.actor.warm_start": (config.model.actor.warm_start, "actor")}
    paths["model.critic.warm_start"] = (critic.warm_start, "critic")
    if reference is not None:
        paths["model.reference.load"] = (reference.load, "actor")
        directory = reference.hf_checkpoint
        if directory not in (None, config.model.actor.hf_checkpoint) and not Path(directory).is_dir():
            change = "there is none at this path; change it"
            yield Problem(
                "model.reference.hf_checkpoint", fault("a Hugging Face directory", directory, change)
            )
    said: set[str] = set()
    for key, (path, role) in paths.items():
        # The critic follows the actor: one line is enough.
        if path is None or path in said:
            continue
        try:
            folder = role_folder(path, role)
            if not (folder / MEGATRON_CONFIG).is_file():
                said.add(path)
                wanted = f"a checkpoint root, an iter_ folder or a Megatron checkpoint of the {role}"
                yield Problem(key, fault(wanted, path, f"no {MEGATRON_CONFIG} is there; change it"))
            else:
                _refuse_weights(folder, role, trusted=config.strategy.trust_checkpoints)
        except ValueError as error:
            if str(error) not in said:
                said.add(str(error))
                yield Problem(key, str(error))


def context_tokens(config: Config) -> int | None:
    """Longest context of the model in tokens, or None where it cannot be read."""
    actor = config.model.actor
    if actor.architecture is not None:
        return actor.architecture.max_position_embeddings
    try:
        return int(described_model(actor.hf_checkpoint)["max_position_embeddings"])
    except (ValueError, KeyError, TypeError):
        return None


def data_problems(config: Config) -> Iterator[Problem]:
    """Prompt files that are not there, or that hold nothing."""
    rollout = config.data.rollout
    sets = {f"validation.{name}": prompts for name, prompts in rollout.validation.items()}
    for name, prompts in {"train": rollout.train, **sets}.items():
        if prompts is None or prompts.path is None:
            continue
        key, path = f"data.rollout.{name}.path", Path(prompts.path)
        if not path.is_file():
            change = f"there is none, seen from {Path.cwd()}; change the path or make the file"
            yield Problem(key, fault("a JSON Lines or Parquet file", prompts.path, change))
        elif path.suffix.lower() not in (".parquet", ".pq"):
            yield from _line_problems(
                key, path, prompts.input_key, rollout.batch_size if name == "train" else 1
            )


def folder_problems(config: Config) -> Iterator[Problem]:
    """Folders that cannot be written: the run folder and the save roots of a resolved configuration."""
    folders = {
        "trainer.default_root_dir": config.trainer.default_root_dir,
        "model.actor.save": config.model.actor.save,
        "model.critic.save": config.model.critic.save,
    }
    seen: set[str] = set()
    for key, folder in folders.items():
        if (problem := _name_problem(key, folder or "")) is not None:
            yield problem
            return  # the save roots follow the run folder
        parent = nearest_existing(Path(folder or "").absolute())
        # A save root below an unwritable run folder is the same trouble: one line is enough.
        if _is_writable_folder(parent) or str(parent) in seen:
            continue
        seen.add(str(parent))
        yield Problem(key, fault("a folder that can be written", folder, f"{parent} cannot; change it"))


def _name_problem(key: str, folder: str) -> Problem | None:
    """A name that no disk, or no line of text, can hold."""
    absolute = str(Path(folder).absolute())
    for path in (folder, absolute):
        if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in path):
            return Problem(key, fault("a path without line ends and control characters", path, "rename it"))
    path = os.fsencode(absolute)
    if len(path) > 3000 or max(map(len, path.split(b"/"))) > 255:
        wanted = "a path of at most 3000 bytes, each name of at most 255"
        return Problem(key, fault(wanted, folder, "give a shorter one"))
    return None


def load_problems(config: Config) -> Iterator[Problem]:
    """Actor and critic checkpoints, of a resolved configuration, that do not make a pair."""
    actor, critic = config.model.actor.load, config.model.critic.load
    if actor is None and critic is None:
        return
    key, involves = "model.critic.load", ("model.actor.load",)
    if actor is None:
        change = "give model.actor.load as well, or remove this"
        yield Problem(
            key, fault("a checkpoint of the actor beside the critic's", critic, change), involves=involves
        )
        return
    try:
        yield from _pair_problems(
            Path(actor), Path(critic or actor), trusted=config.strategy.trust_checkpoints
        )
    except ValueError as error:
        yield Problem("model.actor.load", str(error), involves=(key,))


def resume_problems(config: Config, resume: str | None, subcommand: str = "fit") -> Iterator[Problem]:
    """A `--ckpt_path` that names no complete checkpoint, or meets `load`; the configuration is resolved."""
    if resume is None:
        return
    if config.model.actor.load is not None or config.model.critic.load is not None:
        message = fault(
            "only one of --ckpt_path and model.actor.load / model.critic.load", resume, "remove one"
        )
        yield Problem("--ckpt_path", message, involves=("model.actor.load", "model.critic.load"))
        return
    try:
        folder = resumed_folder(config, resume)
        if folder is not None:
            _refuse_unsound(config, folder)
    except ValueError as error:
        yield Problem("--ckpt_path", str(error))
        return
    if folder is None:
        yield from _nothing_to_resume(config, subcommand)
    elif resume == "auto":
        roots = (config.model.actor.save or "", config.model.critic.save)
        if (why := passed_over(*roots, iteration_of(folder) or 0)) is not None:
            yield Problem("--ckpt_path", why, "warning")


def _refuse_unsound(config: Config, folder: Path) -> None:
    for role, part in read_folders(folder, critic_root(config)).items():
        _refuse_weights(part, role, trusted=config.strategy.trust_checkpoints)
    if (folder / "trainer").is_dir() or is_listed(folder / "trainer"):
        refuse_misfits(folder / "trainer")


def _refuse_weights(part: Path, role: str, *, trusted: bool) -> None:
    refuse_misfits(part)
    if (part / METADATA).is_file():
        refuse_other_role(part, role, trusted=trusted)


def _nothing_to_resume(config: Config, subcommand: str) -> Iterator[Problem]:
    root = config.model.actor.save or ""
    aside = newest_put_aside(root)
    put_aside = "" if aside is None else f"; those of an earlier run are in {aside}"
    if subcommand == "validate":
        change = (
            "give --ckpt_path DIR, or leave it out to evaluate the weights that the configuration begins with"
        )
        yield Problem("--ckpt_path", f"wanted a checkpoint in {root}, got none{put_aside}; {change}")
    elif aside is not None:
        message = f"wanted a checkpoint in {root}, got none: the run starts fresh{put_aside}"
        yield Problem("--ckpt_path", message, "warning")


def _pair_problems(actor: Path, critic: Path, *, trusted: bool) -> Iterator[Problem]:
    of_actor, of_critic = read_tracker(actor), read_tracker(critic)
    if of_actor is None and of_critic is None:
        yield from _cold_start(actor)
    elif of_actor != of_critic:
        wanted = "one iteration for actor and critic"
        found = f"actor {_said(of_actor)} in {actor}, critic {_said(of_critic)} in {critic}"
        change = "load a pair that was saved together, or remove both load keys"
        yield Problem(
            "model.actor.load", f"wanted {wanted}, got {found}; {change}", involves=("model.critic.load",)
        )
    else:
        yield from _half_problems({"actor": actor, "critic": critic}, trusted=trusted)


def _half_problems(roots: dict[str, Path], *, trusted: bool) -> Iterator[Problem]:
    for role, root in roots.items():
        folder = committed_folder(root)
        assert folder is not None
        if not folder.is_dir():
            message = (
                f"wanted {folder}, as {TRACKER} says, got nothing there; restore it or correct the tracker"
            )
            yield Problem(f"model.{role}.load", message)
        elif (folder / MANIFEST).is_file() and not (folder / role).is_dir():
            message = f"wanted the {role}'s half in {folder}, got none; load a root that holds both halves"
            yield Problem(f"model.{role}.load", message)
        else:
            try:
                _refuse_weights(role_folder(folder, role), role, trusted=trusted)
            except ValueError as error:
                yield Problem(f"model.{role}.load", str(error))


def _cold_start(root: Path) -> Iterator[Problem]:
    above = next((folder for folder in (root, root.parent) if iteration_of(folder) is not None), None)
    if above is not None:
        change = f"give {'its parent' if above == root else 'the root'}, {above.parent}, where {TRACKER} lies"
        yield Problem("model.actor.load", fault("a checkpoint root", str(root), change))
    elif (root / MEGATRON_CONFIG).is_file() or root.is_file():
        change = (
            f"give the folder above, with {TRACKER}, or start from its weights with model.actor.warm_start"
        )
        yield Problem("model.actor.load", fault("a checkpoint root", str(root), change))
    else:
        message = f"wanted a checkpoint, got no {TRACKER} in {root}: both roles start from hf_checkpoint; "
        yield Problem("model.actor.load", message + "change the path if there should be one", "warning")


def _said(tracker: int | str | None) -> str:
    if tracker is None:
        return f"nothing (no {TRACKER})"
    return RELEASE if tracker == RELEASE else f"iteration {tracker}"


def _model_type_problems(key: str, path: Path, bridge: str) -> Iterator[Problem]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        model_type = described.get("model_type") if isinstance(described, dict) else None
    except (OSError, ValueError) as error:
        yield Problem(key, f"wanted JSON in {path}, got {error}; use another copy of the model")
        return
    if not isinstance(described, dict):
        yield Problem(key, fault(f"a JSON object in {path}", described, "use another copy of the model"))
        return
    is_builtin = model_type in MODEL_CLASSES
    if not is_builtin and bridge == "builtin":
        wanted = f"a model_type among {', '.join(MODEL_CLASSES)} in {path}"
        yield Problem(key, fault(wanted, model_type, "use another model, or model.bridge: auto"))
    elif (not is_builtin or bridge == "megatron_bridge") and (missing := missing_packages()):
        change = "install them where Transformer Engine runs, or use a dense Llama, Qwen2 or Qwen3"
        message = f"wanted {', '.join(missing)} to load model_type {model_type}, got none of them; {change}"
        yield Problem(key, message, involves=("model.bridge",))
    elif is_builtin:
        yield from _architecture_problems(key, path, described)


def _architecture_problems(key: str, path: Path, described: dict[str, Any]) -> Iterator[Problem]:
    try:
        # Without weights beside it, a config.json is a sketch: what is missing from it is not known to be wrong.
        if any(path.parent.glob("*.safetensors")):
            read_architecture(path.parent)
        else:
            refuse_variants(path, described)
    except (ValueError, TypeError, AttributeError) as error:
        yield Problem(key, str(error))


def _line_problems(key: str, path: Path, input_key: str, least: int | None) -> Iterator[Problem]:
    """What the first lines of a file of prompts say already; no more of it is read than an iteration takes."""
    try:
        with path.open("rb") as file:
            lines = (line for line in file if line.strip())
            line = next(lines, b"")
            num_lines = bool(line) + sum(1 for _ in islice(lines, (least or 1) - 1))
        first = json.loads(line) if line else None
    except (OSError, ValueError, RecursionError):
        return  # reading the prompts names the line
    if not line:
        yield Problem(key, f"wanted at least one prompt, got none; {path} is empty; give another file")
    elif isinstance(first, dict) and input_key not in first:
        column = fault(f"a column of {path}: {', '.join(first)}", input_key, "correct the key")
        yield Problem(f"{key.removesuffix('.path')}.input_key", column, involves=(key,))
    elif num_lines < (least or 1):
        message = fault(
            f"at least the {least} prompts of an iteration", num_lines, "lower batch_size or add some"
        )
        yield Problem(key, message, involves=("data.rollout.batch_size",))


def nearest_existing(path: Path) -> Path:
    """The folder that `path`, which is absolute, is or will be made in."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _is_writable_folder(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
