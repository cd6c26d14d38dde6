"""What is printed when a training ends: what came out, what it took, where it is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relax_lightning.tracking.fields import duration_text
from relax_lightning.tracking.journal_logger import JournalLogger
from relax_lightning.tracking.system import peak_resident_gib


def lost(loggers: Sequence[JournalLogger]) -> list[Path]:
    """Records that were removed, or moved away, while they were written."""
    return [logger.journal.path for logger in loggers if logger.journal.is_lost]


def refuse_lost(loggers: Sequence[JournalLogger], checkpoint: str | None) -> None:
    """End a run whose folder is gone with an error, and not with a summary of what is not there.

    Args:
        loggers: Where the record went.
        checkpoint: The newest one; None without.

    Raises:
        RuntimeError: A record was removed or moved.
    """
    for path in lost(loggers):
        is_there = checkpoint is not None and Path(checkpoint).is_dir()
        where = f"the last checkpoint is {checkpoint}" if is_there else "no checkpoint is left"
        raise RuntimeError(
            f"{path} was removed or moved while the run wrote it, and training ended for that; {where}; leave the run "
            "folder where it is until a run ends"
        )


def _checkpoints(newest: str | Path | None) -> str:
    if newest is None:
        return "none"
    return str(newest) if Path(newest).is_dir() else f"{newest}, which was removed since"


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
            ("checkpoints", _checkpoints(checkpoints)),
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
