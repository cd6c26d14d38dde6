"""What is printed when a training ends: what came out, what it took, where it is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relax_lightning.tracking.fields import duration_text
from relax_lightning.tracking.journal_logger import JournalLogger
from relax_lightning.tracking.system import peak_resident_gib


@dataclass
class RunSummary:
    """Gathers over the iterations what the end reports."""

    began: float = 0.0
    """Seconds of `time.monotonic()`."""
    num_iterations: int = 0
    last_iteration: int = 0
    last_reward: float | None = None
    peaks_gib: dict[str, float] = field(default_factory=dict)
    """Largest `memory/...` metrics, prefix left out."""

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of one iteration."""
        self.num_iterations += 1
        self.last_iteration = iteration
        self.last_reward = metrics.get("reward/mean", self.last_reward)
        for name, value in metrics.items():
            if name.startswith("memory/"):
                key = name.removeprefix("memory/")
                self.peaks_gib[key] = max(value, self.peaks_gib.get(key, 0.0))

    def text(self, run_folder: Path, checkpoints: str | Path | None, loggers: Sequence[JournalLogger]) -> str:
        """One line an item.

        Args:
            run_folder: The run folder.
            checkpoints: Folder of the checkpoints; None where none are saved.
            loggers: Where the record went.
        """
        rows = [
            ("run folder", str(run_folder)),
            ("iterations", self._iterations()),
            ("last reward", "none" if self.last_reward is None else f"{self.last_reward:.3f}"),
            ("memory peak", self._memory()),
            ("checkpoints", "none" if checkpoints is None else str(checkpoints)),
            *(("tracking", logger.location) for logger in loggers),
        ]
        return "\n".join(f"{name:<12} {value}" for name, value in rows)

    def _iterations(self) -> str:
        before = self.last_iteration - self.num_iterations
        resumed = f" ({before} of them before this start)" if before > 0 else ""
        return f"{self.last_iteration}{resumed}, {duration_text(time.monotonic() - self.began)} of wall time"

    def _memory(self) -> str:
        peaks = [
            f"{name.removesuffix('_peak_gib')} {value:.2f} GiB" for name, value in self.peaks_gib.items()
        ]
        return ", ".join([*peaks, f"this process {peak_resident_gib():.2f} GiB resident"])
