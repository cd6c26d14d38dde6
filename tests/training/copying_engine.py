"""A rollout engine with memory of its own, as SGLang is one, in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from relax_lightning.rollout.embedded import MegatronEngine


class CopyingEngine(MegatronEngine):
    """The embedded engine, but on a copy of the weights that a publication makes; it can give them up."""

    weights_lost = False

    def publish(self) -> int:
        source: Any = self._source
        storages = [parameter.untyped_storage() for parameter in source.model.parameters()]
        self._storages = list({storage.data_ptr(): storage for storage in storages}.values())
        assert all(storage.nbytes() for storage in storages)
        self._copies = [storage.clone() for storage in self._storages]
        self.weights_lost = False
        return super().publish()

    def memory(self) -> dict[str, int]:
        return {"weights": 1000, "kv_cache": 100, "cuda_graph": 10}

    def borrow_policy(self, *managers: Callable[[], AbstractContextManager[None]]) -> None:
        self.managers = managers

    def offload(self, tags: Collection[str]) -> None:
        if "weights" in tags:
            self._copies = []
            self.weights_lost = True

    def onload(self, tags: Collection[str]) -> None:
        pass

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        # In the rollout phase the policy's own weights may be away: the copies take their place meanwhile.
        own = [storage.clone() for storage in self._storages]
        for storage, copy in zip(self._storages, self._copies, strict=True):
            storage.resize_(copy.nbytes())
            storage.copy_(copy)
        try:
            return super().generate(*args, **kwargs)
        finally:
            for storage, before in zip(self._storages, own, strict=True):
                storage.resize_(before.nbytes())
                storage.copy_(before)
