"""The coordinator of a job: carries everything that is not a sample, and says when samples are there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relax_lightning.data.ledger import Ledger
from relax_lightning.distributed.processes import Part


@dataclass(frozen=True)
class Line:
    """A line that a rank printed."""

    text: str
    is_error: bool


@dataclass(frozen=True)
class Shown:
    """A call of the progress display: method and arguments."""

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Entered:
    """A rank began a phase, or with None ended one."""

    rank: int
    phase: str | None


Event = Line | Shown | Entered


class Coordinator(Part):
    """Whoever waits here sleeps until what it waits for happens.

    Ranks post lines and progress, which the driver takes; the driver passes on a signal, which every rank waits for;
    and the ledger of the sample store wakes the readers when the last missing row was written.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._posted = asyncio.Event()
        self._signal: int | None = None
        self._signalled = asyncio.Event()
        self._ledger = Ledger()
        self._written: dict[str, asyncio.Condition] = {}

    async def post(self, events: Sequence[Event]) -> None:
        """Leave events for the driver."""
        self._events.extend(events)
        self._posted.set()

    async def take(self) -> list[Event]:
        """All events since the last call, as soon as anything was posted."""
        await self._posted.wait()
        self._posted.clear()
        events, self._events = self._events, []
        return events

    async def signal(self, number: int) -> None:
        """Pass a signal on to every rank."""
        self._signal = number
        self._signalled.set()

    async def wait_for_signal(self) -> int:
        """The signal that was passed on."""
        await self._signalled.wait()
        assert self._signal is not None
        return self._signal

    async def written(self, partition: str, rows: Sequence[int], columns: Sequence[str]) -> None:
        """Note rows that the store now holds, and wake who waits for them.

        Raises:
            ValueError: They were there already.
        """
        self._ledger.write(partition, rows, columns)
        condition = self._condition(partition)
        async with condition:
            condition.notify_all()

    async def wait_for_rows(
        self, partition: str, rows: Sequence[int], columns: Sequence[str], reader: str, seconds: float
    ) -> str | None:
        """Wait until the store holds all that is asked for, and note that the reader takes it.

        Returns:
            None, or what is missing when the time is over.

        Raises:
            ValueError: The reader had some of it before.
        """
        condition = self._condition(partition)

        def missing() -> str | None:
            return self._ledger.missing(partition, rows, columns)

        try:
            async with asyncio.timeout(seconds), condition:
                await condition.wait_for(lambda: missing() is None)
        except TimeoutError:
            return missing()
        self._ledger.read(partition, rows, columns, reader)
        return None

    async def forget(self, partition: str) -> None:
        """The partition was cleared."""
        self._ledger.clear(partition)
        self._written.pop(partition, None)

    def _condition(self, partition: str) -> asyncio.Condition:
        return self._written.setdefault(partition, asyncio.Condition())
