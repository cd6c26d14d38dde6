"""From files and overrides to a checked `Config`, and from there to the resolved one. Imports no torch."""

from __future__ import annotations

import warnings
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from relax_lightning.config.building import INVALID, Problems, build
from relax_lightning.config.faults import ConfigurationError
from relax_lightning.config.model import ModelConfig, ReferenceConfig
from relax_lightning.config.optimizer import CriticOptimizerConfig
from relax_lightning.config.reading import interpolate, merge, read_file, read_override
from relax_lightning.config.rollout import RolloutConfig
from relax_lightning.config.tracking import TrackingConfig
from relax_lightning.config.tree import Config
from relax_lightning.config.yaml_text import dump_yaml

REQUIRED = {
    "data.rollout.train": "prompts to train on, for example {path: prompts.jsonl}",
    "data.rollout.batch_size": "prompts an iteration, for example 16",
    "data.rollout.reward": "a registered name, for example exact_match, or {class_path, init_args}",
}
"""Keys without a default, and what to put there; those of the model are checked by the plan."""

KL_WITHOUT_REFERENCE = (
    "wanted model.reference, got none: KL is switched off (kl_coef = 0.0, use_kl_loss = false); "
    "give model.reference or remove the KL keys"
)


def load(config_files: list[str], overrides: list[str]) -> Config:
    """The checked configuration.

    Args:
        config_files: YAML files, merged in order; a list is replaced by a later file.
        overrides: `key=value` each, leading dashes allowed, laid over the files in order.

    Raises:
        ConfigurationError: Something is wrong; `problems` holds one line for every fault.
    """
    config, problems = read(config_files, overrides)
    if problems.found:
        raise ConfigurationError(problems.lines())
    return config


def read(
    config_files: list[str], overrides: list[str], *, keep_missing_variables: bool = False
) -> tuple[Config, Problems]:
    """The configuration as far as it is sound, and the faults of the rest: a faulty key has its default.

    Args:
        config_files: YAML files, merged in order.
        overrides: `key=value` each, laid over the files in order.
        keep_missing_variables: an environment variable NAME that is not set reads as the text `${NAME}`; else it
            is a fault.

    Raises:
        ConfigurationError: A file or an override could not be read at all.
    """
    problems = Problems()
    layers = [read_file(path, problems) for path in config_files]
    layers += [read_override(text, problems) for text in overrides]
    if problems.found:
        raise ConfigurationError(problems.lines())
    tree: dict[str, Any] = {}
    for layer in layers:
        tree = merge(tree, layer)
    return read_tree(tree, keep_missing_variables=keep_missing_variables)


def read_tree(tree: dict[str, Any], *, keep_missing_variables: bool = False) -> tuple[Config, Problems]:
    """The same for a tree that was read or made already."""
    problems = Problems()
    filled = interpolate(tree, to_dict(Config()), problems, keep_missing_variables=keep_missing_variables)
    config = build(Config, filled, "", problems)
    config = Config() if config is INVALID else config
    for key, wanted in REQUIRED.items():
        if value_at(config, key) is None and not problems.concern(key):
            problems.add(key, f"wanted a value, got nothing; add {wanted}")
    return config, problems


def value_at(config: Config, key: str) -> Any:
    """The value at a dotted key; None where a section on the way is null."""
    value: Any = config
    for name in key.split("."):
        value = None if value is None else getattr(value, name)
    return value


def resolve(config: Config) -> Config:
    """The configuration with every null that follows another key filled in.

    KL terms without `model.reference` are switched off, with a warning. Resolving twice changes nothing.
    """
    save = config.model.actor.save or _save_root(config.trainer.default_root_dir)
    return replace(
        config,
        model=_resolved_model(config.model, save),
        data=replace(config.data, rollout=_resolved_rollout(config.data.rollout)),
        tracking=_resolved_tracking(config.tracking, config.trainer.default_root_dir),
    )


