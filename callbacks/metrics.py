"""Metrics of every iteration: to the loggers and to the screen, with a table of samples and a summary at the end."""

from __future__ import annotations

import math
import time
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from relax_lightning.ppo.batch import Prompts, Rollouts
from relax_lightning.ppo.callback import PPOCallback
from relax_lightning.run.errors import never_hiding_an_error
from relax_lightning.tracking.journal_logger import JournalLogger
from relax_lightning.tracking.live import make_progress
from relax_lightning.tracking.progress import LineProgress, Progress
from relax_lightning.tracking.samples import SampleTables
from relax_lightning.tracking.summary import RunSummary, lost, refuse_lost


class MetricLogger(PPOCallback):
    """Hands the metrics of each iteration and validation to the loggers, and shows them.

    Args:
        samples_per_table: Samples in the table of an iteration; 0 for no tables.
        enable_progress: Whether the screen shows anything while the training runs (`trainer.enable_progress_bar`).

    Raises:
        ValueError: `samples_per_table` is negative.
    """

    def __init__(self, samples_per_table: int = 8, enable_progress: bool = True) -> None:
        if samples_per_table < 0:
            raise ValueError(
                f"callbacks.metrics.samples_per_table: wanted 0 or more, got {samples_per_table}; set 0 for no tables"
            )
        self.samples_per_table = samples_per_table
        self._enable_progress = enable_progress
        self.screen: Progress | None = None
        """Where progress is shown instead of this process's standard output; set by a launcher."""
        self._progress = Progress()
        self._tables: SampleTables | None = None
        self._rollouts: Rollouts | None = None
        self._summary = RunSummary()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the screen; a resumed run takes up its record where it takes up training."""
        done = _iteration(trainer, pl_module)
        for logger in _loggers(trainer):
            logger.rewind(done)
        max_iterations = done - trainer.global_step + trainer.max_steps if trainer.max_steps > 0 else None
        folder = Path(trainer.default_root_dir)
        self._tables = SampleTables(folder, self.samples_per_table, max_iterations)
        self._summary = RunSummary(began=time.monotonic())
        is_shown = self._enable_progress and trainer.is_global_zero
        self._progress = self.screen or make_progress(is_enabled=is_shown)
        self._progress.start(done + 1, max_iterations)

    def on_phase_start(self, trainer: Trainer, module: LightningModule, phase: str) -> None:
        """Show the phase."""
        self._progress.phase(phase)

    def on_phase_end(self, trainer: Trainer, module: LightningModule, phase: str, seconds: float) -> None:
        """Show that no phase runs."""
        self._progress.phase(None)

    def on_iteration_start(self, trainer: Trainer, module: LightningModule, prompts: Prompts) -> None:
        """Forget the samples of the iteration before."""
        self._rollouts = None

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, rollouts: Rollouts) -> None:
        """Keep the first samples for the table."""
        self._rollouts = rollouts.select(range(min(self.samples_per_table, len(rollouts))))

    def on_iteration_end(self, trainer: Trainer, module: LightningModule, metrics: dict[str, float]) -> None:
        """Record and show the metrics, and write the table."""
        iteration = _iteration(trainer, module)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=iteration)
        if lost(_loggers(trainer)):
            # What was learned is saved; `on_fit_end` says why it ends.
            trainer.should_stop = True
        self._summary.add(iteration, metrics)
        self._write_table(trainer, iteration)
        self._progress.iteration(iteration, metrics)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show that a validation runs."""
        self._progress.phase("validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record and show the `val/...` metrics; here, since the module logs them up to the end of the epoch."""
        self._progress.phase(None)
        metrics = {name: float(v) for name, v in trainer.callback_metrics.items() if name.startswith("val/")}
        # A sanity check of all batches is the evaluation before training; one of a few is no measurement.
        is_first = trainer.sanity_checking and trainer.num_sanity_val_steps == math.inf
        if not metrics or (trainer.sanity_checking and not is_first):
            return
        iteration = _iteration(trainer, pl_module)
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=iteration)
        # `relax-lightning validate` opens no screen, and training has not opened it yet: the result is a line.
        has_screen = trainer.state.fn == TrainerFn.FITTING and not is_first
        shown = self._progress if has_screen else self._validation_alone(trainer)
        shown.validation(iteration, metrics)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the screen and print what came out and where it is."""
        self._progress.stop()
        if trainer.is_global_zero:
            saved = [getattr(c, "newest_folder", None) for c in trainer.checkpoint_callbacks]
            checkpoints = next((str(folder) for folder in saved if folder is not None), None)
            refuse_lost(_loggers(trainer), checkpoints)
            print(self._summary.text(Path(trainer.default_root_dir), checkpoints, _loggers(trainer)))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the screen before the error is printed."""
        with never_hiding_an_error(type(self).__name__):
            self._progress.stop()
        if isinstance(exception, KeyboardInterrupt):
            for logger in _loggers(trainer):
                logger.end_status = "KILLED"

    def _validation_alone(self, trainer: Trainer) -> Progress:
        return LineProgress() if trainer.is_global_zero else Progress()

    def _write_table(self, trainer: Trainer, iteration: int) -> None:
        if self._tables is None or self._rollouts is None or not trainer.is_global_zero:
            return
        path = self._tables.write(iteration, self._rollouts)
        if path is not None:
            for logger in _loggers(trainer):
                logger.log_artifact(path, folder="samples")


def _iteration(trainer: Trainer, module: LightningModule) -> int:
    return int(getattr(module, "iteration", trainer.global_step))


def _loggers(trainer: Trainer) -> list[JournalLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, JournalLogger)]
