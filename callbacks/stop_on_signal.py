"""The first SIGINT or SIGTERM ends the iteration and saves; the second ends the process at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from relax_lightning.strategies.colocate import ColocateStrategy
from relax_lightning.tracking.journal_logger import JournalLogger

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal(Callback):
    """Sets a flag in the handler and looks at it after each iteration.

    Lightning's own handler runs a collective, which hangs all ranks when one of them was interrupted in another.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        """The signal that ends training; the same on every rank once the iteration is over."""
        self._own: int | None = None
        self._previous: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the signals, after Lightning has taken them."""
        self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Stop training when any rank received a signal."""
        # Lightning evaluates once more before it stops: only where this iteration is due for it anyway.
        if self._stop(trainer) and trainer.global_step % int(trainer.val_check_interval or 1):
            trainer.limit_val_batches = 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A signal that came during an evaluation needs no further iteration."""
        self._stop(trainer)

    def _stop(self, trainer: Trainer) -> bool:
        strategy = trainer.strategy
        assert isinstance(strategy, ColocateStrategy)
        self.received = strategy.peers.largest(self._own or 0) or None
        if self.received is None:
            return False
        trainer.should_stop = True
        for logger in trainer.loggers:
            if isinstance(logger, JournalLogger):
                logger.end_status = "KILLED"
        return True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._own is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.received = self._own = number
        message = f"{name}: this iteration ends, then the run is saved; a second {name} aborts at once\n"
        # A handler may interrupt a print, and a print inside a print raises.
        os.write(2, message.encode())
