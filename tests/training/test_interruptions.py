"""Signals and kills, on the command in a process of its own, with MLflow."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from relax_lightning.checkpoints.folders import complete_iterations, read_tracker
from relax_lightning.tracking.mlflow_run import set_environment

HERE = Path(__file__).resolve().parent
MLFLOW = "tracking.mlflow={experiment: interruptions}"
SIX = ("trainer.max_steps=6", "callbacks.checkpoint={every_n_steps: 3, save_last: true}")
UNTIMED = ("phase/", "perf/", "memory/")


def points_of(folder):
    """Every (metric, step) of the journal, and how often it is there; and the values without times."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len({record["run"] for record in records}) == 1
    points = [((name, r["step"]), value) for r in records for name, value in r["metrics"].items()]
    return Counter(point for point, _ in points), {p: v for p, v in points if not p[0].startswith(UNTIMED)}


def all_runs(folder):
    """All runs that MLflow has."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlruns.db'}")
    return client.search_runs([e.experiment_id for e in client.search_experiments()])


def mlflow_run(folder):
    """The one run that MLflow has, and how often each (metric, step) is in it."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlruns.db'}")
    (run,) = all_runs(folder)
    histories = [client.get_metric_history(run.info.run_id, name) for name in run.data.metrics]
    return run, Counter((point.key, point.step) for history in histories for point in history)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An MLflow database without a run: making its tables takes longer than a whole training here."""
    set_environment()
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlruns.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def folder(database, tmp_path):
    """A run folder."""
    shutil.copy(database, tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The journal of six iterations that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    status, output, _ = command(folder, *SIX)
    assert status == 0, output
    return points_of(folder)[1]


def test_kill_after_five_and_resume_from_three(command, whole, folder):
    killer = (("Signaler", {"hook": "on_rollout_end", "iteration": 6, "signals": ["SIGKILL"]}),)
    assert command(folder, *SIX, MLFLOW, callbacks=killer)[0] == -9
    assert read_tracker(folder / "checkpoints") == 3
    assert {step for _, step in points_of(folder)[0]} == {1, 2, 3, 4, 5}
    status, output, _ = command(folder, *SIX, MLFLOW, ckpt_path="auto")
    assert status == 0, output
    counts, values = points_of(folder)
    assert set(counts.values()) == {1} and values == whole
    run, sent = mlflow_run(folder)
    assert sent == counts and run.info.status == "FINISHED"
    assert complete_iterations(folder / "checkpoints") == [3, 6]


@pytest.mark.slow
def test_a_disk_that_fills_while_a_checkpoint_is_written(command, tmp_path):
    filler = (("DiskFiller", {"hook": "on_iteration_end", "iteration": 2}),)
    keys = ("trainer.max_steps=3", "callbacks.checkpoint={every_n_steps: 1}")
    status, output, _ = command(tmp_path, *keys, callbacks=filler)
    assert status == 1 and "Traceback" not in output, output
    root = tmp_path / "checkpoints"
    assert f"relax-lightning: iteration 2 cannot be saved in {root}, where " in output
    assert output.rstrip().splitlines()[-1].endswith(f"resume with --ckpt_path {root / 'iter_0000001'}")
    assert complete_iterations(root) == [1]
    assert command(tmp_path, *keys, ckpt_path="auto")[0] == 0
    assert complete_iterations(root) == [2, 3]


@pytest.mark.slow
def test_a_traceback_ends_with_where_to_resume_and_validate_is_a_record_of_its_own(command, forked, folder):
    # A failure that is none of ours keeps its traceback; what trains again with another rate is recorded as such.
    breaker = (("Breaker", {"hook": "on_rollout_end", "iteration": 4}),)
    keys = (
        "trainer.max_steps=5",
        "callbacks.checkpoint={every_n_steps: 2}",
        "model.actor.optimizer.decay=constant",
    )
    status, output, _ = command(folder, *keys, MLFLOW, callbacks=breaker)
    assert status == 1 and "Traceback" in output
    newest = folder / "checkpoints" / "iter_0000002"
    assert output.rstrip().splitlines()[-1].endswith(f"resume with --ckpt_path {newest}"), output
    was = points_of(folder)[1]["actor/lr", 3]
    changed = (*keys, MLFLOW, "model.actor.optimizer.lr=0.0005")
    status, output, _ = command(folder, *changed, ckpt_path="auto")
    assert status == 0, output
    counts, values = points_of(folder)
    assert set(counts.values()) == {1} and values["actor/lr", 3] == 0.0005 != was
    run, sent = mlflow_run(folder)
    assert sent["actor/lr", 3] == 2 and sent["phase/rollout_seconds", 3] == 1 and sent["actor/lr", 2] == 1

    record = (folder / "metrics.jsonl").read_bytes()
    words = ["validate", "--config", str(HERE / "digits.yaml"), f"--trainer.default_root_dir={folder}"]
    sets = "{hot: {class_path: relax_lightning.data.digits.ReversedDigits, init_args: {size: 5}}}"
    for n in (1, 4):
        more = (
            f"data.rollout.validation={sets}",
            f"data.rollout.validation.hot.n_samples_per_prompt={n}",
            MLFLOW,
        )
        status, output, _ = forked(
            [*words, *(f"--{key}" for key in more), "--ckpt_path", str(newest)], folder
        )
        assert status == 0, output
    assert (folder / "metrics.jsonl").read_bytes() == record
    lines = [json.loads(line) for line in (folder / "validate.jsonl").read_text().splitlines()]
    assert [line["validation"]["hot"]["n_samples_per_prompt"] for line in lines] == [1, 4]
    assert [line["checkpoint"] for line in lines] == [str(newest)] * 2 and [
        line["step"] for line in lines
    ] == [2, 2]
    assert "val/hot/reward_mean" in lines[1]["metrics"]
    assert all(line["trained_by"] == json.loads(record.splitlines()[0])["run"] for line in lines)
    runs = all_runs(folder)
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == run.info.run_id]
    assert (
        len(runs) == 3
        and len(children) == 2
        and all("val/hot/reward_mean" in r.data.metrics for r in children)
    )


@pytest.mark.parametrize(
    ("name", "number"), [pytest.param("SIGINT", 2, marks=pytest.mark.slow), ("SIGTERM", 15)]
)
def test_the_first_signal_ends_the_iteration_and_saves(command, whole, folder, name, number):
    signaler = (("Signaler", {"hook": "on_values_computed", "iteration": 2, "signals": [name]}),)
    status, output, _ = command(folder, *SIX, MLFLOW, callbacks=signaler)
    assert status == 128 + number, output
    assert f"{name}: this iteration ends, then the run is saved; a second {name} aborts at once" in output
    assert "Stopped after iteration 2; resume with --ckpt_path auto" in output
    assert complete_iterations(folder / "checkpoints") == [2]
    assert mlflow_run(folder)[0].info.status == "KILLED"
    status, output, _ = command(folder, *SIX, MLFLOW, ckpt_path="auto")
    assert status == 0, output
    run, sent = mlflow_run(folder)
    assert set(sent.values()) == {1} and run.info.status == "FINISHED"
    assert points_of(folder)[1] == whole


@pytest.mark.parametrize(
    ("name", "number"), [("SIGINT", 2), pytest.param("SIGTERM", 15, marks=pytest.mark.slow)]
)
def test_the_second_signal_aborts_at_once(command, tmp_path, name, number):
    signaler = (("Signaler", {"hook": "on_values_computed", "iteration": 2, "signals": [name, name]}),)
    status, output, ended = command(tmp_path, *SIX, callbacks=signaler)
    assert status == -number, output
    assert ended - float((tmp_path / "sent").read_text()) < 5
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["run.lock"]


# SIGKILL while the critic is written; between the rename and the tracker; while an old checkpoint is pruned.
KILLS = {
    "critic": ({"event": "open", "text": ".iter_0000004.partial/critic/__0"}, 2),
    "tracker": ({"event": "os.rename", "text": ".latest_checkpointed_iteration.txt.partial", "count": 3}, 2),
    "prune": ({"event": "shutil.rmtree", "text": "checkpoints/iter_0000002"}, 6),
}


@pytest.mark.parametrize(
    "moment",
    [pytest.param(moment, marks=[] if moment == "tracker" else pytest.mark.slow) for moment in KILLS],
)
def test_kill_during_the_save(command, whole, tmp_path, moment):
    (arguments, saved) = KILLS[moment]
    root = tmp_path / "checkpoints"
    keys = ("trainer.max_steps=6", "callbacks.checkpoint={every_n_steps: 2}")
    if moment == "tracker":
        arguments = {**arguments, "count": 2}
    status, output, _ = command(tmp_path, *keys, callbacks=(("Killer", arguments),))
    assert status == -9, output
    assert read_tracker(root) == saved
    leftovers = [path.name for path in root.iterdir() if "partial" in path.name]
    assert bool(leftovers) is (moment != "prune")
    assert (root / "iter_0000004").exists() is (moment != "critic")
    status, output, _ = command(tmp_path, *keys, ckpt_path="auto")
    assert status == 0, output
    assert complete_iterations(root)[-1] == 6 and not [
        path for path in root.iterdir() if path.name.startswith(".")
    ]
    assert points_of(tmp_path)[1] == whole


@pytest.mark.slow
def test_a_broken_run_exits_with_1_and_says_where_to_resume(command, folder):
    poisoner = (("Poisoner", {"hook": "on_iteration_start", "iteration": 2}),)
    keys = ("trainer.max_steps=6", "callbacks.checkpoint={every_n_steps: 1}")
    status, output, _ = command(folder, *keys, MLFLOW, callbacks=poisoner)
    assert status == 1
    assert "samples [" in output and "the optimizer step was not applied" in output
    assert "3 in a row, model.max_consecutive_nan reached" in output
    (newest,) = complete_iterations(folder / "checkpoints")[-1:]
    assert output.rstrip().endswith(
        f"resume with --ckpt_path {folder / 'checkpoints' / f'iter_{newest:07d}'}"
    )
    assert mlflow_run(folder)[0].info.status == "FAILED"
