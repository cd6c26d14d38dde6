"""A callback of one's own: prints the best response of each iteration, and ends training at a target."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from relax_lightning import PPOCallback, Rollouts


class BestResponse(PPOCallback):
    """Prints the best-rewarded response, and stops once the mean reward reaches the target.

    Args:
        target: Mean reward of an iteration at which training ends.
    """

    def __init__(self, target: float) -> None:
        self.target = target
        self.best = float("-inf")

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, rollouts: Rollouts) -> None:
        """Responses are generated and rewarded; nothing has been learned from them yet."""
        row = int(rollouts.rewards.argmax())
        self.best = max(self.best, float(rollouts.rewards[row]))
        answer = rollouts.prompts[row] + rollouts.responses[row]
        print(f"best response: {answer} (best reward {self.best:.2f})")

    def on_iteration_end(self, trainer: Trainer, module: LightningModule, metrics: dict[str, float]) -> None:
        """Ask for the end; the iteration is whole, so the checkpoint that follows is too."""
        if metrics["reward/mean"] >= self.target:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Saved with every checkpoint, and given back on a resume."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the checkpoint."""
        self.best = state_dict["best"]
