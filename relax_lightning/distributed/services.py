"""The sample store and the advantages service as processes of their own, which need no GPU."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ray
from ray.exceptions import RayError

from relax_lightning.config import AlgorithmConfig
from relax_lightning.distributed.processes import Part


class StoreProcess(Part):
    """Holds TransferQueue's controller and one storage unit.

    They are made here, not by `transfer_queue.init`, which gives both one name in the whole Ray cluster: two jobs
    would share them. TransferQueue serves them from threads of its own.
    """

    def __init__(self) -> None:
        from transfer_queue.controller import TransferQueueController
        from transfer_queue.storage.simple_storage import SimpleStorageUnit

        # The classes beneath Ray's wrapping: both live in this one process.
        controller: Any = TransferQueueController
        unit: Any = SimpleStorageUnit
        self._controller = controller.__ray_actor_class__()
        self._unit = unit.__ray_actor_class__({"num_data_storage_units": 1})

    async def connection(self) -> dict[str, Any]:
        """Where the controller and the unit listen."""
        return {
            "controller": self._controller.get_zmq_server_info(),
            "unit": self._unit.get_zmq_server_info(),
        }


class AdvantagesProcess(Part):
    """Computes advantages from the sample store with the function that one process uses.

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

    async def compute(self, partition: str, num_rows: int, algorithm: AlgorithmConfig) -> dict[str, float]:
        """As `AdvantagesService` says."""
        return await asyncio.to_thread(self._service.compute, partition, num_rows, algorithm)


class RemoteAdvantages:
    """The `AdvantagesService` that a rank calls.

    Args:
        process: Actor handle of `AdvantagesProcess`.
        deadline_seconds: How long an iteration's computation may take.
    """

    def __init__(self, process: Any, deadline_seconds: float) -> None:
        self._process = process
        self._seconds = deadline_seconds

    def compute(self, partition: str, num_rows: int, algorithm: AlgorithmConfig) -> dict[str, float]:
        """As `AdvantagesService` says."""
        try:
            return ray.get(
                self._process.compute.remote(partition, num_rows, algorithm), timeout=self._seconds
            )
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ValueError | RuntimeError):
                raise RuntimeError(f"the advantages service: {cause}") from error
            raise RuntimeError(f"the advantages service did not answer: {type(error).__name__}") from error
