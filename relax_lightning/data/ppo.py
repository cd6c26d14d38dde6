"""The one data module that `Trainer.fit` takes: rollouts and advantages together."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule

from relax_lightning.config import AdvantagesConfig, RolloutConfig
from relax_lightning.data.advantages import AdvantagesDataModule
from relax_lightning.data.rollout import RolloutDataModule
from relax_lightning.strategies.colocate import ColocateStrategy


class PPODataModule(LightningDataModule):
    """Joins the rollout side and the advantages side. The first two arguments are the keys under `data`.

    Args:
        rollout: Prompts, sampling, reward and engine.
        advantages: The GAE service; it has one device, the CPU.
        tokenizer: Directory or import path of the tokenizer.
        vocabulary_size: Rows of the policy's vocabulary.
        seed: Of the order of prompts and of every draw.
        max_context: Longest prompt and response together, in tokens; prompts that leave no room are dropped.
        end_tokens: Tokens that end a response besides the tokenizer's own.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        advantages: AdvantagesConfig | None = None,
        *,
        tokenizer: str,
        vocabulary_size: int,
        seed: int = 1234,
        max_context: int | None = None,
        end_tokens: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.rollout = RolloutDataModule(
            rollout,
            tokenizer=tokenizer,
            vocabulary_size=vocabulary_size,
            seed=seed,
            max_context=max_context,
            end_tokens=end_tokens or (),
        )
        self.advantages = AdvantagesDataModule()

    def setup(self, stage: str) -> None:
        """Read the prompts, start the reward workers and the engine."""
        assert self.trainer is not None
        strategy = self.trainer.strategy
        assert isinstance(strategy, ColocateStrategy)
        self.rollout.run_folder = self.trainer.default_root_dir
        self.rollout.peers = self.advantages.peers = strategy.peers
        self.rollout.setup(stage)

    def train_dataloader(self) -> Any:
        """Prompts, never rollouts: a loader that generated would be one policy behind."""
        return self.rollout.train_dataloader()

    def val_dataloader(self) -> Any:
        """One loader a validation set."""
        return self.rollout.val_dataloader()

    def teardown(self, stage: str) -> None:
        """End engine and reward workers."""
        self.rollout.teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        """End them also when training breaks off: Lightning tears nothing down then."""
        self.rollout.teardown("fit")
