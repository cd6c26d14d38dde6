"""The local record of every metric point: one JSON line a batch of points, written before anything is sent."""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

JOURNAL_NAME = "metrics.jsonl"


@dataclass(frozen=True)
class PointBatch:
    """The points of one step that were recorded together."""

    run: str
    """Local key of the run; a run folder may hold the points of several runs, one after the other."""
    step: int
    timestamp_ms: int
    """Milliseconds since 1970. It belongs to the identity of a point: MLflow ignores an identical one."""
    metrics: dict[str, float]
    end_offset: int
    """Byte offset in the journal just after this batch."""


def read_batches(path: Path, run: str, offset: int = 0) -> Iterator[PointBatch]:
    """Yield the batches of `run` from byte `offset` on; a torn last line (kill -9 while writing) is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            record = _parse(line)
            if record is not None and record["run"] == run:
                metrics = {name: float(value) for name, value in record["metrics"].items()}
                yield PointBatch(run, record["step"], record["timestamp_ms"], metrics, offset)


class Journal:
    """Records metric points on disk, each (metric, step) of a run once, and gives them back as curves.

    Args:
        path: File of JSON lines, created with the first point.
        run: Key of the run whose points are recorded and read; an earlier journal of this run is continued.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        self._file: IO[bytes] | None = None
        self._steps: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        for batch in read_batches(path, run):
            for name, value in batch.metrics.items():
                self._remember(name, batch.step, value)

    def record(self, metrics: Mapping[str, float], step: int, timestamp_ms: int) -> None:
        """Append the points that are new; a (metric, step) that is already recorded is dropped silently."""
        new = {
            name: float(value) for name, value in metrics.items() if self._remember(name, step, float(value))
        }
        if not new:
            return
        written = {name: value if math.isfinite(value) else str(value) for name, value in new.items()}
        record = {"run": self.run, "step": step, "timestamp_ms": timestamp_ms, "metrics": written}
        file = self._open()
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps, ascending, and values of one metric; two empty lists for a metric without points."""
        return list(self._steps.get(name, ())), list(self._values.get(name, ()))

    @property
    def names(self) -> list[str]:
        """Names of all metrics that have points, sorted."""
        return sorted(self._steps)

    def close(self) -> None:
        """Close the file; the next point opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _remember(self, name: str, step: int, value: float) -> bool:
        steps = self._steps.setdefault(name, array("q"))
        values = self._values.setdefault(name, array("d"))
        index = bisect_left(steps, step)
        if index < len(steps) and steps[index] == step:
            return False
        steps.insert(index, step)
        values.insert(index, value)
        return True

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            _cut_torn_line(self.path)
        return self._file


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return (
        record
        if isinstance(record, dict) and {"run", "step", "timestamp_ms", "metrics"} <= set(record)
        else None
    )


def _cut_torn_line(path: Path) -> None:
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
