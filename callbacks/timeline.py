"""When each phase ran, as a trace that chrome://tracing and Perfetto open."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from relax_lightning.ppo.batch import Prompts
from relax_lightning.ppo.callback import PPOCallback
from relax_lightning.run.errors import never_hiding_an_error, writing

_INTERVAL_SECONDS = 30.0
_MAX_EVENTS = 10_000
_ROWS = ("iteration", "rollout", "critic", "actor", "publish", "validation")


class PhaseTimeline(PPOCallback):
    """Writes `timeline.json`: a row a phase, the latest 10,000 events, valid at any time; a resume goes on in it."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)
        self._rows: list[str] = list(_ROWS)
        self._iteration_began = 0.0
        self._validation_began = 0.0
        self._next_time = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with the file of a resumed run, or begin anew."""
        self._events.clear()
        self._next_time = time.monotonic() + _INTERVAL_SECONDS
        if trainer.global_step > 0:
            self._events.extend(_read_events(_path(trainer)))

    def on_iteration_start(self, trainer: Trainer, module: LightningModule, prompts: Prompts) -> None:
        """Note the time."""
        self._iteration_began = time.time()

    def on_phase_end(self, trainer: Trainer, module: LightningModule, phase: str, seconds: float) -> None:
        """Add the phase."""
        self._add(module, phase, time.time() - seconds, seconds)

    def on_iteration_end(self, trainer: Trainer, module: LightningModule, metrics: dict[str, float]) -> None:
        """Add the iteration; write when it is time again."""
        self._add(module, "iteration", self._iteration_began, time.time() - self._iteration_began)
        if time.monotonic() >= self._next_time:
            self._write(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the time."""
        self._validation_began = time.time()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the validation."""
        if not trainer.sanity_checking:
            self._add(pl_module, "validation", self._validation_began, time.time() - self._validation_began)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write all of it."""
        self._write(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write what there is."""
        with never_hiding_an_error(type(self).__name__):
            self._write(trainer)

    def _add(self, module: LightningModule, name: str, began: float, seconds: float) -> None:
        if name not in self._rows:
            self._rows.append(name)
        # Complete events of the Trace Event Format: `ts` and `dur` are microseconds.
        self._events.append(
            {
                "name": name, "ph": "X", "ts": round(began * 1e6), "dur": round(seconds * 1e6), "pid": 0,
                "tid": self._rows.index(name), "args": {"iteration": getattr(module, "iteration", None)},
            }
        )  # fmt: skip

    def _write(self, trainer: Trainer) -> None:
        self._next_time = time.monotonic() + _INTERVAL_SECONDS
        if not trainer.is_global_zero or not self._events:
            return
        names = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}}
            for row, name in enumerate(self._rows)
        ]
        path = _path(trainer)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(".timeline.json.partial")
        with writing(path):
            partial.write_text(json.dumps({"traceEvents": [*names, *self._events], "displayTimeUnit": "ms"}))
            partial.replace(path)


def _path(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir) / "timeline.json"


def _read_events(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
