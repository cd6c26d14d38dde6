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
from torch.distributed.checkpoint import CheckpointException, FileSystemReader
from torch.distributed.checkpoint.metadata import StorageMeta

from relax_lightning.checkpoints.megatron_metadata import (
    MEGATRON_CONFIG,
    METADATA,
    refuse_name,
    refuse_other_role,
    tensor_shapes,
)
from relax_lightning.distributed.peers import PeerError


def load_plainly(
    state: dict[str, Any], folder: Path, role: str, *, num_tokens: int, trusted: bool
) -> dict[str, Any]:
    """Megatron's `dist_checkpointing.load`, of plain values alone.

    Args:
        state: Sharded, as the model and its optimizer describe themselves.
        folder: The checkpoint.
        role: `actor` or `critic`, which it must hold.
        num_tokens: Size of the vocabulary: each must have a row there, with or without rows that only pad.
        trusted: Run the code that it may hold.

    Raises:
        ValueError: It is no Megatron distributed checkpoint of this role and model, cannot be read, or holds objects
            that would run code.
    """
    if not (folder / MEGATRON_CONFIG).is_file():
        raise ValueError(f"{folder} is no Megatron distributed checkpoint (it holds no {MEGATRON_CONFIG})")
    refuse_other_role(folder, role, trusted=trusted)
    _refuse_other_shapes(state, tensor_shapes(folder, trusted=trusted), folder, num_tokens)
    try:
        with _readers(trusted=trusted):
            loaded: Any = dist_checkpointing.load(state, str(folder))
    except (torch.OutOfMemoryError, PeerError):
        raise
    except (Exception, CheckpointException) as error:
        # Bytes that were written over may fail in any way. Torch's own exception, which is no `Exception`, holds also
        # what says nothing of them.
        for cause, _ in getattr(error, "failures", {}).values():
            if isinstance(cause, KeyboardInterrupt | SystemExit | torch.OutOfMemoryError):
                raise cause from None
        raise unreadable(folder, error) from error
    if loaded.get("role", role) != role:
        raise ValueError(f"wanted the {role}'s checkpoint, got {folder}, which is the {loaded['role']}'s")
    return loaded


def unreadable(path: Path, error: BaseException) -> ValueError:
    """What a user is told of a file that cannot be read, in one line; of objects that would run, how to trust them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" )")]
    # So torch names what it refuses to import.
    refused = next((line for line in lines if "GLOBAL" in line), None)
    reason = (refused or (lines[-1] if lines else ""))[:300]
    trust = "" if refused is None else ", or set strategy.trust_checkpoints: true if you trust its writer"
    change = f"use another checkpoint, as an older iteration beside it{trust}"
    return ValueError(f"{path} cannot be read ({type(error).__name__}: {reason}); {change}")


def _refuse_other_shapes(
    state: dict[str, Any], held: dict[str, tuple[int, ...]], folder: Path, num_tokens: int
) -> None:
    different = []
    for tensor in nested_values(state):
        if not isinstance(tensor, ShardedTensor):
            continue
        wanted, shape = tuple(tensor.global_shape), held.get(tensor.key, ())
        # Megatron says so of the vocabulary, which it pads.
        if tensor.allow_shape_mismatch and shape[:1] >= (num_tokens,):
            shape = wanted[:1] + shape[1:]
        if shape != wanted:
            there = f"{list(shape)}" if shape else "absent"
            different.append(f"{tensor.key} is {there}, here {list(wanted)}")
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
