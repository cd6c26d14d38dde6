"""Configuration of the record: `tracking`."""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.keys import key, section


@dataclass(frozen=True)
class MLflowConfig:
    """Where MLflow keeps the run, and under which name."""

    uri: str | None = key(None, "tracking URI; null: sqlite in the run folder")
    experiment: str = key("relax-lightning", "name of the experiment")
    run_name: str | None = key(None, "name of the run; null: MLflow makes one up")
    tags: dict[str, str] = key({}, "tags of the run")
    system_metrics: bool = key(False, "log the use of CPU, memory and GPU at each iteration")


@dataclass(frozen=True)
class TrackingConfig:
    """The trackers."""

    mlflow: MLflowConfig | None = section(MLflowConfig, "MLflow; null: off")
