"""The advantages service as a process of its own, which needs no GPU."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ray
from ray.exceptions import RayError

from relax_lightning.config import AlgorithmConfig
from relax_lightning.distributed.processes import Place, place_here


class AdvantagesProcess:
    """A Ray actor that computes advantages from the sample store with the function that one process uses.

    Args:
        store: Actor handle of `StoreProcess`.
        coordinator: Actor handle of `Coordinator`.
        environment: Variables to set before torch is imported.
    """

    def __init__(self, store: Any, coordinator: Any, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        from relax_lightning.data.experience import LocalAdvantages
        from relax_lightning.distributed.store import TransferQueueStore

        self._service = LocalAdvantages(TransferQueueStore(store, coordinator))

    async def compute(
        self, partition: str, num_rows: int, algorithm: AlgorithmConfig, rewards: str
    ) -> dict[str, float]:
        """As `AdvantagesService` says."""
        return await asyncio.to_thread(self._service.compute, partition, num_rows, algorithm, rewards=rewards)

    async def place(self) -> Place:
        """Where this runs."""
        return place_here()

    async def lives(self) -> None:
        """Never returns: the caller learns at once when this process ends."""
        await asyncio.Event().wait()


class RemoteAdvantages:
    """The `AdvantagesService` that a rank calls.

    Args:
        process: Actor handle of `AdvantagesProcess`.
        deadline_seconds: How long an iteration's computation may take.
    """

    def __init__(self, process: Any, deadline_seconds: float) -> None:
        self._process = process
        self._seconds = deadline_seconds

    def compute(
        self, partition: str, num_rows: int, algorithm: AlgorithmConfig, *, rewards: str = "rewards"
    ) -> dict[str, float]:
        """As `AdvantagesService` says."""
        try:
            return ray.get(
                self._process.compute.remote(partition, num_rows, algorithm, rewards), timeout=self._seconds
            )
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ValueError | RuntimeError):
                raise RuntimeError(f"the advantages service: {cause}") from error
            raise RuntimeError(f"the advantages service did not answer: {type(error).__name__}") from error
