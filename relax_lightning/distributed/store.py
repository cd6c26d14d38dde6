"""The sample store over TransferQueue, as every process but the store's own sees it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from torch import Tensor

from relax_lightning.data.store import check_rows, stack_rows

DEADLINE_SECONDS = 600.0
"""How long a reader waits for rows, and anyone for an answer of the store. A part that dies is noticed at once."""


class TransferQueueStore:
    """A `SampleStore` whose tensors lie in the store's process and whose ledger lies with the coordinator.

    TransferQueue's own waiting sleeps for whole seconds, so the coordinator wakes readers; then one read suffices.

    Args:
        store: Actor handle of `StoreProcess`.
        coordinator: Actor handle of `Coordinator`.
        deadline_seconds: How long to wait for rows or an answer.
    """

    def __init__(self, store: Any, coordinator: Any, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        from transfer_queue.client import AsyncTransferQueueClient

        connection: Any = ray.get(store.connection.remote(), timeout=deadline_seconds)
        self.process, self.coordinator = store, coordinator
        self._seconds = deadline_seconds
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="sample-store", daemon=True).start()
        self._client = AsyncTransferQueueClient(f"client-{uuid.uuid4().hex}", connection["controller"])
        unit = connection["unit"]
        self._client.initialize_storage_manager("SimpleStorage", {"zmq_info": {unit.id: unit}})

    def put(self, partition: str, rows: Sequence[int], columns: Mapping[str, Tensor]) -> None:
        """As `SampleStore` says."""
        from tensordict import TensorDict

        check_rows(partition, rows, columns)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in columns.items()}
        batch: Any = TensorDict(tensors, batch_size=[len(rows)])

        async def put() -> None:
            meta = await self._client.async_kv_retrieve_meta(_keys(rows), partition, create=True)
            await self._client.async_put(batch, meta)

        self._run(put(), f"writing {', '.join(columns)} of {partition}")
        self._ask(self.coordinator.written.remote(partition, list(rows), list(columns)))

    def get(
        self, partition: str, rows: Sequence[int], columns: Sequence[str], *, reader: str
    ) -> dict[str, Tensor]:
        """As `SampleStore` says."""
        names = list(columns)
        wait = self.coordinator.wait_for_rows.remote(partition, list(rows), names, reader, self._seconds)
        missing = self._ask(wait)
        if missing is not None:
            raise RuntimeError(
                f"{partition}: {reader} waited {self._seconds:g} s for columns that nobody wrote: {missing}"
            )

        async def get() -> Any:
            meta = await self._client.async_kv_retrieve_meta(_keys(rows), partition, create=False)
            absent = [name for name in names if name not in meta.field_names]
            if meta.size != len(rows) or absent:
                lacks = f"{meta.size} rows" + (f" without {', '.join(absent)}" if absent else "")
                raise RuntimeError(f"{partition}: wanted {len(rows)} rows, the sample store has {lacks}")
            return await self._client.async_get_data(meta.select_fields(names))

        data = self._run(get(), f"reading {', '.join(names)} of {partition}")
        return {name: _checked(partition, name, data.get(name), len(rows)) for name in names}

    def clear(self, partition: str) -> None:
        """As `SampleStore` says."""
        self._run(self._client.async_clear_partition(partition), f"clearing {partition}")
        self._ask(self.coordinator.forget.remote(partition))

    def close(self) -> None:
        """End the client's connections."""
        self._client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Coroutine[Any, Any, Any], what: str) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(self._seconds)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise RuntimeError(
                f"the sample store did not answer within {self._seconds:g} s while {what}"
            ) from error

    def _ask(self, answer: Any) -> Any:
        try:
            # The coordinator ends its own waiting first, and then says what is missing.
            return ray.get(answer, timeout=self._seconds + 10)
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ValueError):
                raise cause from None
            raise RuntimeError(
                f"the coordinator of the sample store did not answer: {type(error).__name__}"
            ) from error


def _keys(rows: Sequence[int]) -> list[str]:
    return [str(row) for row in rows]


def _checked(partition: str, name: str, column: Any, num_rows: int) -> Tensor:
    """The rows of a column as one tensor; TransferQueue gives back an empty one where it has nothing."""
    rows = [] if column is None else list(column.unbind(0) if isinstance(column, Tensor) else column.tolist())
    got = sum(isinstance(row, Tensor) for row in rows)
    if got != num_rows:
        raise RuntimeError(
            f"{partition}: wanted {num_rows} rows of the column {name}, the sample store gave {got}"
        )
    return stack_rows(rows)
