"""Critic-only warm-up: the critic learns alone before the actor follows it."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from relax_lightning.ppo.callback import PPOCallback


class CriticOnlyWarmup(PPOCallback):
    """Keeps the actor still in the first iterations.

    Args:
        num_steps: Number of iterations in which only the critic trains.

    Raises:
        ValueError: `num_steps` is negative.
    """

    def __init__(self, num_steps: int = 0) -> None:
        if num_steps < 0:
            raise ValueError(
                f"callbacks.critic_only_warmup.num_steps: wanted 0 or more, got {num_steps}; set 0 for no warm-up"
            )
        self.num_steps = num_steps

    def should_update_actor(self, trainer: Trainer, module: LightningModule, iteration: int) -> bool:
        """True from iteration `num_steps + 1` on."""
        return iteration > self.num_steps
