"""What a Megatron checkpoint says of its tensors, read without torch, and without running anything that is in it."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from relax_lightning.checkpoints.checksums import refuse_changed, refuse_misfits

METADATA = ".metadata"
"""Torch's index of a distributed checkpoint: a pickle."""

MEGATRON_CONFIG = "metadata.json"
"""What makes a folder a Megatron distributed checkpoint."""

_EMBEDDING = "embedding.word_embeddings.weight"
_OUTPUT = "output_layer.weight"

_DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 bfloat16 float16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
)
_TORCH = "torch.distributed.checkpoint"
_NAMES = {
    "torch": f"Size {_DTYPES}",
    "torch.serialization": "_get_layout",
    f"{_TORCH}.metadata": "Metadata StorageMeta MetadataIndex TensorProperties TensorStorageMetadata "
    "BytesStorageMetadata ChunkStorageMetadata _MEM_FORMAT_ENCODING",
    f"{_TORCH}.filesystem": "_StorageInfo",
    f"{_TORCH}.planner": "SavePlan WriteItem WriteItemType TensorWriteData BytesIOWriteData",
    # Older releases of torch and Megatron-Core.
    "torch.distributed._shard.sharded_tensor.metadata": "TensorProperties MEM_FORMAT_ENCODING",
    "megatron.core.dist_checkpointing.strategies.torch": "MCoreMetadata MCoreSavePlan",
    "collections": "OrderedDict",
    "pathlib": "Path PosixPath PurePosixPath",
    "pathlib._local": "Path PosixPath PurePosixPath",
}
PLAIN_NAMES = frozenset((module, name) for module, names in _NAMES.items() for name in names.split())
"""Every class and function that a plain `.metadata` names, as (module, name): none of them runs what it is given."""


def refuse_name(path: str | Path, module: str, name: str) -> None:
    """Refuse what a pickle of a checkpoint may not name.

    Raises:
        ValueError: It is none of `PLAIN_NAMES`.
    """
    if (module, name) not in PLAIN_NAMES:
        raise ValueError(
            f"{path}: wanted torch's and Megatron's own descriptions alone, got {module}.{name}, which would run as it "
            "is read; use another checkpoint, or set strategy.trust_checkpoints: true if you trust its writer"
        )


def tensor_shapes(folder: str | Path, *, trusted: bool = False) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a Megatron distributed checkpoint, by name.

    Args:
        folder: A role's part of a checkpoint, or a plain Megatron one.
        trusted: Look past what is no description, and do not run it either.

    Raises:
        ValueError: It cannot be read, names what would run, or its files are shorter than it says.
    """
    path = Path(folder) / METADATA
    try:
        metadata = _Descriptions(path, path.read_bytes(), trusted=trusted).load()
        tensors = {
            name: tuple(t.size) for name, t in metadata.state_dict_metadata.items() if hasattr(t, "size")
        }
        stored = [
            (Path(folder) / i.relative_path, i.offset + i.length) for i in metadata.storage_data.values()
        ]
    except ValueError:
        raise
    except Exception as error:
        # A pickle that was cut or written over may fail in any way.
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); use another checkpoint"
        ) from error
    _refuse_short(Path(folder), stored)
    return tensors


def _refuse_short(folder: Path, stored: list[tuple[Path, int]]) -> None:
    ends: dict[Path, int] = {}
    for path, end in stored:
        ends[path] = max(end, ends.get(path, 0))
    for path, end in ends.items():
        if path.parent != folder:
            raise ValueError(
                f"{folder / METADATA}: wanted files of {folder}, got {path}; use another checkpoint"
            )
        if not path.is_file():
            raise ValueError(f"{path}: wanted a file of {end:,} bytes, got none; use another checkpoint")
        if (size := path.stat().st_size) < end:
            change = "it was cut; use another checkpoint"
            raise ValueError(f"{path}: wanted at least {end:,} bytes, got {size:,}; {change}")


def held_role(shapes: dict[str, tuple[int, ...]]) -> str | None:
    """`actor` or `critic`, by the output layer: a value head has one row; None for another model than ours."""
    if _EMBEDDING not in shapes:
        return None
    return "critic" if shapes.get(_OUTPUT, (0,))[0] == 1 else "actor"


def refuse_other_role(folder: Path, role: str, *, trusted: bool = False) -> None:
    """Refuse to load a role from a folder that holds the other one, or is not whole.

    Args:
        folder: A role's part of a checkpoint, or a plain Megatron one.
        role: `actor` or `critic`.
        trusted: As for `tensor_shapes`.

    Raises:
        ValueError: Says what it holds, or which file is at fault.
    """
    try:
        refuse_misfits(folder)
        # Reading a damaged pickle may take all memory.
        refuse_changed(folder, METADATA)
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}; correct that") from error
    held = held_role(tensor_shapes(folder, trusted=trusted))
    if held == role:
        return
    found = "no language model of Megatron-Core" if held is None else f"{_A[held]}"
    raise ValueError(
        f"wanted {_A[role]}, got {folder}, which holds {found}; give a checkpoint root, an iter_ folder or a Megatron "
        f"checkpoint that holds {_A[role]}"
    )


_A = {"actor": "an actor (with an output for every token)", "critic": "a critic (with a value head)"}


class _Record:
    """Stands for any object of the pickle: takes its attributes, and does nothing."""

    def __new__(cls, *_: Any) -> _Record:
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Descriptions(pickle.Unpickler):
    """Takes none of the classes that a pickle names: records stand for them."""

    def __init__(self, path: Path, data: bytes, *, trusted: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path
        self._trusted = trusted

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in."""
        if not self._trusted:
            refuse_name(self._path, module, name)
        if (module, name) == ("torch", "Size"):
            return tuple
        return dict if (module, name) == ("collections", "OrderedDict") else _Record

    def persistent_load(self, pid: Any) -> Any:
        """Nothing of ours is stored apart."""
        raise pickle.UnpicklingError(f"it refers to {pid!r}, which lies elsewhere")
