"""The command on a Ray cluster of its own: signals at the driver, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from relax_lightning.config.checkpoints import complete_iterations

pytest.importorskip("ray")

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
CLUSTER = (
    "{accelerator: cpu, resources: {actor: [1, 1], critic: [1, 1], rollout: [1, 1], advantages: [1, 0]}}"
)


def test_sigterm_at_the_driver_saves_and_leaves_no_process(tmp_path):
    # A mark in the environment, which every process that the command starts inherits.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RELAX_LIGHTNING_TEST": str(tmp_path)}
    words = ["fit", "--config", str(HERE.parent / "training" / "digits.yaml"), "--cluster", CLUSTER]
    words += ["--trainer.max_steps", "100000", "--trainer.enable_progress_bar", "true"]
    driver = subprocess.Popen(
        [sys.executable, "-m", "relax_lightning.cli", *words, "--trainer.default_root_dir", "run"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert driver.stdout is not None
    first = driver.stdout.readline()
    assert first.startswith("iteration      1/100000  reward"), (first, driver.communicate()[1])
    driver.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 143, err
    assert "SIGTERM: this iteration ends, then the run is saved; a second SIGTERM aborts at once" in err
    (saved,) = complete_iterations(tmp_path / "run" / "checkpoints")
    assert f"Stopped after iteration {saved}; resume with --ckpt_path auto" in err
    assert out.splitlines()[-2].startswith("checkpoints  ")
    assert not left_behind(tmp_path)


def left_behind(mark):
    """Processes that carry the mark, after a moment in which they may end."""
    deadline = time.monotonic() + 10
    while (left := [p for p in psutil.process_iter() if carries(p, mark)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def carries(process, mark):
    """Whether a living process has the mark in its environment."""
    try:
        return process.environ().get("RELAX_LIGHTNING_TEST") == str(mark)
    except psutil.Error:
        return False
