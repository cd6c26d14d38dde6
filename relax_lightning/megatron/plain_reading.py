"""Reading a Megatron distributed checkpoint without running what is in it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor, serialization
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import StorageMeta

from relax_lightning.config.megatron_metadata import (
    MEGATRON_CONFIG,
    METADATA,
    refuse_name,
    refuse_other_role,
    tensor_shapes,
)
from relax_lightning.peers import PeerError

_TRUST = "or set strategy.trust_checkpoints: true if you trust its writer"


def load_plainly(state: dict[str, Any], folder: Path, role: str, *, trusted: bool) -> dict[str, Any]:
    """Megatron's `dist_checkpointing.load`, of plain values alone.

    Args:
        state: Sharded, as the model and its optimizer describe themselves.
        folder: The checkpoint.
        role: `actor` or `critic`, which it must hold.
        trusted: Run the code that it may hold.

    Raises:
        ValueError: It is no Megatron distributed checkpoint of this role and model, cannot be read, or holds objects
            that would run code.
    """
    if not (folder / MEGATRON_CONFIG).is_file():
        raise ValueError(f"{folder} is no Megatron distributed checkpoint (it holds no {MEGATRON_CONFIG})")
    refuse_other_role(folder, role, trusted=trusted)
    _refuse_other_shapes(state, tensor_shapes(folder, trusted=trusted), folder)
    try:
        with _readers(trusted=trusted):
            return dist_checkpointing.load(state, str(folder))  # pyright: ignore[reportReturnType]
    except (torch.OutOfMemoryError, PeerError):
        raise
    except Exception as error:
        # Bytes that were written over may fail in any way, and torch puts a traceback of each rank into its text.
        raise ValueError(_told(folder, error)) from error


def _told(folder: Path, error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" )")]
    refused = next(
        (line for line in lines if "Unsupported global" in line or "unpickle" in line.lower()), None
    )
    reason = (refused or (lines[-1] if lines else ""))[:300]
    trust = "" if refused is None else f", {_TRUST}"
    return f"{folder} cannot be read ({type(error).__name__}: {reason}); use another checkpoint{trust}"


def _refuse_other_shapes(state: dict[str, Any], held: dict[str, tuple[int, ...]], folder: Path) -> None:
    different = []
    for tensor in nested_values(state):
        if not isinstance(tensor, ShardedTensor) or tensor.allow_shape_mismatch:
            continue
        if (shape := held.get(tensor.key)) != tuple(tensor.global_shape):
            there = "absent" if shape is None else f"{list(shape)}"
            different.append(f"{tensor.key} is {there}, here {list(tensor.global_shape)}")
    if different:
        more = "" if len(different) == 1 else f", and {len(different) - 1} more like it"
        raise ValueError(
            f"{folder} holds another model or no optimizer: {different[0]}{more}; use a checkpoint of this model, or "
            "take its weights alone by model.actor.warm_start"
        )


@contextmanager
def _readers(*, trusted: bool) -> Iterator[None]:
    """Plain ones; where the writer is trusted, those that take any object."""
    # Megatron makes its readers by a function of its own, which two of its modules hold.
    ours: dict[tuple[Any, str], Any] = {
        (module, "_get_filesystem_reader"): lambda folder, *_, **__: _PlainReader(folder)
        for module in (serialization, torch_strategy)
    }
    if trusted:
        ours = {(serialization, "load_common"): _any_common}
    originals = {place: getattr(*place) for place in ours}
    for (module, name), reader in ours.items():
        setattr(module, name, reader)
    try:
        yield
    finally:
        for (module, name), reader in originals.items():
            setattr(module, name, reader)


def _any_common(folder: str) -> Any:
    return torch.load(Path(folder) / "common.pt", map_location="cpu", weights_only=False)


class _PlainReader(FileSystemReader):
    """Torch's reader, which takes its index and its objects only where they are plain."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """The index of the checkpoint."""
        path = Path(self.path) / METADATA
        metadata = _Plain(path).load()
        # As torch's own does it.
        metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Look at every object before the planner unpickles it; tensors torch reads plainly itself."""
        unpickle = planner.load_bytes

        def load_bytes(item: Any, value: Any) -> None:
            torch.load(value, weights_only=True, map_location="cpu")
            value.seek(0)
            unpickle(item, value)

        planner.load_bytes = load_bytes
        return super().read_data(plan, planner)


class _Plain(pickle.Unpickler):
    """Imports only what describes tensors."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(path.read_bytes()))
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """A class or function that is on the list."""
        refuse_name(self._path, module, name)
        return super().find_class(module, name)
