"""The command on a Ray cluster of its own: who can connect, how it ends, and nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from relax_lightning.checkpoints.folders import complete_iterations

pytest.importorskip("ray")

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
CLUSTER = (
    "{accelerator: cpu, resources: {actor: [1, 1], critic: [1, 1], rollout: [1, 1], advantages: [1, 0]}}"
)
WATCHED = "[{class_path: disturbances.EnvironmentWatch, init_args: {file: changes}}]"
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.fixture
def start(tmp_path):
    """A function that starts a training without an end, and gives its driver and all its processes once it trains."""
    started = []

    def start(*words):
        places = os.pathsep.join(map(str, (REPOSITORY, HERE)))
        line = ["fit", "--config", str(HERE.parent / "training" / "digits.yaml"), "--cluster", CLUSTER]
        line += ["--trainer.max_steps", "100000", "--trainer.enable_progress_bar", "true", *words]
        driver = subprocess.Popen(
            [sys.executable, "-m", "relax_lightning.cli", *line, "--trainer.default_root_dir", "run"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": places}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        started.append(driver)
        assert driver.stdout is not None
        first = driver.stdout.readline()
        assert first.startswith("iteration      1/100000  reward"), (first, driver.communicate()[1])
        process = psutil.Process(driver.pid)
        started.extend(parts := process.children(recursive=True))
        return driver, [process, *parts]

    yield start
    for process in started:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process.kill()


def test_all_listen_on_loopback_and_sigterm_saves_and_leaves_no_process(start, tmp_path):
    driver, processes = start("--tracking.mlflow", "{}", "--trainer.callbacks", WATCHED)
    assert len(processes) > 8
    listening = {(p.name(), c.laddr.ip) for p in processes for c in sockets(p)}
    assert len(listening) > 5
    assert [place for place in listening if place[1] not in LOOPBACK] == []
    driver.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 143, err
    assert "SIGTERM: this iteration ends, then the run is saved; a second SIGTERM aborts at once" in err
    (saved,) = complete_iterations(tmp_path / "run" / "checkpoints")
    assert f"Stopped after iteration {saved}; resume with --ckpt_path auto" in err
    assert any(line.startswith("checkpoints  ") for line in out.splitlines()[-3:])
    assert not left_of(processes)
    # MLflow was imported in its thread, and the main thread looks variables up without a lock.
    changes = (tmp_path / "changes").read_text().splitlines()
    assert any("NVTE_FLASH_ATTN" in line for line in changes)
    assert [line for line in changes if not line.startswith("MainThread False ")] == []
    assert (tmp_path / "run" / "mlruns.db").exists()


def test_a_dead_process_of_rays_is_named_after_the_run_is_saved(start, tmp_path):
    driver, processes = start()
    (gcs,) = (p for p in processes if p.name() == "gcs_server")
    gcs.kill()
    killed = time.monotonic()
    _, err = driver.communicate(timeout=120)
    assert driver.returncode == 1, err
    assert time.monotonic() - killed < 50
    (saved,) = complete_iterations(tmp_path / "run" / "checkpoints")
    told = f"Ray's gcs_server was killed or crashed (process {gcs.pid}); its logs are in "
    assert f"{told}" in err and "this iteration ends, then the run is saved" in err
    last = err.splitlines()[-2:]
    assert last[0].startswith(f"relax-lightning: {told}")
    assert last[1].startswith("The job ended; the last checkpoint is ") and f"iter_{saved:07d}" in last[1]
    assert "Traceback" not in err
    assert not left_of(processes)


def test_a_killed_driver_leaves_no_process(start):
    driver, processes = start()
    driver.kill()
    driver.communicate()
    # Ray's two agents try for a minute to tell the head of the cluster, which is gone as well.
    assert {p.name() for p in left_of(processes)} <= {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}


def sockets(process):
    """Where a process waits for others: TCP that listens, and UDP."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = process.net_connections("inet")
        return [
            c for c in found if c.status == psutil.CONN_LISTEN or (c.status == psutil.CONN_NONE and c.laddr)
        ]
    return []


def left_of(processes):
    """Those that live, after a moment in which they may end."""
    _, living = psutil.wait_procs(processes, timeout=20)
    return [p for p in living if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
