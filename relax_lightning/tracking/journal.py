"""The local record of every metric point: one JSON line a batch of points, written before anything is sent."""

from __future__ import annotations

import json
import math
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from relax_lightning.run.errors import writing

JOURNAL_NAME = "metrics.jsonl"
ASIDE_NAME = "metrics.lost.jsonl"
"""What the journal held of iterations that a resumed run trained again."""
VALIDATE_NAME = "validate.jsonl"
"""The journal of `relax-lightning validate`, in which each evaluation is a run of its own."""


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
    for line, end_offset in _read_lines(path, offset):
        record = _parse(line)
        if record is not None and record["run"] == run:
            metrics = {name: float(value) for name, value in record["metrics"].items()}
            yield PointBatch(run, record["step"], record["timestamp_ms"], metrics, end_offset)


class Journal:
    """Records metric points on disk, each (metric, step) of a run once, and gives them back as curves.

    Args:
        path: File of JSON lines, created with the first point.
        run: Key of the run whose points are recorded and read; an earlier journal of this run is continued.
        about: What is written in each line beside the points, as what an evaluation was of.
    """

    def __init__(self, path: Path, run: str, about: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.run = run
        self._about = dict(about or {})
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
        record = {
            "run": self.run,
            "step": step,
            "timestamp_ms": timestamp_ms,
            "metrics": written,
            **self._about,
        }
        with writing(self.path):
            self._append(json.dumps(record).encode() + b"\n")

    @property
    def is_lost(self) -> bool:
        """Whether the file that points go to is not at its path any more: the run folder was removed or moved."""
        if self._file is None:
            return False
        here = os.fstat(self._file.fileno())
        try:
            there = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps, ascending, and values of one metric; two empty lists for a metric without points."""
        return list(self._steps.get(name, ())), list(self._values.get(name, ()))

    @property
    def names(self) -> list[str]:
        """Names of all metrics that have points, sorted."""
        return sorted(self._steps)

    @property
    def last_step(self) -> int:
        """The largest step that has points; 0 without any."""
        return max((steps[-1] for steps in self._steps.values()), default=0)

    def first_offset_after(self, step: int) -> int | None:
        """Byte offset of the first line with points of a later step; None where there is none."""
        for line, end_offset in _read_lines(self.path):
            if self._is_after(step, line):
                return end_offset - len(line)
        return None

    def rewind(self, step: int) -> None:
        """Move the points of all later steps to `metrics.lost.jsonl`: the run goes on from `step`.

        The lines are there before they leave here; a reader sees the old journal or the new one, whole.
        """
        self.close()
        partial = self.path.with_name(f".{self.path.name}.partial")
        with (
            writing(self.path),
            partial.open("wb") as kept,
            self.path.with_name(ASIDE_NAME).open("ab") as lost,
        ):
            for line, _ in _read_lines(self.path):
                (lost if self._is_after(step, line) else kept).write(line)
        partial.replace(self.path)
        for name, steps in list(self._steps.items()):
            index = bisect_right(steps, step)
            del steps[index:], self._values[name][index:]
            if not steps:
                del self._steps[name], self._values[name]

    def close(self) -> None:
        """Close the file; the next point opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _is_after(self, step: int, line: bytes) -> bool:
        record = _parse(line)
        return record is not None and record["run"] == self.run and record["step"] > step

    def _remember(self, name: str, step: int, value: float) -> bool:
        steps = self._steps.setdefault(name, array("q"))
        values = self._values.setdefault(name, array("d"))
        index = bisect_left(steps, step)
        if index < len(steps) and steps[index] == step:
            return False
        steps.insert(index, step)
        values.insert(index, value)
        return True

    def open(self) -> IO[bytes]:
        """The file, made where it is missing: from now on it is known when it goes."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            _cut_torn_line(self.path)
        return self._file

    def _append(self, line: bytes) -> None:
        file = self.open()
        try:
            file.write(line)
            file.flush()
        except OSError:
            # What is left in its buffer would be tried again as it is closed.
            with suppress(OSError):
                self.close()
            raise


def _read_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Each line from byte `offset` on, and the offset after it."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            yield line, offset


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
