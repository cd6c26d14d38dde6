"""Saves actor, critic and trainer as one pair, prunes old pairs, and never saves an inconsistent one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from relax_lightning.checkpoints.folders import iteration_folder
from relax_lightning.ppo.callback import PPOCallback
from relax_lightning.ppo.module import PPOModule
from relax_lightning.strategies.colocate import ColocateStrategy
from relax_lightning.strategies.trainer_state import refuse_odd_state


class PairedCheckpoint(Checkpoint, PPOCallback):
    """Saves after every n-th iteration and at a clean end; Lightning runs it after all other callbacks.

    Args:
        every_n_steps: Iterations between checkpoints; None: only at the end.
        keep_last: Number of checkpoints kept.
        save_last: Also save when training ends of itself.
    """

    def __init__(self, every_n_steps: int | None = None, keep_last: int = 2, save_last: bool = True) -> None:
        self._every_n_steps = every_n_steps
        self._keep_last = keep_last
        self._save_last = save_last
        self._last_saved = 0
        self._newest: Path | None = None
        self._has_begun = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when the iteration's number says so, or at once when training was asked to stop, as by a signal."""
        _strategy(trainer).agree_to_stop(trainer)
        iteration = _module(pl_module).iteration
        if trainer.should_stop or (self._every_n_steps and iteration % self._every_n_steps == 0):
            self._save(trainer, iteration)

    @property
    def newest_folder(self) -> Path | None:
        """The last checkpoint of the run, or the one that it was resumed from; None without."""
        return self._newest

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A resumed run need not save again what it was loaded from; what could not be saved is found now."""
        for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            refuse_odd_state(callback.state_key, callback.state_dict())
        self._last_saved = _module(pl_module).iteration
        self._newest = Path(trainer.ckpt_path) if trainer.ckpt_path else None
        self._has_begun = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save at a clean end, and where a signal came after the iteration's own moment to save."""
        iteration = _module(pl_module).iteration
        if (self._save_last or trainer.should_stop) and iteration > self._last_saved:
            self._save(trainer, iteration)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save nothing, for the pair may be inconsistent; the error's last line says where to resume."""
        if not self._has_begun:
            return
        where = (
            "there is no checkpoint yet"
            if self._newest is None
            else f"resume with --ckpt_path {self._newest}"
        )
        text = f"Nothing was saved of the iteration that broke off; {where}"
        if isinstance(exception, KeyboardInterrupt):
            # Lightning leaves with a status in its place.
            print(text, file=sys.stderr)
        else:
            exception.add_note(text)

    def _save(self, trainer: Trainer, iteration: int) -> None:
        # As Lightning's own: it tries a configuration out, and leaves nothing.
        if trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            return
        strategy = _strategy(trainer)
        folder = iteration_folder(strategy.checkpoints.root, iteration)
        trainer.save_checkpoint(folder, weights_only=False)
        self._last_saved, self._newest = iteration, folder
        strategy.checkpoints.prune(self._keep_last)


def _module(module: LightningModule) -> PPOModule:
    assert isinstance(module, PPOModule)
    return module


def _strategy(trainer: Trainer) -> ColocateStrategy:
    strategy = trainer.strategy
    if not isinstance(strategy, ColocateStrategy):
        raise ValueError(f"PairedCheckpoint needs ColocateStrategy, got {type(strategy).__name__}")
    return strategy
