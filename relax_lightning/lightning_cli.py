"""From a checked configuration to a running Trainer, through LightningCLI. Everything heavy is imported from here."""

from __future__ import annotations

import gc
import os
import sys
from argparse import ArgumentError
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from relax_lightning.run.quiet import quiet_third_parties

quiet_third_parties()
# Importing makes millions of objects that stay: looking for garbage among them takes a fifth of the time now, and half
# a second whenever it is looked for later.
gc.disable()

import torch  # noqa: E402
from lightning.pytorch import Trainer  # noqa: E402
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI  # noqa: E402

from callbacks.checkpoint import PairedCheckpoint  # noqa: E402
from callbacks.critic_warmup import CriticOnlyWarmup  # noqa: E402
from callbacks.curves import CurvePlot  # noqa: E402
from callbacks.health_check import HealthCheck  # noqa: E402
from callbacks.lr_warmup import LRWarmup  # noqa: E402
from callbacks.metrics import MetricLogger  # noqa: E402
from callbacks.run_description import RunDescription  # noqa: E402
from callbacks.stop_on_signal import StopOnSignal  # noqa: E402
from callbacks.timeline import PhaseTimeline  # noqa: E402
from relax_lightning.checkpoints.folders import role_folder  # noqa: E402
from relax_lightning.checkpoints.manifest import read_manifest  # noqa: E402
from relax_lightning.checkpoints.put_aside import put_aside_earlier_checkpoints  # noqa: E402
from relax_lightning.checkpoints.resuming import nothing_left, plain_checkpoint, whole_checkpoint  # noqa: E402
from relax_lightning.checkpoints.same_model import check_reference, check_same_model, check_same_trunk  # noqa: E402
from relax_lightning.config import Config, to_dict  # noqa: E402
from relax_lightning.config.parsing import refusal, register_config_types  # noqa: E402
from relax_lightning.data.experience import AdvantagesService  # noqa: E402
from relax_lightning.data.ppo import PPODataModule  # noqa: E402
from relax_lightning.data.store import SampleStore  # noqa: E402
from relax_lightning.megatron.build import architecture_of  # noqa: E402
from relax_lightning.megatron.groups import abandon_groups  # noqa: E402
from relax_lightning.plan.files import context_tokens  # noqa: E402
from relax_lightning.plan.footprint import memory_plan, planned_fraction, uses_reference  # noqa: E402
from relax_lightning.plan.tokens import end_tokens  # noqa: E402
from relax_lightning.ppo.module import PPOModule  # noqa: E402
from relax_lightning.run.rendezvous import is_first_rank  # noqa: E402
from relax_lightning.run.user_callbacks import check_callbacks  # noqa: E402
from relax_lightning.strategies.colocate import ColocateStrategy  # noqa: E402
from relax_lightning.strategies.pool import GpuPool  # noqa: E402
from relax_lightning.tracking.journal_logger import JournalLogger  # noqa: E402
from relax_lightning.tracking.mlflow_logger import MLflowLogger, named_as_evaluation  # noqa: E402
from relax_lightning.tracking.progress import Progress  # noqa: E402

gc.freeze()
gc.enable()

OUR_CALLBACKS = {
    "critic_only_warmup": CriticOnlyWarmup,
    "lr_warmup": LRWarmup,
    "metrics": MetricLogger,
    "curves": CurvePlot,
    "timeline": PhaseTimeline,
    "health_check": HealthCheck,
    "checkpoint": PairedCheckpoint,
}


