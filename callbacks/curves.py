"""The learning curves as a picture in the run folder."""

from __future__ import annotations

import time
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from relax_lightning.ppo.callback import PPOCallback
from relax_lightning.run.errors import never_hiding_an_error
from relax_lightning.tracking.curves import draw_curves
from relax_lightning.tracking.journal_logger import JournalLogger

_INTERVAL_SECONDS = 30.0
_MAX_SHARE = 0.02


class CurvePlot(PPOCallback):
    """Draws `curves.png` at times, and at the end of the training, also when that comes by an exception.

    The curves come from the journal, so they span resumes. Drawing takes at most 2 % of the time.
    """

    def __init__(self) -> None:
        self._next_time = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to wait for the first picture."""
        self._next_time = time.monotonic() + _INTERVAL_SECONDS

    def on_iteration_end(self, trainer: Trainer, module: LightningModule, metrics: dict[str, float]) -> None:
        """Draw when it is time again."""
        if time.monotonic() >= self._next_time:
            began = time.monotonic()
            self._draw(trainer)
            ended = time.monotonic()
            self._next_time = ended + max(_INTERVAL_SECONDS, (ended - began) / _MAX_SHARE)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the whole training."""
        self._finish(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Draw what there is."""
        with never_hiding_an_error(type(self).__name__):
            self._finish(trainer)

    def _finish(self, trainer: Trainer) -> None:
        path = self._draw(trainer)
        for logger in trainer.loggers:
            if path is not None and isinstance(logger, JournalLogger):
                logger.log_artifact(path)

    def _draw(self, trainer: Trainer) -> Path | None:
        journals = [logger.journal for logger in trainer.loggers if isinstance(logger, JournalLogger)]
        if not trainer.is_global_zero or not journals or not journals[0].names:
            return None
        path = Path(trainer.default_root_dir) / "curves.png"
        draw_curves(journals[0], path)
        return path
