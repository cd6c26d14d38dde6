"""Checksums of a checkpoint's files: taken as it is saved, compared before it is read."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from relax_lightning.checkpoints.manifest import MANIFEST, read_manifest

_NUM_THREADS = 4
_CHUNK = 8 * 2**20
_CHANGE = "resume from another checkpoint, as an older iteration beside it"


def take(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and checksum of files.

    Args:
        folder: Of an iteration.
        names: Of files in it, such as `actor/__0_0.distcp`.

    Returns:
        `bytes` and `xxh3_128` by name, as a manifest has them under `files`.
    """
    listed = list(names)
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        sums = list(threads.map(lambda name: _sum(folder / name), listed))
    return {
        n: {"bytes": (folder / n).stat().st_size, "xxh3_128": s} for n, s in zip(listed, sums, strict=True)
    }


def files_in(folder: Path, part: str) -> list[str]:
    """Names, seen from an iteration's folder, of the files of one part of it: `actor`, `critic` or `trainer`."""
    return sorted(f"{part}/{path.name}" for path in (folder / part).iterdir() if path.is_file())


def is_listed(part: Path) -> bool:
    """Whether the manifest beside a part of a checkpoint, as `iter_0000012/actor`, has checksums of it."""
    return bool(_listed(part))


def refuse_misfits(part: Path) -> None:
    """Refuse a part of a checkpoint whose files are not those of its manifest, by their names and sizes.

    Args:
        part: Such as `iter_0000012/actor`; one without checksums has nothing to compare.

    Raises:
        ValueError: Names the first file.
    """
    listed = _listed(part)
    for name, kept in listed.items():
        path, wanted = part.parent / name, f"{kept['bytes']:,} bytes, as {MANIFEST} says"
        if not path.is_file():
            raise ValueError(f"{path}: wanted {wanted}, got no file; {_CHANGE}")
        if (size := path.stat().st_size) != kept["bytes"]:
            raise ValueError(f"{path}: wanted {wanted}, got {size:,}; {_CHANGE}")
    # What is hidden is of file systems and copying programs, and read by nobody.
    more = [
        n for n in files_in(part.parent, part.name) if n not in listed and not n.startswith(f"{part.name}/.")
    ]
    if listed and more:
        raise ValueError(
            f"{part.parent / more[0]}: wanted the files of {part.parent / MANIFEST} alone, got this one too; remove it"
        )


def refuse_changed(part: Path, name: str) -> None:
    """Refuse a part whose file `name` is not what was saved; without a checksum of it there is nothing to compare.

    Raises:
        ValueError: Names the file.
    """
    kept = _listed(part).get(f"{part.name}/{name}")
    if kept is not None and (line := _difference(part.parent, f"{part.name}/{name}", kept)):
        raise ValueError(line)


def changed_files(parts: Iterable[Path], share: tuple[int, int] = (0, 1)) -> list[str]:
    """Files that are not what was saved, a line each.

    Args:
        parts: Of checkpoints, such as `iter_0000012/actor`.
        share: `(number, of)`: only this process's share is read, by size.
    """
    files = [(part.parent, name, kept) for part in parts for name, kept in _listed(part).items()]
    files.sort(key=lambda file: -file[2]["bytes"])
    number, of = share
    own = files[number::of]
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return [line for line in threads.map(lambda file: _difference(*file), own) if line]


def _difference(folder: Path, name: str, kept: dict[str, Any]) -> str:
    try:
        found = _sum(folder / name)
    except OSError as error:
        return f"{folder / name} cannot be read: {error.strerror}; {_CHANGE}"
    if found == kept["xxh3_128"]:
        return ""
    return (
        f"{folder / name}: wanted the checksum {kept['xxh3_128']}, as {MANIFEST} says, got {found}; {_CHANGE}"
    )


def _listed(part: Path) -> dict[str, dict[str, Any]]:
    files = (read_manifest(part.parent) or {}).get("files", {})
    return {name: kept for name, kept in files.items() if name.startswith(f"{part.name}/")}


def _sum(path: Path) -> str:
    digest, buffer = xxhash.xxh3_128(), bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(view[:size])
    return digest.hexdigest()