class RelaxLightningCLI(LightningCLI):
    """LightningCLI on a tree that has passed its checks: it only builds.

    Args:
        config: Resolved.
        ckpt_path: The iteration's folder that the run resumes from, or None.
        subcommand: `fit` or `validate`.
    """

    def __init__(self, config: Config, ckpt_path: str | None, subcommand: str) -> None:
        self._config = config
        self._subcommand = subcommand
        self._checkpoint = ckpt_path
        self._manifest = (read_manifest(ckpt_path) or {}) if ckpt_path else {}
        self._loaded = None if ckpt_path else plain_checkpoint(config)
        self._enabled = [name for name in OUR_CALLBACKS if getattr(config.callbacks, name) is not None]
        self.stop_on_signal = StopOnSignal()
        register_config_types()
        super().__init__(
            PPOModule,
            PPODataModule,
            run=False,
            args=self._tree(),
            parser_kwargs={"exit_on_error": False},
            save_config_callback=None,
            auto_configure_optimizers=False,
            seed_everything_default=config.seed_everything,
        )
        # Known before the checkpoint is read, since the length of the learning-rate decay depends on it.
        self.model.iteration_offset = self._manifest.get("iteration_offset", 0)
        if self._loaded is not None:
            self.model.load_folders = self._loaded.folders
            self.model.load_weights_only = self._loaded.is_release
            self.model.iteration_offset = self._loaded.iteration
        if ckpt_path is None and self._loaded is None:
            self.model.warm_starts = _warm_starts(config)
        self.model.read_parts = self._read_parts()
        if subcommand == "fit" and ckpt_path is None:
            self.trainer.strategy.before_first_save = partial(put_aside_earlier_checkpoints, config)  # pyright: ignore[reportAttributeAccessIssue]

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and say in one sentence what a user's class does not take.

        Raises:
            ValueError: It does not.
        """
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            raise ValueError(refusal(str(error))) from error

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Our callbacks under their fixed keys."""
        for name in self._enabled:
            parser.add_lightning_class_args(OUR_CALLBACKS[name], f"callbacks.{name}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The Trainer with everything that is derived, not configured."""
        trainer = super().instantiate_trainer(
            strategy=self._strategy(),
            accelerator="gpu" if self._device.type == "cuda" else "cpu",
            devices=1,
            max_epochs=-1,
            logger=self._logger(),
            check_val_every_n_epoch=None,
            # An arena that is pinned in inference mode could not be written to in training.
            inference_mode=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=self._config.callbacks.checkpoint is not None,
            **kwargs,
        )
        ours = [self.stop_on_signal, RunDescription(self._config)]
        trainer.callbacks[:0] = ours  # pyright: ignore[reportAttributeAccessIssue]
        return trainer

    @property
    def _device(self) -> torch.device:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        # A launcher may show each rank its own GPU alone.
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        return torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)

    def _tree(self) -> dict[str, Any]:
        tree = to_dict(self._config)
        engine = tree["data"]["rollout"]["engine"]["init_args"]
        if self._device.type == "cuda" and engine.get("mem_fraction_static") is None:
            fraction = planned_fraction(self._config)
            engine |= {} if fraction is None else {"mem_fraction_static": fraction}
        data = {
            **tree["data"],
            "tokenizer": self._config.model.actor.tokenizer,
            "seed": tree["seed_everything"],
            "max_context": context_tokens(self._config),
            "vocabulary_size": architecture_of(self._config.model).vocab_size,
            "end_tokens": end_tokens(self._config),
        }
        ours = {name: tree["callbacks"][name] for name in self._enabled}
        if "metrics" in ours:
            ours["metrics"]["enable_progress"] = self._config.trainer.enable_progress_bar
        return {
            "seed_everything": tree["seed_everything"],
            "trainer": self._trainer_tree(tree["trainer"]),
            "model": tree["model"],
            "data": data,
            "callbacks": ours,
        }

    def _trainer_tree(self, tree: dict[str, Any]) -> dict[str, Any]:
        del tree["enable_progress_bar"], tree["val_before_training"]
        if self._config.trainer.val_before_training:
            # Lightning evaluates before training only as its sanity check, of which -1 takes all batches.
            tree["num_sanity_val_steps"] = -1
            tree["val_check_interval"] = tree["val_check_interval"] or sys.maxsize
        if tree["max_steps"] > 0:
            done = self._loaded.iteration if self._loaded else self._manifest.get("iteration_offset", 0)
            tree["max_steps"] -= done
        tree["default_root_dir"] = str(Path(tree["default_root_dir"]).absolute())
        if self._subcommand == "fit" and tree["val_check_interval"] is None:
            # Lightning has no "never": without an interval there are no validation batches.
            tree |= {"limit_val_batches": 0, "num_sanity_val_steps": 0}
        return {key: value for key, value in tree.items() if value is not None}

    def _strategy(self) -> ColocateStrategy:
        actor, critic = self._config.model.actor, self._config.model.critic
        assert actor.save is not None
        plan = memory_plan(self._config, check_files=True) if self._device.type == "cuda" else None
        return ColocateStrategy(
            self._device,
            parallel=actor.parallel,
            critic_parallel=critic.parallel,
            seed=self._config.seed_everything,
            save_root=actor.save,
            critic_save_root=critic.save,
            critic_load_root=critic.load,
            pool=None if plan is None else GpuPool(self._config.strategy.offload, plan.filled, plan.working),
            predicted={} if plan is None else plan.predicted,
            critic_size=0 if plan is None else plan.critic,
            verify_publish=self._config.strategy.verify_publish,
            verify_checkpoints=self._config.strategy.verify_checkpoints,
            trust_checkpoints=self._config.strategy.trust_checkpoints,
        )

    def _read_parts(self) -> list[Path]:
        """Every part of a checkpoint that this run reads."""
        parts = [*self.model.warm_starts.values(), *self.model.load_folders.values()]
        if self._checkpoint is not None:
            strategy = self.trainer.strategy
            assert isinstance(strategy, ColocateStrategy)
            parts += strategy.parts_of(self._checkpoint)
        reference = self._config.model.reference
        if uses_reference(self._config) and reference is not None and reference.load is not None:
            parts.append(role_folder(reference.load, "actor"))
        return parts

    def _logger(self) -> JournalLogger | bool:
        if not is_first_rank():
            return False
        folder = Path(self._config.trainer.default_root_dir)
        trained = self._manifest.get("run_key")
        mlflow = self._config.tracking.mlflow
        settings = {} if mlflow is None else {f.name: getattr(mlflow, f.name) for f in fields(mlflow)}
        make = JournalLogger if mlflow is None else MLflowLogger
        if self._subcommand != "validate":
            return make(folder, resume_run_id=trained, **settings)
        # An evaluation by itself is a record of its own: with other settings it is not the training run's number.
        if mlflow is not None:
            settings = named_as_evaluation(folder, settings, trained, self._checkpoint)
        return make(folder, evaluation=self._evaluation(trained), **settings)

    def _evaluation(self, trained: str | None) -> dict[str, Any]:
        sets = to_dict(self._config)["data"]["rollout"]["validation"]
        seed = self._config.seed_everything
        return {"checkpoint": self._checkpoint, "trained_by": trained, "seed": seed, "validation": sets}


