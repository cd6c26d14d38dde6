"""The manifest of a checkpoint: what was saved, by what, and the checksums of its files. Loads nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from relax_lightning.config.building import INVALID, Problems, build
from relax_lightning.config.faults import fault
from relax_lightning.config.model import ArchitectureConfig

MANIFEST = "manifest.json"
FORMAT = 1
"""Of the manifest and of what lies beside it; older checkpoints say none."""

_NUMBER, _TEXT, _MAPPING = "a whole number of at least 0", "text", "a mapping"
_WANTED = {
    "format": _NUMBER,
    "iteration": _NUMBER,
    "iteration_offset": _NUMBER,
    "pair": _TEXT,
    "run_key": _TEXT,
    "versions": _MAPPING,
    "parallel": _MAPPING,
    "files": _MAPPING,
}
_WANTED_OF_MODEL = {
    "architecture": _MAPPING,
    "distributed_optimizer": "true or false",
    "hf_checkpoint": f"{_TEXT} or null",
    "tokenizer": f"{_TEXT} or null",
    "dtype": "float32 or bfloat16",
}
_CHANGE = "use another checkpoint"


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """The manifest of an iteration's folder, or None where it lacks one (a plain Megatron checkpoint).

    Raises:
        ValueError: It cannot be read, or something in it has another type than is written there.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path}: wanted a JSON mapping, got {error}; {_CHANGE}") from error
    if not isinstance(manifest, dict):
        raise ValueError(f"{path}: wanted a JSON mapping, got {type(manifest).__name__}; {_CHANGE}")
    _refuse_types(path, "", manifest, _WANTED)
    if manifest.get("format", 0) > FORMAT:
        message = fault(
            f"format {FORMAT} or older", manifest["format"], "read it with the version that wrote it"
        )
        raise ValueError(f"{path}: {message}")
    number = Path(folder).name.removeprefix("iter_")
    if number.isdecimal() and manifest.get("iteration", int(number)) != int(number):
        raise ValueError(f"{path}: {fault(f'iteration {int(number)}', manifest['iteration'], _CHANGE)}")
    offset, iteration = manifest.get("iteration_offset", 0), manifest.get("iteration", 0)
    if offset > iteration:
        raise ValueError(f"{path}: iteration_offset: {fault(f'at most {iteration}', offset, _CHANGE)}")
    key = manifest.get("run_key", "")
    # It becomes a file's name.
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,200}", key) or key.startswith("."):
        raise ValueError(f"{path}: {fault('a run_key of letters, digits, dots and dashes', key, _CHANGE)}")
    _refuse_files(path, manifest.get("files", {}))
    if manifest.get("model") is not None:
        _refuse_model(path, manifest["model"])
    return manifest


def _refuse_types(path: Path, where: str, values: dict[str, Any], kinds: dict[str, str]) -> None:
    for name, wanted in kinds.items():
        if name in values and not _fits(wanted, values[name]):
            raise ValueError(f"{path}: {where}{name}: {fault(wanted, values[name], _CHANGE)}")


def _fits(wanted: str, value: Any) -> bool:
    if wanted == _NUMBER:
        return type(value) is int and 0 <= value < 2**63
    if wanted == _MAPPING:
        return isinstance(value, dict)
    if wanted == _WANTED_OF_MODEL["dtype"]:
        return value in ("float32", "bfloat16")
    if wanted == _WANTED_OF_MODEL["distributed_optimizer"]:
        return isinstance(value, bool)
    return isinstance(value, str) or (value is None and wanted != _TEXT)


def _refuse_files(path: Path, files: dict[str, Any]) -> None:
    for name, kept in files.items():
        described = (
            isinstance(kept, dict)
            and _fits(_NUMBER, kept.get("bytes"))
            and _fits(_TEXT, kept.get("xxh3_128"))
        )
        if not described or not re.fullmatch(r"[^/]+/[^/]+", name) or ".." in name.split("/"):
            raise ValueError(f"{path}: files: {name}: {fault('bytes and xxh3_128 of a file', kept, _CHANGE)}")


def _refuse_model(path: Path, model: Any) -> None:
    if not isinstance(model, dict) or "architecture" not in model:
        raise ValueError(f"{path}: model: {fault('a mapping with the architecture', model, _CHANGE)}")
    _refuse_types(path, "model.", model, _WANTED_OF_MODEL)
    problems = Problems()
    if (
        build(ArchitectureConfig, model["architecture"], "model.architecture", problems) is INVALID
        or problems.found
    ):
        raise ValueError(f"{path}: {'; '.join(problems.lines())}")
