"""Linear warm-up of the learning rates, each role by its own optimizer steps."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from relax_lightning.config import WarmupConfig
from relax_lightning.ppo.callback import PPOCallback

_NO_WARMUP = WarmupConfig()


class LRWarmup(PPOCallback):
    """Scales the learning rate of optimizer step i (from 0) by min(1, (i + 1) / num_iters): no step has rate 0.

    Args:
        actor: Length of the actor's warm-up.
        critic: Length of the critic's warm-up.
    """

    def __init__(self, actor: WarmupConfig = _NO_WARMUP, critic: WarmupConfig = _NO_WARMUP) -> None:
        self.num_iters = {"actor": actor.num_iters, "critic": critic.num_iters}

    def lr_scale(self, trainer: Trainer, module: LightningModule, role: str, step: int) -> float:
        """The role's factor at its optimizer step `step`; 1 where it has no warm-up."""
        num_iters = self.num_iters.get(role, 0)
        return 1.0 if num_iters == 0 else min(1.0, (step + 1) / num_iters)
