"""Publication: the policy's weights, in buckets, to an engine in other processes.

A bucket is one flat tensor with the places of its tensors, in the wire format of SGLang's `flattened_bucket`. How it
travels is a class: `SharedMemory` hands over a handle of memory that both sides map (CUDA IPC on a GPU, a shared file
on a CPU), `ByValue` the bytes themselves, to another machine.
"""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy, reductions, set_sharing_strategy

from relax_lightning.run.gpu_memory import for_other_processes

_ALIGNMENT_BYTES = 16
_DEVICE_INDEX = 6
"""Where `reduce_tensor` keeps a CUDA tensor's device."""


class WeightReceiver(Protocol):
    """The engine's side of a publication."""

    def update_session(self) -> AbstractContextManager[None]:
        """Around all buckets of a publication."""
        ...

    def update_weights(self, payloads: list[bytes], version: str, *, is_last: bool) -> None:
        """Take one bucket: a payload for each tensor-parallel rank of the engine, in their order."""
        ...


class Transport(Protocol):
    """How a bucket gets to the engine."""

    def new_buffer(self, num_bytes: int, device: torch.device) -> Tensor:
        """[num_bytes] uint8 zeros to pack a bucket in."""
        ...

    def serialize(self, bucket: dict[str, Any]) -> bytes:
        """The bucket as a payload for one receiver, which may open it once."""
        ...


class SharedMemory:
    """The payload is a handle; the engine maps the buffer. For an engine on this machine."""

    def new_buffer(self, num_bytes: int, device: torch.device) -> Tensor:
        """[num_bytes] uint8 zeros in memory that can be mapped elsewhere."""
        if device.type == "cuda":
            with for_other_processes():
                return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        buffer = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        with _shared_by_name():
            buffer.share_memory_()
        return buffer

    def serialize(self, bucket: dict[str, Any]) -> bytes:
        """A handle of the buffer, and its tensors' places."""
        file = io.BytesIO()
        with _shared_by_name():
            _HandlePickler(file).dump(bucket)
        return file.getvalue()


class ByValue:
    """The payload holds the bytes. For an engine on another machine."""

    def new_buffer(self, num_bytes: int, device: torch.device) -> Tensor:
        """[num_bytes] uint8 zeros on the host."""
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def serialize(self, bucket: dict[str, Any]) -> bytes:
        """The buffer and its tensors' places."""
        return pickle.dumps({**bucket, "flattened_tensor": _Bytes(bucket["flattened_tensor"])})


class _Bytes:
    """Pickles a buffer as its bytes, by names that SGLang's unpickler lets pass.

    A pickled tensor names the function that loads its storage, which Megatron-Core replaces by one of its own.
    """

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return partial(torch.frombuffer, dtype=torch.uint8), (bytearray(self._buffer.numpy()),)


class _HandlePickler(ForkingPickler):
    """Names a GPU by its UUID, as SGLang expects: the index of one GPU may differ between two processes."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.dispatch_table[Tensor] = _reduce_tensor  # pyright: ignore[reportAttributeAccessIssue]


def _reduce_tensor(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
    rebuild, arguments = reductions.reduce_tensor(tensor)
    if tensor.is_cuda:
        uuid = str(torch.cuda.get_device_properties(tensor.device).uuid)
        arguments = (*arguments[:_DEVICE_INDEX], uuid, *arguments[_DEVICE_INDEX + 1 :])
    return rebuild, arguments


@contextmanager
def _shared_by_name() -> Iterator[None]:
    # torch's other way sends a file descriptor, which only a process of the same parent can ask for.
    before = get_sharing_strategy()
    set_sharing_strategy("file_system")
    try:
        yield
    finally:
        set_sharing_strategy(before)


@dataclass(frozen=True)
class Publication:
    """What was published: enough to tell later whether the policy is still the same."""

    version: int
    checksums: tuple[int, ...]
    """Sum of each bucket's 64-bit words, modulo 2**64."""


def publish_weights(
    weights: Iterable[tuple[str, Tensor]],
    receiver: WeightReceiver | None,
    version: int,
    *,
    transport: Transport,
    num_payloads: int,
    bucket_bytes: int,
    exchange: Callable[[Callable[[], list[bytes]]], list[bytes]] = operator.call,
) -> Publication:
    """Send all weights; while the engine loads one bucket, the next one is packed.

    Until the last bucket has arrived the engine carries a version that no generation may have, so that a publication
    that broke off is noticed.

    Args:
        weights: Hugging Face name and whole tensor, on any one device.
        receiver: The engine; None on a rank that does not drive it.
        version: Number of this publication.
        transport: How buckets travel.
        num_payloads: The engine's ranks that open this rank's buckets, each by a payload of its own.
        bucket_bytes: Size of a bucket; a larger tensor travels alone.
        exchange: Makes this rank's payloads, and gives those of all the engine's ranks. All ranks call it equally
            often: once for each bucket, when the one before has been loaded, and once at the end.
    """
    checksums: list[int] = []
    loading: Future[None] | None = None
    session = nullcontext() if receiver is None else receiver.update_session()
    with session, ThreadPoolExecutor(1) as executor:
        held: dict[str, Any] | None = None
        for names_and_tensors, is_last in _buckets(weights, bucket_bytes):
            bucket = _pack(names_and_tensors, transport)
            checksums.append(int(bucket["flattened_tensor"].view(torch.int64).sum()))
            payloads = exchange(partial(_payloads, loading, transport, bucket, num_payloads))
            held = bucket  # lives until the next exchange tells that the engine has loaded it
            if receiver is not None:
                label = str(version) if is_last else f"{version}-incomplete"
                loading = executor.submit(receiver.update_weights, payloads, label, is_last=is_last)
        assert held is not None, "a policy has weights"
        exchange(partial(_payloads, loading, transport, held, 0))
    return Publication(version, tuple(checksums))


def _payloads(
    loading: Future[None] | None, transport: Transport, bucket: dict[str, Any], number: int
) -> list[bytes]:
    """As many payloads of a bucket, once the engine has loaded the one before."""
    if loading is not None:
        loading.result()
    return [transport.serialize(bucket) for _ in range(number)]


def _buckets(
    weights: Iterable[tuple[str, Tensor]], bucket_bytes: int
) -> Iterator[tuple[list[tuple[str, Tensor]], bool]]:
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if bucket and size + _padded(tensor) > bucket_bytes:
            yield bucket, False
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += _padded(tensor)
    yield bucket, True


def _padded(tensor: Tensor) -> int:
    """Bytes of a tensor in a bucket: the next one must begin where any dtype may."""
    return -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _pack(named_tensors: list[tuple[str, Tensor]], transport: Transport) -> dict[str, Any]:
    total = sum(_padded(tensor) for _, tensor in named_tensors)
    buffer = transport.new_buffer(total, named_tensors[0][1].device)
    places, start = [], 0
    for name, tensor in named_tensors:
        end = start + tensor.nbytes
        buffer[start:end].copy_(tensor.detach().contiguous().flatten().view(torch.uint8))
        places.append(
            SimpleNamespace(
                name=name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                start_idx=start,
                end_idx=end,
                numel=tensor.nbytes,
            )
        )
        start += _padded(tensor)
    return {"flattened_tensor": buffer, "metadata": places}