def following_run_folder(config: Config) -> Config:
    """A resolved configuration with null again where a path follows the run folder: its file serves another one."""
    model, mlflow, folder = config.model, config.tracking.mlflow, config.trainer.default_root_dir
    actor, critic = model.actor, model.critic
    if critic.save == actor.save:
        critic = replace(critic, save=None)
    if actor.save == _save_root(folder):
        actor = replace(actor, save=None)
    if mlflow is not None and mlflow.uri == mlflow_uri(folder):
        mlflow = replace(mlflow, uri=None)
    return replace(
        config,
        model=replace(model, actor=actor, critic=critic),
        tracking=replace(config.tracking, mlflow=mlflow),
    )


def kl_without_reference(model: ModelConfig) -> bool:
    """Whether a KL term is asked for that has nothing to compare with."""
    algorithm = model.algorithm
    return model.reference is None and (algorithm.kl_coef != 0 or algorithm.use_kl_loss)


def to_dict(config: Any) -> Any:
    """A configuration, or a part of one, as plain mappings, lists and scalars."""
    if is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_dict(getattr(config, f.name)) for f in fields(config)}
    if isinstance(config, dict):
        return {name: to_dict(value) for name, value in config.items()}
    return [to_dict(value) for value in config] if isinstance(config, list | tuple) else config


def to_yaml(config: Any) -> str:
    """A configuration, or a part of one, as YAML that `load` reads back to an equal one."""
    return dump_yaml(_escaped(to_dict(config)))


def _escaped(value: Any) -> Any:
    # Text that holds a literal `${` must not become an interpolation when it is read back.
    if isinstance(value, dict):
        return {name: _escaped(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_escaped(v) for v in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def _resolved_model(model: ModelConfig, save: str) -> ModelConfig:
    actor, critic, algorithm = model.actor, model.critic, model.algorithm
    if kl_without_reference(model):
        warnings.warn(f"model.algorithm: {KL_WITHOUT_REFERENCE}", stacklevel=3)
        algorithm = replace(algorithm, kl_coef=0.0, use_kl_loss=False, kl_target=None)
    # A length-adaptive lambda has no one number that the critic could follow.
    lambd = algorithm.lambd if algorithm.lambd_length_alpha is None else None
    optimizer = critic.optimizer.following(actor.optimizer)
    return replace(
        model,
        algorithm=replace(
            algorithm,
            lambd_critic=_first(algorithm.lambd_critic, lambd),
            eps_clip_high=_first(algorithm.eps_clip_high, algorithm.eps_clip),
            num_critic_epochs=_first(algorithm.num_critic_epochs, algorithm.num_ppo_epochs),
        ),
        actor=replace(actor, save=save, tokenizer=_first(actor.tokenizer, actor.hf_checkpoint)),
        critic=replace(
            critic,
            load=_first(critic.load, actor.load),
            warm_start=_first(critic.warm_start, actor.warm_start),
            save=_first(critic.save, save),
            parallel=_first(critic.parallel, actor.parallel),
            optimizer=CriticOptimizerConfig(
                **{f.name: getattr(optimizer, f.name) for f in fields(optimizer)}
            ),
        ),
        reference=_resolved_reference(model),
    )


def _resolved_reference(model: ModelConfig) -> ReferenceConfig | None:
    reference = model.reference
    if reference is None or reference.load is not None:
        return reference
    return replace(reference, hf_checkpoint=_first(reference.hf_checkpoint, model.actor.hf_checkpoint))


def _resolved_rollout(rollout: RolloutConfig) -> RolloutConfig:
    sets = rollout.validation.items()
    filled = {name: replace(prompts, sampling=prompts.sampling or rollout.sampling) for name, prompts in sets}
    return replace(rollout, validation=filled)


def _resolved_tracking(tracking: TrackingConfig, run_folder: str) -> TrackingConfig:
    if tracking.mlflow is None or tracking.mlflow.uri is not None:
        return tracking
    return replace(tracking, mlflow=replace(tracking.mlflow, uri=mlflow_uri(run_folder)))


def _save_root(run_folder: str) -> str:
    return str(Path(run_folder) / "checkpoints")


def mlflow_uri(run_folder: str | Path) -> str:
    """The database in a run folder; what a URI would take for its own is quoted, as SQLAlchemy 2.1 reads it."""
    quoted = {ord(sign): f"%{ord(sign):02X}" for sign in "%?#"}
    return f"sqlite:///{str(Path(run_folder).absolute() / 'mlruns.db').translate(quoted)}"


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
