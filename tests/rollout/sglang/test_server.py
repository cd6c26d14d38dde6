"""The life of a server of our own, played by a program that only answers."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.sglang import server as sglang_server
from relax_lightning.rollout.sglang.engine import SGLangEngine
from tests.rollout.letters import Letters
from tests.rollout.processes import assert_gone

FAKE = Path(__file__).parents[1] / "fake_sglang.py"


@pytest.fixture
def fake_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sglang_server, "_HOST", (str(FAKE),))
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parent.parent.parent))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


def test_a_second_death_is_an_error(fake_host: None, tiny_actor: Any) -> None:
    engine = SGLangEngine()
    engine.attach(tiny_actor, Letters())
    engine.publish()
    with (
        pytest.warns(UserWarning, match=r"SGLang died during generation \(exit status 7"),
        pytest.raises(
            RuntimeError, match=r"died again during generation \(exit status 7\); the end of its log"
        ) as caught,
    ):
        engine.generate([[1, 2]], [0], SamplingConfig(), seed=0)
    log = Path(str(caught.value).split("its log ")[1].split(":\n")[0])
    assert "the last words of a server" in str(caught.value)
    assert "the last words of a server" in log.read_text()
    engine.close()


def test_a_death_between_two_publications_costs_nothing_else(fake_host: None, tiny_actor: Any) -> None:
    engine = SGLangEngine()
    engine.attach(tiny_actor, Letters())
    seen = []

    @contextmanager
    def vacated() -> Iterator[None]:
        assert engine._server is not None
        before = engine._server
        yield
        seen.append(engine._server is not before and engine._server.process.poll() is None)

    engine.borrow_policy(nullcontext, vacated)
    engine.publish()
    assert engine._server is not None
    engine._server.process.kill()
    weight = next(tiny_actor.model.parameters()).data
    kept = weight.clone()
    weight.add_(1)  # as an update does, while the engine is idle
    with pytest.warns(UserWarning, match=r"SGLang died during the publication \(killed by SIGKILL"):
        assert engine.publish() == 2
    weight.copy_(kept)
    assert seen == [True]
    assert not engine.weights_lost
    engine.close()


def test_a_server_that_does_not_start(
    fake_host: None, tiny_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_server, "_HOST", ("-c", "raise SystemExit('no such device')"))
    engine = SGLangEngine()
    engine.attach(tiny_actor, Letters())
    with pytest.raises(RuntimeError, match=r"SGLang did not start \(exit status 1\);(.|\n)*no such device"):
        engine.publish()
    monkeypatch.setattr(sglang_server, "_HOST", ("-c", "import time; time.sleep(600)"))
    engine = SGLangEngine(startup_timeout_seconds=1)
    engine.attach(tiny_actor, Letters())
    assert engine._server is not None
    sleeping = psutil.Process(engine._server.process.pid)
    with pytest.raises(RuntimeError, match=r"did not start within 1 s; raise .*startup_timeout_seconds"):
        engine.publish()
    assert_gone([sleeping])


def test_the_log_shows_the_first_error_before_the_last_ones(
    fake_host: None, tiny_actor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
print('[TP1] Scheduler hit an exception: Traceback (most recent call last):')
print('  File "a.py", line 1', '    load()', 'RuntimeError: CUDA error: invalid argument', sep='\\n')
for n in range(40): print('[TP0] Traceback (most recent call last):', f'Error: peer {n} is gone', sep='\\n')
raise SystemExit('killed')
"""
    monkeypatch.setattr(sglang_server, "_HOST", ("-c", program))
    engine = SGLangEngine()
    engine.attach(tiny_actor, Letters())
    with pytest.raises(RuntimeError, match="did not start") as caught:
        engine.publish()
    end, first = str(caught.value).split("the first error in it:")
    assert "peer 39 is gone" in end
    assert first.splitlines()[1:] == [
        "  [TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '    File "a.py", line 1',
        "      load()",
        "  RuntimeError: CUDA error: invalid argument",
    ]


OWNER = """
import json, os, signal, sys
from relax_lightning.rollout.sglang import server as sglang_server
sglang_server._HOST = (sys.argv[1],)
server = sglang_server.SGLangServer({}, None, defaults={}, chosen={}, environment={}, on_gpu=False, seeded=True,
                                    timeout_seconds=5, startup_timeout_seconds=60)
server.wait_until_ready()
print(json.dumps([server.process.pid, str(server.log.parent)]), flush=True)
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("sys.exit(3)", 3), ("raise ValueError", 1), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_no_process_outlives_its_owner(end: str, status: int, tmp_path: Path) -> None:
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, str(FAKE), end],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(FAKE.parent.parent.parent)},
        check=False,
    )
    assert owner.returncode == status, owner.stderr
    pid, folder = json.loads(owner.stdout)
    if psutil.pid_exists(pid):
        assert_gone([psutil.Process(pid)])
    assert Path(folder).exists() == (status < 0)
