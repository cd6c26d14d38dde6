"""A user's own callbacks that disturb a run once."""

import os
import signal
import sys
import threading
from pathlib import Path

from relax_lightning.ppo.callback import PPOCallback


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


class EnvironmentWatch(PPOCallback):
    """Notes each change of the environment: the thread that makes it, whether MLflow's thread lives, the variable.

    Args:
        file: Where; a line a change.
    """

    def __init__(self, file: str) -> None:
        path = Path(file).absolute()

        def hook(event, arguments):
            if event in ("os.putenv", "os.unsetenv"):
                names = [thread.name for thread in threading.enumerate()]
                line = f"{threading.current_thread().name} {'mlflow-sender' in names} {arguments[0]!r}\n"
                with path.open("a") as notes:
                    notes.write(line)

        sys.addaudithook(hook)
