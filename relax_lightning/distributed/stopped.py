"""Parts of a job that live but do not go on: stopped processes, and machines that give no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from relax_lightning.distributed.processes import Place

LOOK_SECONDS = 5.0
NUM_LOOKS = 7
"""A process that is stopped at so many looks in a row is lost; one that only takes its time is never stopped."""
SILENT_SECONDS = 40.0
"""A watcher does next to nothing: one that does not answer for so long is stopped itself, or its machine is gone."""
STOPPED = f"was stopped (SIGSTOP) and did not go on for {LOOK_SECONDS * (NUM_LOOKS - 1):g} s"
SILENT = f"gave no answer for {SILENT_SECONDS:g} s"
_PASS_SECONDS = 2.0


class MachineWatch:
    """What the driver knows of the processes on one machine.

    Args:
        watcher: Name of the part there that looks at the others.
        places: Where each part of the job runs, by name.
    """

    def __init__(self, watcher: str, places: Mapping[str, Place]) -> None:
        self.watcher = watcher
        self._parts = {p.pid: name for name, p in places.items() if p.node == places[watcher].node}
        self._looks: Counter[int] = Counter()
        self._silent_seconds = 0.0

    def ask(self, watcher: Any) -> Any:
        """Have its parts looked at, for Ray's reference to the answer.

        Args:
            watcher: Actor handle of the part of that name.
        """
        self._silent_seconds = 0.0
        return watcher.stopped.remote(list(self._parts), LOOK_SECONDS)

    def lost(self, stopped: Sequence[int]) -> str | None:
        """Note an answer; the name of a part that has been stopped for too long."""
        self._looks = Counter({pid: self._looks[pid] + 1 for pid in stopped})
        return next((self._parts[pid] for pid, num in self._looks.items() if num >= NUM_LOOKS), None)

    def is_silent(self, seconds: float) -> bool:
        """Note how long the driver waited; whether the last answer is too long ago.

        A driver that was itself stopped waited long, which says nothing of the others.
        """
        self._silent_seconds += min(seconds, _PASS_SECONDS)
        return self._silent_seconds > SILENT_SECONDS
