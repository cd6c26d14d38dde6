"""A user's own callbacks that disturb a run once."""

import os
import signal
from pathlib import Path

from relax_lightning.callback import PPOCallback


class StopOnce(PPOCallback):
    """Stops this process for good when values are computed in an iteration, unless it did so before.

    Args:
        iteration: From 1.
    """

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.mark = Path("stopped")

    def on_values_computed(self, trainer, module, rollouts, values):
        """The critic has begun: this iteration is lost."""
        if module.iteration == self.iteration and not self.mark.exists():
            self.mark.touch()
            print("about to be stopped", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)


class Signal(PPOCallback):
    """Sends SIGTERM to rank 1 in an iteration.

    Args:
        iteration: From 1.
    """

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_values_computed(self, trainer, module, rollouts, values):
        """Any moment of the iteration would do."""
        if module.iteration == self.iteration and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
