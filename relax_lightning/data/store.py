"""The sample store: columns of tensors by sample, which one role writes and another reads once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from relax_lightning.data.ledger import Ledger


class SampleStore(Protocol):
    """Columns of the samples of an iteration, by partition; a sample's row is its position in the iteration."""

    def put(self, partition: str, rows: Sequence[int], columns: Mapping[str, Tensor]) -> None:
        """Write columns of some rows.

        Args:
            partition: Name of the iteration.
            rows: Positions of the samples, in the order of the tensors.
            columns: Tensors [rows, ...] by name.

        Raises:
            ValueError: A column has another number of rows, or holds one of them already.
            RuntimeError: The store does not answer.
        """
        ...

    def get(
        self, partition: str, rows: Sequence[int], columns: Sequence[str], *, reader: str
    ) -> dict[str, Tensor]:
        """Columns of some rows, in the order asked for; waits until they are there.

        Rows that were written with different widths are padded with zeros on the right.

        Args:
            partition: Name of the iteration.
            rows: Positions of the samples.
            columns: Names.
            reader: Who reads. A reader gets each row of a column once.

        Raises:
            ValueError: The reader had some of it before.
            RuntimeError: Something is missing when the deadline is over, and is named; or the store does not answer.
        """
        ...

    def clear(self, partition: str) -> None:
        """Forget a partition; nothing where there is none."""
        ...


class LocalStore:
    """The store of one process: it keeps the tensors it is given, and copies none that is read whole."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._parts: dict[str, dict[str, list[tuple[list[int], Tensor]]]] = {}

    def put(self, partition: str, rows: Sequence[int], columns: Mapping[str, Tensor]) -> None:
        """As `SampleStore` says."""
        check_rows(partition, rows, columns)
        self._ledger.write(partition, rows, list(columns))
        held = self._parts.setdefault(partition, {})
        for name, tensor in columns.items():
            held.setdefault(name, []).append((list(rows), tensor))

    def get(
        self, partition: str, rows: Sequence[int], columns: Sequence[str], *, reader: str
    ) -> dict[str, Tensor]:
        """As `SampleStore` says; what is missing cannot come while the one process waits, so nothing is waited for."""
        missing = self._ledger.missing(partition, rows, columns)
        if missing is not None:
            raise RuntimeError(f"{partition}: {reader} wanted columns that nobody wrote: {missing}")
        self._ledger.read(partition, rows, columns, reader)
        return {name: _assembled(self._parts[partition][name], list(rows)) for name in columns}

    def clear(self, partition: str) -> None:
        """As `SampleStore` says."""
        self._ledger.clear(partition)
        self._parts.pop(partition, None)


def check_rows(partition: str, rows: Sequence[int], columns: Mapping[str, Tensor]) -> None:
    """Refuse columns whose length is not the number of rows.

    Raises:
        ValueError: Names the column.
    """
    for name, tensor in columns.items():
        if tensor.dim() == 0 or tensor.shape[0] != len(rows):
            got = "none" if tensor.dim() == 0 else tensor.shape[0]
            raise ValueError(f"{partition}: wanted {len(rows)} rows of the column {name}, got {got}")


def stack_rows(rows: Sequence[Tensor]) -> Tensor:
    """[rows, ...] of single rows, padded with zeros on the right where their widths differ."""
    if len({row.shape for row in rows}) == 1:
        return torch.stack(list(rows))
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _assembled(parts: list[tuple[list[int], Tensor]], rows: list[int]) -> Tensor:
    if len(parts) == 1 and parts[0][0] == rows:
        return parts[0][1]
    places = {row: tensor[n] for held, tensor in parts for n, row in enumerate(held)}
    return stack_rows([places[row] for row in rows])
