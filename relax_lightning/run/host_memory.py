"""Host memory that the GPU copies to and from at full speed, for many tensors together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

LARGEST, SMALLEST = 256 * 2**20, 2**20
"""Bytes of a piece. Torch rounds pinned memory up to a power of two, so all sizes in between are powers of two."""


class HostArena:
    """Memory in a few pieces, which grows as it is used and stays for the next time.

    Args:
        key: Of the configuration that asks for it.
        otherwise: What a user may do where there is not enough.
    """

    def __init__(self, key: str, otherwise: str) -> None:
        self._key = key
        self._otherwise = otherwise
        self._pieces: list[Tensor] = []

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return sum(map(len, self._pieces))

    def places(self, tensors: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Bytes of the arena and of the tensors, pair by pair of one length, always in the same places.

        Args:
            tensors: [bytes] uint8 each, the same ones every time that what was written is to be read.

        Raises:
            RuntimeError: There is no such memory left.
        """
        tensors = list(tensors)
        self._grow(sum(map(len, tensors)))
        pieces = iter(self._pieces)
        room = torch.empty(0, dtype=torch.uint8, device="cpu")
        for tensor in tensors:
            while len(tensor):
                room = room if len(room) else next(pieces)
                length = min(len(room), len(tensor))
                yield room[:length], tensor[:length]
                room, tensor = room[length:], tensor[length:]

    def clear(self) -> None:
        """Give the memory back."""
        if self._pieces:
            self._pieces = []
            if torch.cuda.is_available():
                torch._C._host_emptyCache()

    def _grow(self, size: int) -> None:
        while (missing := size - self.size) > 0:
            fitting = 1 << (missing.bit_length() - 1)
            self._pieces.append(self._pinned(min(max(fitting, SMALLEST), LARGEST)))

    def _pinned(self, size: int) -> Tensor:
        try:
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=torch.cuda.is_available())
        except RuntimeError as error:
            raise RuntimeError(
                f"{self._key}: wanted another {size / 2**20:.0f} MiB of pinned host memory, got {error}; "
                f"give the machine more memory, or {self._otherwise}"
            ) from error


def bytes_of(tensor: Tensor) -> Tensor:
    """The contents of a contiguous tensor as [bytes] uint8, sharing its memory."""
    return tensor.detach().view(-1).view(torch.uint8)
