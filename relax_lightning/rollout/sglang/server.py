"""An SGLang server of our own: a process that is started, watched, and gone when we are."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from relax_lightning.rollout.sglang.client import SGLangClient
from relax_lightning.run.gpu_memory import ALLOCATOR_VARIABLES
from relax_lightning.run.rendezvous import LOOPBACK, free_port, past_proxy

STAND_IN = Path(__file__).parent / "sgl_kernel_cpu"
"""Folder that holds the stand-in for `sgl_kernel`."""

_HOST = ("-m", "relax_lightning.rollout.sglang.host")
_LAUNCHED = re.compile(r"(RANK|WORLD_SIZE)$|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC)_")
"""Variables of a rank: with those of torchrun, SGLang's processes would look for each other at its store, and wait."""
_LOG_LINES = 25
_TRACEBACK = "Traceback (most recent call last)"
_ERROR_LINES = 8
_CLEARING_SECONDS = 5.0


class SGLangServer:
    """A running server, in a session of its own: neither Ctrl-C in the terminal nor our signals reach it.

    Args:
        model: `config.json` of the model.
        tokenizer: Saved for the server when it can be; None: the server works on token ids alone.
        defaults: Arguments of ours, left out where the installed version lacks them.
        chosen: The user's arguments.
        environment: Variables besides the process's own.
        on_gpu: False puts the stand-in for `sgl_kernel` on the server's path.
        seeded: Draw by seed, sample id and position.
        timeout_seconds: How long an answer may take.
        startup_timeout_seconds: How long the start may take.
        absent: Rows of the vocabulary that stand for no token.
    """

    def __init__(
        self,
        model: dict[str, Any],
        tokenizer: Any,
        *,
        defaults: dict[str, Any],
        chosen: dict[str, Any],
        environment: dict[str, str],
        on_gpu: bool,
        seeded: bool,
        timeout_seconds: float,
        startup_timeout_seconds: float,
        absent: Sequence[int] = (),
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="relax-lightning-sglang-"))
        self.log = self._folder / "server.log"
        self._is_ready = False
        self._deadline = time.monotonic() + startup_timeout_seconds
        self._startup_timeout_seconds = startup_timeout_seconds
        model_path = self._folder / "model"
        model_path.mkdir()
        (model_path / "config.json").write_text(json.dumps(model))
        if tokenizer is not None:
            tokenizer.save_pretrained(model_path)
        port, api_key = free_port(LOOPBACK), secrets.token_urlsafe()
        own = {"model_path": str(model_path), "host": LOOPBACK, "port": port, "api_key": api_key}
        self.client = SGLangClient(
            f"http://{LOOPBACK}:{port}", api_key=api_key, timeout_seconds=timeout_seconds
        )
        request = {"parent": os.getpid(), "defaults": defaults | own, "chosen": chosen}
        request |= {"absent": list(absent), "seeded": seeded}
        self.process = _start(request, _environment(environment, on_gpu), self.log)
        self._end = weakref.finalize(self, _end, self.process, self._folder)

    def wait_until_ready(self) -> None:
        """Return when the server answers.

        Raises:
            RuntimeError: It ended, or took too long; with the end of its log.
        """
        while not self._is_ready:
            self._is_ready = self.client.is_ready()
            if self.process.poll() is not None:
                self._fail(f"SGLang did not start ({self.exit_reason()})")
            if time.monotonic() > self._deadline:
                change = "raise data.rollout.engine.init_args.startup_timeout_seconds if it was still busy"
                self._fail(f"SGLang did not start within {self._startup_timeout_seconds:g} s; {change}")
            if not self._is_ready:
                time.sleep(0.5)

    def _fail(self, message: str) -> NoReturn:
        message = f"{message}; {self.log_end()}"
        self.close(keep_log=True)
        raise RuntimeError(message)

    def exit_reason(self) -> str:
        """How the process ended; waits a moment for one that is ending."""
        try:
            status = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "its process still runs"
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def log_end(self) -> str:
        """The last lines of the log, where they come from, and the first error if it stands before them.

        When one of several processes fails, the others' complaints about it come last.
        """
        lines = self.log.read_text(errors="replace").splitlines()
        before, end = lines[:-_LOG_LINES], lines[-_LOG_LINES:]
        shown = [f"the end of its log {self.log}:", *end]
        start = next((n for n, line in enumerate(before) if _TRACEBACK in line), None)
        if start is not None:
            rest = range(start + 1, len(lines))
            last = next((n for n in rest if not lines[n].startswith(" ")), len(lines) - 1)
            first_lines = lines[max(start, last - _ERROR_LINES) : last + 1]
            shown = [*shown, "the first error in it:", *first_lines]
        return "\n  ".join(shown)

    def close(self, *, keep_log: bool = False) -> None:
        """Kill the server and all that it started; removes its folder unless the log is to be kept."""
        if keep_log:
            _kill(self.process)
            self._end.detach()
        else:
            self._end()


def _environment(more: dict[str, str], on_gpu: bool) -> dict[str, str]:
    # SGLang's memory saver, which gives weights and cache up, does not work with segments that grow.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not _LAUNCHED.match(name) and not ALLOCATOR_VARIABLES.match(name)
    }
    environment = kept | more
    # It asks itself by HTTP whether it is up.
    environment |= past_proxy(environment)
    if not on_gpu:
        paths = [str(STAND_IN), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def _start(request: dict[str, Any], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *_HOST],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    # The request holds the key of the server, so it is no argument that others could list.
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode())
    process.stdin.close()
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the host: then the kernel kills its schedulers, and Python's resource tracker removes shared memory."""
    process.kill()
    process.wait()
    deadline = time.monotonic() + _CLEARING_SECONDS
    while _lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    if _lives(process.pid):
        os.killpg(process.pid, signal.SIGKILL)


def _lives(group: int) -> bool:
    """Whether a process of the group is more than a zombie."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    _kill(process)
    shutil.rmtree(folder, ignore_errors=True)
