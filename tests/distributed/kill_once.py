"""A user's own callback that lets the run lose its process once."""

import os
import signal
from pathlib import Path

from relax_lightning.callback import PPOCallback


class KillOnce(PPOCallback):
    """Ends this process by SIGKILL when values are computed in an iteration, unless it did so before.

    Args:
        iteration: From 1.
    """

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.mark = Path("killed")

    def on_values_computed(self, trainer, module, rollouts, values):
        """The critic has begun: this iteration is lost."""
        if module.iteration == self.iteration and not self.mark.exists():
            self.mark.touch()
            print("about to be killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


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
