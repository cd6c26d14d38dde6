"""The whole configuration."""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.callbacks import CallbacksConfig
from relax_lightning.config.cluster import ClusterConfig
from relax_lightning.config.faults import refuse, within
from relax_lightning.config.keys import key, section
from relax_lightning.config.model import ModelConfig
from relax_lightning.config.rollout import DataConfig
from relax_lightning.config.strategy import StrategyConfig
from relax_lightning.config.tracking import TrackingConfig
from relax_lightning.config.trainer import TrainerConfig


@dataclass(frozen=True)
class Config:
    """Every key of a configuration."""

    seed_everything: int = key(
        1234, "seed of the order of prompts, of every sampled token and of new weights"
    )
    trainer: TrainerConfig = section(TrainerConfig, "Lightning's own Trainer")
    model: ModelConfig = section(ModelConfig, "actor, critic, algorithm and batch sizes")
    callbacks: CallbacksConfig = section(CallbacksConfig, "our own callbacks; null switches one off")
    strategy: StrategyConfig = section(StrategyConfig, "who holds the GPU")
    data: DataConfig = section(DataConfig, "prompts, rollouts, rewards and advantages")
    tracking: TrackingConfig = section(TrackingConfig, "the record of a run")
    cluster: ClusterConfig | None = key(None, "Ray; null: one process")

    def __post_init__(self) -> None:
        refuse(within(self, 0, 2**32 - 1, "seed_everything"))
