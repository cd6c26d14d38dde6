"""One Ray cluster for all tests: starting one takes ten seconds or more."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

# Ray reads these when it is imported. A cluster that `ray.init` starts asks for a token; this one is of this session.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex()

HERE = Path(__file__).resolve().parent
TRAINING = HERE.parent / "training"


@pytest.fixture(scope="session")
def address():
    """The address of a cluster with 4 CPUs, whatever the machine has."""
    pytest.importorskip("ray")
    paths = (HERE.parent.parent, HERE, TRAINING)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
    }
    for _ in range(3):
        # Ray gives its own processes 30 s to come up, which a busy machine may take from them.
        host = subprocess.Popen(
            [sys.executable, str(HERE / "cluster_host.py"), "4"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert host.stdin is not None and host.stdout is not None
        address = host.stdout.readline().strip()
        if address:
            break
    assert address
    yield address
    host.stdin.close()
    assert host.wait(60) == 0
