"""The configuration: frozen dataclasses of every key, and the loader that fills them. Imports no torch."""

from relax_lightning.config.algorithm import AlgorithmConfig
from relax_lightning.config.callbacks import (
    CallbacksConfig,
    CheckpointConfig,
    CriticOnlyWarmupConfig,
    CurvesConfig,
    HealthCheckConfig,
    LRWarmupConfig,
    MetricsConfig,
    TimelineConfig,
    WarmupConfig,
)
from relax_lightning.config.cluster import ClusterConfig
from relax_lightning.config.faults import ConfigurationError
from relax_lightning.config.loader import load, resolve, to_dict, to_yaml
from relax_lightning.config.model import (
    ActorConfig,
    ArchitectureConfig,
    CriticConfig,
    ModelConfig,
    ParallelConfig,
    ReferenceConfig,
)
from relax_lightning.config.optimizer import CriticOptimizerConfig, OptimizerConfig
from relax_lightning.config.rollout import (
    AdvantagesConfig,
    DataConfig,
    EngineConfig,
    PromptsConfig,
    RewardConfig,
    RolloutConfig,
    RolloutFunctionConfig,
    SamplingConfig,
)
from relax_lightning.config.strategy import StrategyConfig
from relax_lightning.config.tracking import MLflowConfig, TrackingConfig
from relax_lightning.config.trainer import TrainerConfig
from relax_lightning.config.tree import Config

__all__ = [
    "ActorConfig",
    "AdvantagesConfig",
    "AlgorithmConfig",
    "ArchitectureConfig",
    "CallbacksConfig",
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "ConfigurationError",
    "CriticConfig",
    "CriticOnlyWarmupConfig",
    "CriticOptimizerConfig",
    "CurvesConfig",
    "DataConfig",
    "EngineConfig",
    "HealthCheckConfig",
    "LRWarmupConfig",
    "MLflowConfig",
    "MetricsConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "PromptsConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "RolloutFunctionConfig",
    "SamplingConfig",
    "StrategyConfig",
    "TimelineConfig",
    "TrackingConfig",
    "TrainerConfig",
    "WarmupConfig",
    "load",
    "resolve",
    "to_dict",
    "to_yaml",
]
