"""SIGINT and SIGTERM at the driver: the first is passed on to the ranks, the second ends the job at once."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Aborted(KeyboardInterrupt):
    """A signal that nothing is to be saved for.

    Ray's compiled code lets a handler raise nothing but KeyboardInterrupt, and may raise one of its own in its place.
    """

    def __init__(self, number: int, *, is_second: bool) -> None:
        super().__init__(number)
        self.number = number
        self.is_second = is_second


class Interruptions:
    """Notes the first signal while `is_training`, and raises `Aborted` for any other, in the main thread."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.aborted: Aborted | None = None
        """What was raised, whatever has become of it on its way."""
        self.is_training = False
        """Whether there is something that a first signal would let finish."""
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruptions:
        self.arm()
        return self

    def arm(self) -> None:
        """Take the signals over; again after `ray.init`, which takes SIGTERM."""
        for number in SIGNALS:
            self._previous.setdefault(number, signal.signal(number, self._handle))

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None or not self.is_training:
            self.aborted = Aborted(number, is_second=self.received is not None)
            raise self.aborted
        self.received = number
        name = signal.Signals(number).name
        message = f"{name}: this iteration ends, then the run is saved; a second {name} aborts at once\n"
        # A handler may interrupt a print, and a print inside a print raises.
        os.write(2, message.encode())
