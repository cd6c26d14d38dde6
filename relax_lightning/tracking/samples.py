"""What the policy wrote: a small table of samples an iteration, as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from relax_lightning.ppo.batch import Rollouts
from relax_lightning.run.errors import writing

SAMPLES_NAME = "samples"
_NUM_LATEST = 20
_NUM_LOGGED = 50


class SampleTables:
    """Writes `samples/iter_0000012.json`, and keeps the files few.

    About 50 tables, spread over the training, are kept and are artifacts of the run; of the others only the latest 20.

    Args:
        run_folder: Where `samples/` lies.
        num_samples: Samples a table, the first ones of the iteration; 0 writes no tables.
        max_iterations: Length of the training; None where it has no end.
    """

    def __init__(self, run_folder: Path, num_samples: int, max_iterations: int | None) -> None:
        self._folder = run_folder / SAMPLES_NAME
        self._num_samples = num_samples
        self._max = max_iterations
        self._every = max(1, math.ceil((max_iterations or 1000) / _NUM_LOGGED))

    def write(self, iteration: int, rollouts: Rollouts) -> Path | None:
        """Write the table of an iteration; returns its path where it is to be logged as an artifact."""
        if self._num_samples == 0:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(iteration)
        text = json.dumps(sample_rows(rollouts, self._num_samples), indent=1, ensure_ascii=False)
        with writing(path):
            path.write_text(text + "\n")
        old = iteration - _NUM_LATEST
        if old > 0 and not self.is_logged(old):
            self._path(old).unlink(missing_ok=True)
        return path if self.is_logged(iteration) else None

    def is_logged(self, iteration: int) -> bool:
        """Whether the table of `iteration` is an artifact and stays."""
        return iteration in (1, self._max) or iteration % self._every == 0

    def _path(self, iteration: int) -> Path:
        return self._folder / f"iter_{iteration:07d}.json"


def sample_rows(rollouts: Rollouts, num_samples: int) -> list[dict[str, Any]]:
    """The first samples of the rollouts, one dictionary each."""
    return [
        {
            "prompt": rollouts.prompts[row],
            "response": rollouts.responses[row],
            "label": _as_json(rollouts.labels[row]),
            "reward": float(rollouts.rewards[row]),
            "length": int(rollouts.response_lengths[row]),
            "finish_reason": rollouts.finish_reasons[row],
        }
        for row in range(min(num_samples, len(rollouts)))
    ]


def _as_json(label: Any) -> Any:
    # A label is whatever the user's data holds; what JSON cannot hold is shown as text.
    return label if isinstance(label, str | int | float | bool | None) else str(label)
