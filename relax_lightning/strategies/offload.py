"""Tensors that leave the GPU and come back in place: one pinned host arena for each group of them, one side stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from relax_lightning.rollout.engine import HoldsMemory
from relax_lightning.run.host_memory import HostArena


class Trained(Protocol):
    """A model with its optimizer, whose tensors can be asked for by tag."""

    def tensors(self, tag: str) -> list[Tensor]:
        """The tensors behind `weights`, `gradients` or `optimizer`."""
        ...


class TensorGroup:
    """Tensors that leave the device and return together, bit for bit; views of them stay valid.

    Their storages are freed while they are away, so reading them then is an error of the caller's.

    Args:
        tensors: Gives the tensors when asked: an optimizer may replace its own when it is loaded.
        keeps: Whether their values matter. False: the memory is given up and comes back undefined.
    """

    def __init__(self, tensors: Callable[[], Iterable[Tensor]], *, keeps: bool = True) -> None:
        self._tensors = tensors
        self._keeps = keeps
        self._arena = HostArena("strategy.offload", "set strategy.offload: never")
        self._away: list[tuple[torch.UntypedStorage, int]] = []

    @property
    def is_away(self) -> bool:
        """Whether they have left."""
        return bool(self._away)

    @property
    def size(self) -> int:
        """Bytes on the device, or those that have left."""
        if self._away:
            return sum(size for _, size in self._away)
        return sum(storage.nbytes() for storage in self._storages())

    def offload(self) -> None:
        """Copy to the host and free the device memory; nothing when they are away already.

        Whatever is raised, `onload` brings all of them back.
        """
        if self._away:
            return
        storages = [(storage, storage.nbytes()) for storage in self._storages()]
        if self._keeps:
            self._copy(storages, to_device=False)
        # From here on the arena has them all, and they are away, however few are freed yet.
        self._away = storages
        for storage, _ in storages:
            storage.resize_(0)

    def onload(self, *, stays: bool = False) -> None:
        """Take the device memory again and copy back; nothing when they are there.

        Whatever is raised, they are still away as a whole.

        Args:
            stays: They will not leave again soon: the host memory is given back.

        Raises:
            torch.OutOfMemoryError: There is no room.
        """
        try:
            for storage, size in self._away:
                storage.resize_(size)
            if self._keeps:
                self._copy(self._away, to_device=True)
        except BaseException:
            for storage, _ in self._away:
                storage.resize_(0)
            raise
        self._away = []
        if stays:
            self._arena.clear()

    def _copy(self, storages: list[tuple[torch.UntypedStorage, int]], *, to_device: bool) -> None:
        if not storages:
            return
        on_device = [_bytes_of(storage, size) for storage, size in storages]
        with _SideStream(storages[0][0].device):
            for on_host, part in self._arena.places(on_device):
                (part if to_device else on_host).copy_(on_host if to_device else part, non_blocking=True)

    def _storages(self) -> list[torch.UntypedStorage]:
        found = {}
        for tensor in self._tensors():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                found.setdefault(storage.data_ptr(), storage)
        return list(found.values())


class RoleResident:
    """Actor or critic as the pool sees it: weights and optimizer state are kept, gradients are only room.

    Args:
        role: The role.
    """

    def __init__(self, role: Trained) -> None:
        self._groups = {
            tag: TensorGroup(partial(role.tensors, tag), keeps=tag != "gradients")
            for tag in ("weights", "gradients", "optimizer")
        }

    def sizes(self) -> dict[str, int]:
        """Bytes of each part."""
        return {tag: group.size for tag, group in self._groups.items()}

    def offload(self, tag: str) -> None:
        """Move a part to the host."""
        self._groups[tag].offload()

    def onload(self, tag: str, *, stays: bool = False) -> None:
        """Move it back."""
        self._groups[tag].onload(stays=stays)


_ENGINE_TAGS = {"engine_weights": ("weights",), "kv_cache": ("kv_cache", "cuda_graph")}


class EngineResident:
    """A rollout engine with memory of its own, as the pool sees it.

    Args:
        engine: Up and idle.
    """

    def __init__(self, engine: HoldsMemory) -> None:
        self._engine = engine
        self._memory = engine.memory()

    def sizes(self) -> dict[str, int]:
        """Bytes of each part."""
        return {tag: sum(self._memory[name] for name in names) for tag, names in _ENGINE_TAGS.items()}

    def offload(self, tag: str) -> None:
        """Free a part; nothing of it is worth keeping."""
        self._engine.offload(_ENGINE_TAGS[tag])

    def onload(self, tag: str, *, stays: bool = False) -> None:
        """Take it back; weights wait for the next publication."""
        self._engine.onload(_ENGINE_TAGS[tag])


class _SideStream:
    """Copies beside the default stream, in order with what came before, and done at the end of the block."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        if self._device.type != "cuda":
            return
        self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._context = torch.cuda.stream(self._stream)
        self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._device.type != "cuda":
            return
        self._context.__exit__(*error)
        self._stream.synchronize()


def _bytes_of(storage: torch.UntypedStorage, size: int) -> Tensor:
    empty: Any = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (size,))
