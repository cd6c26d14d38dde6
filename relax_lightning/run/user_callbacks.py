"""A user's callbacks, looked at before anything is built: only importing them can tell."""

from __future__ import annotations

import inspect
from typing import Any

from lightning.pytorch import Callback, callbacks

from relax_lightning.run.import_path import import_object


def check_callbacks(entries: list[dict[str, Any]]) -> None:
    """Import the user's callbacks and hold their arguments against their signatures.

    Raises:
        ValueError: One cannot be imported, is no callback, or does not take its `init_args`.
    """
    for number, entry in enumerate(entries):
        key, path = f"trainer.callbacks.{number}.class_path", entry["class_path"]
        # LightningCLI knows Lightning's own by their names alone.
        found = getattr(callbacks, path, None) or import_object(key, path)
        if not (isinstance(found, type) and issubclass(found, Callback)):
            raise ValueError(f"{key}: wanted a class of callbacks, got {path}, which is {found!r}")
        try:
            inspect.signature(found).bind(**(entry.get("init_args") or {}))
        except TypeError as error:
            raise ValueError(
                f"trainer.callbacks.{number}.init_args: {path} does not take them: {error}"
            ) from error
