"""What the driver's terminal shows of a job: rank 0's progress and lines, as if it ran here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from relax_lightning.distributed.coordinator import Line, Shown
from relax_lightning.tracking.live import make_progress

_RAY_THREAD = "ray_listen_error_messages"


class Screen:
    """Shows events.

    Args:
        is_enabled: Whether progress is shown; lines always are.
    """

    def __init__(self, *, is_enabled: bool) -> None:
        self._progress = make_progress(is_enabled)

    def show(self, events: Sequence[Line | Shown]) -> None:
        """Show events in order."""
        for event in events:
            if isinstance(event, Line):
                print(event.text, file=sys.stderr if event.is_error else sys.stdout, flush=True)
            else:
                getattr(self._progress, event.method)(*event.arguments)

    def close(self) -> None:
        """Leave the terminal in order."""
        self._progress.stop()


@contextmanager
def without_rays_own_words() -> Iterator[None]:
    """Drop what Ray prints on standard output about dead workers: we say which part of the job it was."""
    own = sys.stdout
    sys.stdout = _Filtered(own)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout = own


class _Filtered:
    def __init__(self, own: TextIO) -> None:
        self._own = own

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name == _RAY_THREAD else self._own.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
