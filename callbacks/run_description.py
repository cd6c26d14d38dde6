"""Writes down what a run is when its training begins; a start that fails leaves the record of the run before it."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from relax_lightning.config import Config, to_dict, to_yaml
from relax_lightning.config.loader import following_run_folder
from relax_lightning.run.errors import writing
from relax_lightning.strategies.colocate import ColocateStrategy
from relax_lightning.tracking.journal_logger import JournalLogger

CONFIG_NAME = "config.yaml"


class RunDescription(Callback):
    """Writes `config.yaml` into the run folder, and gives the loggers the configuration.

    Args:
        config: Resolved.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The checkpoint is loaded by now, its position in the prompts included."""
        # `fast_dev_run` tries a configuration out, and leaves nothing.
        if trainer.is_global_zero and not trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            path = Path(trainer.default_root_dir) / CONFIG_NAME
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing(path):
                path.write_text(to_yaml(following_run_folder(self._config)))
        self._tell_loggers(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """`validate` alone is told to the loggers, and written nowhere."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._tell_loggers(trainer)

    def _tell_loggers(self, trainer: Trainer) -> None:
        strategy = trainer.strategy
        assert isinstance(strategy, ColocateStrategy)
        for logger in trainer.loggers:
            # `fast_dev_run` replaces the loggers by one that keeps nothing.
            if not isinstance(logger, JournalLogger):
                continue
            logger.log_hyperparams(to_dict(self._config))
            path = Path(trainer.default_root_dir) / CONFIG_NAME
            if path.is_file() and not logger.is_evaluation:
                logger.log_artifact(path)
            strategy.manifest["run_key"] = logger.run_key
