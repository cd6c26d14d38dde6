"""Configuration of the callbacks that are always there: `callbacks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relax_lightning.config.faults import Fault, at_least, fault, is_finite_number, refuse
from relax_lightning.config.keys import key, section


@dataclass(frozen=True)
class CriticOnlyWarmupConfig:
    """First iterations in which only the critic trains."""

    num_steps: int = key(0, "number of iterations in which the actor stays as it is")

    def __post_init__(self) -> None:
        refuse(at_least(self, 0, "num_steps"))


@dataclass(frozen=True)
class WarmupConfig:
    """Linear warm-up of one role's learning rate."""

    num_iters: int = key(0, "length of the warm-up, in optimizer steps of the role")

    def __post_init__(self) -> None:
        refuse(at_least(self, 0, "num_iters"))


@dataclass(frozen=True)
class LRWarmupConfig:
    """Linear warm-up of the learning rates."""

    actor: WarmupConfig = section(WarmupConfig, "warm-up of the actor's learning rate")
    critic: WarmupConfig = section(WarmupConfig, "warm-up of the critic's learning rate")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the pair of actor and critic is saved, and how many are kept."""

    every_n_steps: int | None = key(None, "iterations between checkpoints; null: only at the end")
    keep_last: int = key(2, "number of newest checkpoints kept")
    save_last: bool = key(True, "save at a clean end as well")

    def __post_init__(self) -> None:
        refuse(at_least(self, 1, "every_n_steps", "keep_last"))


@dataclass(frozen=True)
class MetricsConfig:
    """Metrics on the terminal and in the record."""

    samples_per_table: int = key(8, "samples in the table of an iteration")

    def __post_init__(self) -> None:
        refuse(at_least(self, 0, "samples_per_table"))


@dataclass(frozen=True)
class CurvesConfig:
    """The picture of the main curves; no keys yet."""


@dataclass(frozen=True)
class TimelineConfig:
    """The Chrome trace of the phases; no keys yet."""


@dataclass(frozen=True)
class HealthCheckConfig:
    """Warnings in words when a metric leaves its healthy range."""

    ranges: dict[str, Any] = key(
        {},
        "own ranges, {metric: [lowest, highest]}, null: no bound on that side; {metric: null}: not looked at",
    )
    stop_after: int | None = key(
        None,
        "end training after this many iterations in a row outside a range, and not before its warning; null: never",
    )

    def __post_init__(self) -> None:
        refuse(at_least(self, 1, "stop_after"), *(self._bad_range(name) for name in self.ranges))

    def _bad_range(self, name: str) -> list[Fault]:
        given = self.ranges[name]
        if given is None:
            return []
        is_pair = isinstance(given, list | tuple) and len(given) == 2
        bounds = [bound for bound in given if bound is not None] if is_pair else []
        if bounds and all(map(is_finite_number, bounds)) and bounds == sorted(bounds):
            return []
        change = "for example {reward/std: [0.01, null]}"
        return [Fault("ranges", fault(f"null, or a lowest and a highest number for {name}", given, change))]


@dataclass(frozen=True)
class CallbacksConfig:
    """Our own callbacks; null switches one off."""

    critic_only_warmup: CriticOnlyWarmupConfig | None = section(
        CriticOnlyWarmupConfig, "first iterations in which only the critic trains; null: off"
    )
    lr_warmup: LRWarmupConfig | None = section(
        LRWarmupConfig, "linear warm-up of the learning rates; null: off"
    )
    checkpoint: CheckpointConfig | None = section(
        CheckpointConfig, "saves actor and critic together, and prunes; null: nothing is saved"
    )
    metrics: MetricsConfig | None = section(
        MetricsConfig, "metrics on the terminal and in the record; null: off"
    )
    curves: CurvesConfig | None = section(
        CurvesConfig, "a picture of the main curves in the run folder; null: none"
    )
    timeline: TimelineConfig | None = section(
        TimelineConfig, "a Chrome trace of the phases in the run folder; null: none"
    )
    health_check: HealthCheckConfig | None = section(
        HealthCheckConfig, "warns in words when a metric leaves its healthy range; null: off"
    )