def _say(text: str, file: TextIO | None = None) -> None:
    if is_first_rank():
        print(text, file=file)


def _warm_starts(config: Config) -> dict[str, Path]:
    paths = {"actor": config.model.actor.warm_start, "critic": config.model.critic.warm_start}
    folders = {role: role_folder(path, role) for role, path in paths.items() if path is not None}
    for folder in folders.values():
        check_same_trunk(config.model, folder)
    return folders


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"trainer.default_root_dir: {folder} cannot be written: {error}") from error


def _connect(
    cli: RelaxLightningCLI,
    store: SampleStore | None,
    advantages: AdvantagesService | None,
    progress: Progress | None,
) -> None:
    if store is not None and advantages is not None:
        cli.datamodule.advantages.connect(store, advantages)
    for callback in cli.trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(callback, MetricLogger) and progress is not None:
            callback.screen = progress


def run(
    subcommand: str,
    config: Config,
    ckpt_path: str | None,
    *,
    store: SampleStore | None = None,
    advantages: AdvantagesService | None = None,
    progress: Progress | None = None,
) -> int:
    """Train or validate.

    Args:
        subcommand: `fit` or `validate`.
        config: Resolved and checked.
        ckpt_path: The iteration's folder to resume from, or None.
        store: Where samples are shared with other processes; None: in this one.
        advantages: The service that reads and writes there.
        progress: Shows this process's progress elsewhere; None: on its own standard output.

    Returns:
        The exit status: 0, or 128 + the signal that ended training.
    """
    ckpt_path = ckpt_path or whole_checkpoint(config)
    check_callbacks(config.trainer.callbacks)
    if ckpt_path is not None:
        check_same_model(config.model, read_manifest(ckpt_path) or {}, ckpt_path)
    if uses_reference(config):
        check_reference(config.model)
    if subcommand == "fit" and (over := nothing_left(config, ckpt_path)) is not None:
        _say(over)
        return 0
    if subcommand == "validate" and ckpt_path is None:
        _say("evaluating the weights that the configuration begins with; a run's: --ckpt_path auto or DIR")
    if is_first_rank():
        _make_folder(Path(config.trainer.default_root_dir).absolute())
    cli = RelaxLightningCLI(config, ckpt_path, subcommand)
    _connect(cli, store, advantages, progress)
    start = getattr(cli.trainer, subcommand)
    try:
        start(cli.model, datamodule=cli.datamodule, ckpt_path=ckpt_path)
    except SystemExit as error:
        # Before training has begun there is nothing to save: Lightning leaves with its own status.
        if isinstance(error.__context__, KeyboardInterrupt):
            abandon_groups(130)
            raise error.__context__ from None
        abandon_groups(error.code if isinstance(error.code, int) else 1)
        raise
    except BaseException:
        abandon_groups()
        raise
    received = cli.stop_on_signal.received
    if received is None:
        return 0
    resume = "" if config.callbacks.checkpoint is None else "; resume with --ckpt_path auto"
    _say(f"Stopped after iteration {cli.model.iteration}{resume}", file=sys.stderr)
    return 128 + received
