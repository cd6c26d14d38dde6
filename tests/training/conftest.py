"""Whole runs, small ones, in this process, through the product's own entry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
Fit = Callable[..., Any]


@pytest.fixture(scope="session")
def recorder() -> Any:
    """The module of the recording and disturbing callbacks, importable by its name as a user's own would be."""
    sys.path.insert(0, str(HERE))
    import recorder

    yield recorder
    sys.path.remove(str(HERE))


@pytest.fixture(scope="session")
def fit(recorder: Any) -> Fit:
    """A function that trains in a folder and gives the recorder of the run.

    Args:
        folder: The run folder.
        overrides: `key=value`.
        callbacks: Disturbing callbacks, each a class name of `recorder.py` and its arguments.
        ckpt_path: `auto` or a folder, as on the command line.
    """
    from relax_lightning.config.files import resumed_folder
    from relax_lightning.config.loader import load, resolve
    from relax_lightning.lightning_cli import run

    def fit(
        folder: Path,
        *overrides: str,
        callbacks: tuple[tuple[str, dict[str, Any]], ...] = (),
        ckpt_path: str | None = None,
    ) -> Any:
        wanted = [{"class_path": "recorder.Recorder"}]
        wanted += [
            {"class_path": f"recorder.{name}", "init_args": arguments} for name, arguments in callbacks
        ]
        keys = [f"trainer.default_root_dir={folder}", f"trainer.callbacks={wanted}", *overrides]
        config = resolve(load([str(HERE / "digits.yaml")], keys))
        resumed = resumed_folder(config, ckpt_path) if ckpt_path else None
        status = run("fit", config, str(resumed) if resumed else None)
        recorder.Recorder.last.status = status
        return recorder.Recorder.last

    return fit
