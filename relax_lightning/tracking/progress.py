"""What a run shows of itself: a live table on a terminal, one plain line an iteration elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TextIO

from relax_lightning.tracking.fields import ACTOR, CRITIC, ROLLOUT, SPEED, duration_text, validation_text

_WINDOW = 20


class Progress:
    """Shows nothing; the two that show something say how.

    All calls are cheap and none raises; `start` and `stop` bracket a run, and `stop` may come twice.
    """

    def start(self, first_iteration: int, max_iterations: int | None) -> None:
        """The run begins (or goes on) with `first_iteration`; `max_iterations` is None where it has no end."""

    def phase(self, name: str | None) -> None:
        """A phase begins; None: none is running."""

    def iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """An iteration ended with these metrics; those of a role that did not run are absent."""

    def validation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """A validation ended with these `val/...` metrics."""

    def stop(self) -> None:
        """The run is over, of itself or by an exception: leave the screen in order."""


class LineProgress(Progress):
    """One aligned line an iteration and one a validation, for files and pipes.

    Args:
        stream: Where the lines go; None is standard output as it is at each line.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._max: int | None = None
        self._left = TimeLeft()

    def start(self, first_iteration: int, max_iterations: int | None) -> None:
        """Begin to measure time."""
        self._max = max_iterations
        self._left.start(first_iteration, max_iterations)

    def iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Print the iteration's line; what is absent stays blank, so that columns stay aligned."""
        seconds = self._left.tick(iteration)
        left = self._left.seconds
        columns = [f"iteration {iteration_text(iteration, self._max)}"]
        for shown in (*ROLLOUT, *CRITIC, *ACTOR, SPEED):
            text = shown.text(metrics)
            width = len(f"{shown.label} {0.0:{shown.format}}")
            columns.append(" " * width if text is None else f"{shown.label} {text}")
        columns.append(f"{seconds:6.1f} s")
        columns.append("" if left is None else f"left {duration_text(left)}")
        self._print("  ".join(columns).rstrip())

    def validation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Print the validation's line."""
        self._print(f"validation {iteration_text(iteration, self._max)}  {validation_text(metrics)}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream or sys.stdout, flush=True)


class TimeLeft:
    """Estimates the time to the last iteration from the wall time of the latest ones, validation included."""

    def __init__(self) -> None:
        self._ends: deque[tuple[int, float]] = deque(maxlen=_WINDOW + 1)
        self._max: int | None = None

    def start(self, first_iteration: int, max_iterations: int | None) -> None:
        """Begin to measure."""
        self._max = max_iterations
        self._ends.clear()
        self._ends.append((first_iteration - 1, time.monotonic()))

    def tick(self, iteration: int) -> float:
        """Note the end of an iteration; returns the seconds since the one before."""
        now = time.monotonic()
        seconds = now - self._ends[-1][1] if self._ends else 0.0
        self._ends.append((iteration, now))
        return seconds

    @property
    def seconds(self) -> float | None:
        """Seconds left; None where the run has no end or nothing has been measured."""
        (first, began), (last, ended) = (
            (self._ends[0], self._ends[-1]) if self._ends else ((0, 0.0), (0, 0.0))
        )
        if self._max is None or last <= first:
            return None
        return (ended - began) / (last - first) * (self._max - last)


def iteration_text(iteration: int, max_iterations: int | None) -> str:
    """`  7/160`, or `  7` in a run without end."""
    if max_iterations is None:
        return f"{iteration:5d}"
    return f"{iteration:{len(str(max_iterations))}d}/{max_iterations}"
