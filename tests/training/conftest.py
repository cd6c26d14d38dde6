"""Whole runs, small ones, in this process, through the product's own entry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
Fit = Callable[..., Any]
Disturbances = tuple[tuple[str, dict[str, Any]], ...]


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
    from relax_lightning.checkpoints.resuming import resumed_folder
    from relax_lightning.config.loader import load, resolve
    from relax_lightning.lightning_cli import run

    def fit(
        folder: Path,
        *overrides: str,
        callbacks: Disturbances = (),
        ckpt_path: str | None = None,
    ) -> Any:
        keys = [f"trainer.default_root_dir={folder}", _listed(callbacks), *overrides]
        config = resolve(load([str(HERE / "digits.yaml")], keys))
        resumed = resumed_folder(config, ckpt_path) if ckpt_path else None
        status = run("fit", config, str(resumed) if resumed else None)
        recorder.Recorder.last.status = status
        return recorder.Recorder.last

    return fit


@pytest.fixture(scope="session")
def forked(recorder: Any) -> Iterator[Callable[..., Any]]:
    """A function that runs `relax-lightning` in a process of its own.

    Args:
        words: The arguments of the command line.
        folder: The working directory, in which `log.txt` holds what was printed.
        ranks: Start as many ranks of one job; None: a process that nobody launched.

    Returns:
        The exit code (negative: the signal that ended it), of ranks a list of them, what was printed, and the time it
        ended.
    """
    places = (str(HERE.parent.parent), str(HERE), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    server = subprocess.Popen(
        [sys.executable, str(HERE / "process_server.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    requests, answers = server.stdin, server.stdout

    def forked(words: list[str], folder: Path, ranks: int | None = None) -> Any:
        folder.mkdir(exist_ok=True)
        log = folder / "log.txt"
        log.unlink(missing_ok=True)
        request = {"argv": words, "folder": str(folder), "log": str(log), "ranks": ranks}
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        answer = json.loads(answers.readline())
        return answer["status"], log.read_text(), answer["ended"]

    assert answers.readline() == "ready\n"
    yield forked
    requests.close()
    server.wait()


@pytest.fixture(scope="session")
def command(forked: Callable[..., Any]) -> Callable[..., Any]:
    """A function that trains by `relax-lightning fit` in a process of its own, and gives what `forked` does.

    Args:
        folder: The run folder.
        overrides: `key=value`.
        callbacks: As for `fit`.
        ckpt_path: As on the command line.
        ranks: As for `forked`.
    """

    def command(
        folder: Path,
        *overrides: str,
        callbacks: Disturbances = (),
        ckpt_path: str | None = None,
        ranks: int | None = None,
    ) -> Any:
        keys = (f"trainer.default_root_dir={folder}", _listed(callbacks), *overrides)
        words = ["fit", "--config", str(HERE / "digits.yaml"), *(f"--{key}" for key in keys)]
        words += ["--ckpt_path", ckpt_path] if ckpt_path else []
        return forked(words, folder, ranks)

    return command


def _listed(callbacks: Disturbances) -> str:
    entries = [{"class_path": "recorder.Recorder"}]
    entries += [
        {"class_path": name if "." in name else f"recorder.{name}", "init_args": arguments}
        for name, arguments in callbacks
    ]
    return f"trainer.callbacks={entries}"


def pytest_configure(config: pytest.Config) -> None:
    """LightningCLI warns when the process has arguments of its own, as pytest's has."""
    config.addinivalue_line("filterwarnings", "ignore:LightningCLI's args parameter:UserWarning")
