"""Configuration that goes to Lightning's own Trainer: `trainer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relax_lightning.config.faults import Fault, at_least, fault, one_of, refuse
from relax_lightning.config.keys import key


@dataclass(frozen=True)
class TrainerConfig:
    """The keys of Lightning's Trainer that are ours to choose; the others are derived."""

    max_steps: int = key(-1, "PPO iterations; fit needs at least 1")
    default_root_dir: str = key("runs/default", "run folder: everything a run writes lies in it")
    val_check_interval: int | None = key(None, "iterations between evaluations; null: none")
    num_sanity_val_steps: int = key(0, "validation batches before training; -1: all")
    val_before_training: bool = key(False, "evaluate all sets once before training, recorded at iteration 0")
    log_every_n_steps: int = key(1, "iterations between points of Lightning's own logging")
    callbacks: list[dict[str, Any]] = key([], "the user's own, class_path + init_args; ours: see `callbacks`")
    limit_val_batches: int | float | None = key(
        None, "validation batches: a number, or a share up to 1.0; null: all"
    )
    fast_dev_run: bool | int = key(False, "true or a number: run this many iterations and stop")
    profiler: str | None = key(None, "Lightning's profiler: simple | advanced | pytorch; null: none")
    enable_progress_bar: bool = key(True, "show progress on the terminal")

    def __post_init__(self) -> None:
        refuse(
            at_least(self, -1, "max_steps", "num_sanity_val_steps"),
            at_least(self, 1, "val_check_interval", "log_every_n_steps"),
            at_least(self, 0, "limit_val_batches"),
            one_of(self, ("simple", "advanced", "pytorch"), "profiler"),
            self._share_of_batches(),
            self._first_evaluation(),
            self._fast_dev_run(),
            [
                found
                for n, entry in enumerate(self.callbacks)
                for found in class_path_faults(f"callbacks.{n}", entry)
            ],
        )

    def _fast_dev_run(self) -> list[Fault]:
        if self.fast_dev_run >= 0:
            return []
        wanted = "true, false, or a number of iterations from 0 up"
        return [Fault("fast_dev_run", fault(wanted, self.fast_dev_run, "change it"))]

    def _first_evaluation(self) -> list[Fault]:
        if not (self.val_before_training and self.num_sanity_val_steps):
            return []
        message = fault("0 with val_before_training", self.num_sanity_val_steps, "leave one of the two out")
        return [Fault("num_sanity_val_steps", message, ("val_before_training",))]

    def _share_of_batches(self) -> list[Fault]:
        value = self.limit_val_batches
        if not isinstance(value, float) or value <= 1:
            return []
        return [Fault("limit_val_batches", fault("a whole number, or a share up to 1.0", value, "change it"))]


def class_path_faults(name: str, entry: Any) -> list[Fault]:
    """What is wrong with the shape of a `class_path` + `init_args` entry; the class itself is not looked at."""
    wanted, change = "{class_path: TEXT, init_args: MAPPING}", "for example {class_path: my_callbacks.Mine}"
    if not isinstance(entry, dict) or not isinstance(entry.get("class_path"), str):
        return [Fault(name, fault(wanted, entry, change))]
    extra = sorted(set(entry) - {"class_path", "init_args"})
    if extra or not isinstance(entry.get("init_args") or {}, dict):
        return [Fault(name, fault(wanted, entry, "put the arguments under init_args"))]
    return []
