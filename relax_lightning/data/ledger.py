"""What the sample store holds, row by row and column by column, and who has read it."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN_ROWS = 8
"""At most so many rows are named in a message."""


class Ledger:
    """Which rows of which columns a partition holds, and who has read them. Holds no tensors."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, set[int]]] = {}
        self._read: dict[str, dict[tuple[str, str], set[int]]] = {}

    def write(self, partition: str, rows: Sequence[int], columns: Sequence[str]) -> None:
        """Note that the rows are there.

        Raises:
            ValueError: A column holds one of them already.
        """
        held = self._rows.setdefault(partition, {})
        for name in columns:
            twice = held.get(name, set()).intersection(rows)
            if twice:
                raise ValueError(
                    f"{partition}: wanted new rows of the column {name}, got {_listed(twice)} again"
                )
        for name in columns:
            held.setdefault(name, set()).update(rows)

    def missing(self, partition: str, rows: Sequence[int], columns: Sequence[str]) -> str | None:
        """What of the rows and columns is not there, in words; None when all is."""
        held = self._rows.get(partition, {})
        lacking = {name: set(rows) - held.get(name, set()) for name in columns}
        parts = [
            f"{name} (no row)" if len(gone) == len(set(rows)) else f"{name} (rows {_listed(gone)})"
            for name, gone in lacking.items()
            if gone
        ]
        return ", ".join(parts) or None

    def read(self, partition: str, rows: Sequence[int], columns: Sequence[str], reader: str) -> None:
        """Note that the reader takes the rows.

        Raises:
            ValueError: It had some of them before.
        """
        taken = self._read.setdefault(partition, {})
        for name in columns:
            twice = taken.get((reader, name), set()).intersection(rows)
            if twice:
                raise ValueError(
                    f"{partition}: {reader} has read the column {name} of rows {_listed(twice)} before"
                )
        for name in columns:
            taken.setdefault((reader, name), set()).update(rows)

    def clear(self, partition: str) -> None:
        """Forget a partition."""
        self._rows.pop(partition, None)
        self._read.pop(partition, None)


def _listed(rows: set[int]) -> str:
    shown = sorted(rows)[:_SHOWN_ROWS]
    more = len(rows) - len(shown)
    return ", ".join(map(str, shown)) + (f" and {more} more" if more else "")
