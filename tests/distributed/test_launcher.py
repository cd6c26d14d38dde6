"""Whole trainings on a real Ray cluster, by the launcher, with the working directory's own callbacks."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from relax_lightning.checkpoints.folders import complete_iterations
from relax_lightning.config.loader import load, resolve

pytest.importorskip("ray")

from relax_lightning.distributed.launcher import launch

HERE = Path(__file__).resolve().parent
DIGITS = HERE.parent / "training" / "digits.yaml"
UNTIMED = ("phase/", "perf/", "memory/")
ENTRY = "relax_lightning.lightning_cli.run"


def configured(folder, num_ranks, address, *overrides):
    """The resolved configuration of a tiny run."""
    shape = f"[1, {num_ranks}]"
    keys = [
        f"trainer.default_root_dir={folder}",
        "callbacks.checkpoint={every_n_steps: 1}",
        f"cluster={{address: {address}, accelerator: cpu, max_restarts: 1, "
        f"resources: {{actor: {shape}, critic: {shape}, rollout: {shape}, advantages: [1, 0]}}}}",
        *overrides,
    ]
    return resolve(load([str(DIGITS)], keys))


def points_of(folder):
    """Every (metric, step) of the journal and how often it is there, and the values that are no times."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [((name, r["step"]), value) for r in records for name, value in r["metrics"].items()]
    return Counter(p for p, _ in points), {p: v for p, v in points if not p[0].startswith(UNTIMED)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a user's own callbacks: a test's, and the one of docs/callbacks.md."""
    for path in (HERE / "disturbances.py", HERE.parent.parent / "examples" / "my_callbacks.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def alone(folder, *overrides):
    """The journal of the same run in this process, without Ray."""
    from relax_lightning.lightning_cli import run

    config = resolve(load([str(DIGITS)], [f"trainer.default_root_dir={folder}", *overrides]))
    assert run("fit", config, None) == 0
    return points_of(folder)[1]


@pytest.mark.slow
def test_a_stopped_rank_is_started_again_and_the_run_is_that_of_one_process(address, folder, capfd):
    own = (
        "trainer.callbacks=[{class_path: disturbances.StopOnce, init_args: {iteration: 3}}, "
        "{class_path: my_callbacks.BestResponse, init_args: {target: 2.0}}]"
    )
    keys = ("trainer.max_steps=3", "trainer.enable_progress_bar=true", own)
    assert launch(ENTRY, "fit", configured("run", 1, address, *keys), None) == 0
    out, err = capfd.readouterr()
    counts, values = points_of(folder / "run")
    assert set(counts.values()) == {1}
    assert values == alone(folder / "alone", "trainer.max_steps=3")
    assert complete_iterations(folder / "run" / "checkpoints")[-1] == 3
    stopped = "rank 0 (actor, critic and rollout) was stopped (SIGSTOP) and did not go on for 30 s"
    assert f"relax-lightning: {stopped} in its critic phase (process " in err
    assert "about to be stopped" in err
    assert "The job ended; the last checkpoint is" in err and "iter_0000002" in err
    assert "Restart 1 of 1\n" in err
    lines = out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("iteration ")] == ["1/3", "2/3", "3/3"]
    assert sum(line.startswith("best response: ") for line in lines) == 4
    assert sum(line.startswith("checkpoints ") for line in lines) == 1
    assert not any("raylet" in line for line in lines)


def test_two_ranks_train_as_one_and_a_signal_at_one_of_them_saves_and_ends_both(address, folder, capfd):
    own = "trainer.callbacks=[{class_path: disturbances.Signal, init_args: {iteration: 2}}]"
    # One optimizer step an iteration: Adam's first one makes much of the last digit.
    one_step = ("model.global_batch_size=16", "model.algorithm.num_ppo_epochs=1")
    config = configured("run", 2, address, "trainer.max_steps=9", own, *one_step)
    assert launch(ENTRY, "fit", config, None) == 143
    assert "Stopped after iteration 2; resume with --ckpt_path auto" in capfd.readouterr().err
    assert complete_iterations(folder / "run" / "checkpoints") == [1, 2]
    counts, values = points_of(folder / "run")
    assert {step for _, step in counts} == {1, 2} and set(counts.values()) == {1}
    whole = alone(folder / "alone", "trainer.max_steps=1", *one_step)
    for name in ("reward/mean", "advantages/mean", "critic/value_loss", "actor/pg_loss", "actor/grad_norm"):
        assert values[name, 1] == pytest.approx(whole[name, 1], rel=1e-5, abs=1e-7), name


def test_a_cluster_without_enough_is_refused_at_once_with_a_table(address, folder, capfd):
    with pytest.raises(ValueError, match="the cluster at") as caught:
        launch(ENTRY, "fit", configured("run", 64, address), None)
    assert str(caught.value) == (
        f"cluster.resources: wanted 64 CPUs for its ranks, the cluster at {address} has 4 free; lower it, wait until "
        "other jobs have ended, or add machines\n"
        "  resource    wanted      available   in all\n"
        "  GPU         0           0           0\n"
        "  CPU         64          4           4"
    )
    with pytest.raises(ValueError, match="wanted 5000 CPUs for its ranks, this machine has"):
        launch(ENTRY, "fit", configured("run", 5000, "null"), None)
    with pytest.raises(ValueError, match=r"cluster\.address: no Ray cluster answers at 127.0.0.1:1"):
        launch(ENTRY, "fit", configured("run", 1, "127.0.0.1:1"), None)
    assert not (folder / "run").exists()
