"""Which metrics the screen shows, under which short name, and how a number of each reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ShownMetric:
    """One number on the screen."""

    metric: str
    """Name of the metric as it is recorded."""
    label: str
    """Name in a plain line."""
    title: str
    """Name in the live table."""
    format: str = "7.4f"

    def text(self, metrics: Mapping[str, float]) -> str | None:
        """The number as text of fixed width; None where the metric is absent."""
        value = metrics.get(self.metric)
        return None if value is None else f"{value:{self.format}}"


ROLLOUT = (
    ShownMetric("reward/mean", "reward", "reward", "6.3f"),
    ShownMetric("response/length_mean", "length", "response length", "6.1f"),
)
CRITIC = (
    ShownMetric("critic/value_loss", "value_loss", "value_loss"),
    ShownMetric("critic/explained_variance", "expl_var", "explained variance", "6.3f"),
    ShownMetric("critic/value_clipfrac", "v_clip", "clip fraction", "5.3f"),
)
ACTOR = (
    ShownMetric("actor/pg_loss", "pg_loss", "pg_loss"),
    ShownMetric("actor/pg_clipfrac", "pg_clip", "clip fraction", "5.3f"),
    ShownMetric("actor/ppo_kl", "ppo_kl", "ppo_kl"),
    ShownMetric("actor/entropy", "entropy", "entropy", "6.3f"),
)
_ONLY_RECORDED = (
    "_std",
    "_untrainable_fraction",
    "_trainable_token_fraction",
    "_num_turns_mean",
    "_repeated_fraction",
)
"""Ends of the names of validation metrics that the screen has no room for."""
SPEED = ShownMetric("perf/tokens_per_second", "tokens/s", "tokens/s", "7,.0f")


def duration_text(seconds: float) -> str:
    """Seconds as `4:05` or `1:02:03`."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def validation_text(metrics: Mapping[str, float]) -> str:
    """The main `val/...` metrics in one line, the prefix left out: of pass@k and maj@k the largest k."""
    largest: dict[str, int] = {}
    for name in metrics:
        kind, _, k = name.rpartition("_at_")
        if k.isdigit():
            largest[kind] = max(largest.get(kind, 0), int(k))
    return "  ".join(
        f"{name.removeprefix('val/')} {value:.4g}"
        for name, value in sorted(metrics.items())
        if not name.endswith(_ONLY_RECORDED) and _is_largest(name, largest)
    )


def _is_largest(name: str, largest: Mapping[str, int]) -> bool:
    kind, _, k = name.rpartition("_at_")
    return not k.isdigit() or int(k) == largest[kind]
