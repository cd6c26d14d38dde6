"""The real sqlite store, a server that refuses and one that never answers: all on this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relax_lightning.config.loader import mlflow_uri
from relax_lightning.tracking.journal_logger import JournalLogger
from relax_lightning.tracking.mlflow_logger import MLflowLogger, named_as_evaluation
from relax_lightning.tracking.replay import main, replay
from relax_lightning.tracking.spool import SPOOL_NAME, find_spool, read_spools


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for the file: creating it takes seconds."""
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlruns.db'}"
    MlflowClient(uri).search_experiments()
    return uri


def points(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    return [(metric.step, metric.value) for metric in MlflowClient(uri).get_metric_history(run_id, name)]


def get_run(uri: str, run_id: str):
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri).get_run(run_id)


@contextmanager
def hanging_server() -> Iterator[str]:
    """Accepts connections (the kernel does, for a listening socket) and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def refusing_server() -> Iterator[str]:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


def redirect(folder: Path, uri: str) -> None:
    """The server is back: here under another address, since the real store of the test is a database."""
    for path in (folder / SPOOL_NAME).glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "uri": uri}))


def test_run_arrives_whole_in_the_default_database(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # What a URI would take for its query, for a quoted character and for a fragment.
    folder = tmp_path / "run folder q?lr=1&x; 'ü' pct%41b #3"
    logger = MLflowLogger(folder, run_name="first", tags={"seed": 1}, system_metrics=True)
    assert logger.run_id is None and logger.version == logger.run_key
    (folder).mkdir()
    (folder / "config.yaml").write_text("a: 1\n")
    logger.log_hyperparams({"model": {"algorithm": {"gamma": 1.0}, "names": []}, "seed": None})
    logger.log_artifact(folder / "config.yaml")
    for step in (1, 2, 3):
        logger.log_metrics({"reward/mean": step / 10, "odd name ü?": 1.0, "not/finite": float("nan")}, step)
    logger.finalize("success")

    uri = mlflow_uri(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name]
    assert (folder / "mlruns.db").stat().st_size > 0
    run_id = logger.run_id
    assert run_id is not None
    run = get_run(uri, run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first" and run.data.tags["seed"] == "1"
    assert run.data.params == {"model.algorithm.gamma": "1.0", "model.names": "[]", "seed": "None"}
    assert points(uri, run_id, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert points(uri, run_id, "odd name ü_") == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert len(points(uri, run_id, "not/finite")) == 3
    assert len(points(uri, run_id, "system/cpu_utilization_percentage")) == 3
    assert list((folder / "mlartifacts").rglob("config.yaml"))
    assert "INFO" not in (output := "".join(capfd.readouterr())), output
    assert not (Path.cwd() / "mlruns").exists()


def test_resumed_run_continues_and_takes_changed_params(database: str, tmp_path: Path) -> None:
    first = MLflowLogger(tmp_path, database)
    first.log_hyperparams({"lr": 1.0, "seed": 1})
    for step in range(1, 6):
        first.log_metrics({"reward/mean": step / 10}, step)
    first.finalize("failed")
    assert first.run_id is not None
    assert get_run(database, first.run_id).info.status == "FAILED"

    for name in (first.run_id, first.run_key):
        resumed = MLflowLogger(tmp_path, database, resume_run_id=name)
        assert resumed.run_id == first.run_id and resumed.run_key == first.run_key
        resumed.log_hyperparams({"lr": 2.0, "seed": 1, "new": 3})
        for step in range(4, 8):
            resumed.log_metrics({"reward/mean": 9.0}, step)
        resumed.end_status = "KILLED"
        resumed.finalize("success")

    run = get_run(database, first.run_id)
    expected = [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4), (5, 0.5), (6, 9.0), (7, 9.0)]
    assert points(database, first.run_id, "reward/mean") == expected
    assert resumed.journal.series("reward/mean")[0] == [1, 2, 3, 4, 5, 6, 7]
    assert run.data.params == {"lr": "1.0", "seed": "1", "new": "3"}
    assert run.data.tags["resumed.lr"] == "2.0" and "resumed.seed" not in run.data.tags
    assert run.info.status == "KILLED"


def test_a_rewound_run_sends_what_changed_and_nothing_twice(database: str, tmp_path: Path) -> None:
    first = MLflowLogger(tmp_path, database)
    same = {"same": 1.5, "nan": float("nan"), "infinite": float("-inf")}
    for step in (1, 2, 3, 4):
        first.log_metrics({"actor/lr": 0.1, "phase/seconds": 1.0, **same}, step)
    first.finalize("failed")
    run_id = first.run_id or ""
    other = MLflowLogger(tmp_path, database)
    other.log_metrics({"actor/lr": 7.0}, 4)
    other.finalize("success")

    # Twice, each time from 2: changed, then as it was changed.
    for _ in range(2):
        resumed = MLflowLogger(tmp_path, database, resume_run_id=first.run_key)
        resumed.log_hyperparams({"lr": 0.001})
        resumed.rewind(2)
        for step in (3, 4, 5):
            resumed.log_metrics({"actor/lr": 0.001, "phase/seconds": 2.0, **same}, step)
        resumed.finalize("success")
        assert resumed.journal.series("actor/lr") == ([1, 2, 3, 4, 5], [0.1, 0.1, 0.001, 0.001, 0.001])
        assert replay(tmp_path)
    found = points(database, run_id, "actor/lr")
    assert sorted(found) == [(1, 0.1), (2, 0.1), (3, 0.001), (3, 0.1), (4, 0.001), (4, 0.1), (5, 0.001)]
    assert get_run(database, run_id).data.metrics["actor/lr"] == 0.001
    for name in ("phase/seconds", *same):
        assert [step for step, _ in points(database, run_id, name)] == [1, 2, 3, 4, 5]
    assert points(database, other.run_id or "", "actor/lr") == [(4, 7.0)]


def test_points_that_a_dead_server_missed_survive_a_rewind(database: str, tmp_path: Path) -> None:
    with refusing_server() as uri:
        for resume_from in (None, 2, 2):
            key = read_spools(tmp_path)[0].state.key if resume_from else None
            logger = MLflowLogger(tmp_path, uri, resume_run_id=key)
            logger.rewind(resume_from or 0)
            for step in range((resume_from or 0) + 1, 5):
                logger.log_metrics({"x": step + 10.0 * (resume_from or 0)}, step)
            logger.finalize("failed")
    redirect(tmp_path, database)
    assert replay(tmp_path)
    run_id = read_spools(tmp_path)[0].state.run_id or ""
    # What was lost before it was sent never was of the record.
    assert points(database, run_id, "x") == [(1, 1.0), (2, 2.0), (3, 23.0), (4, 24.0)]


def test_a_journal_is_not_sent_from_while_it_is_rewound(database: str, tmp_path: Path) -> None:
    logger = MLflowLogger(tmp_path, database)
    for step in range(1, 301):
        logger.log_metrics({"x": float(step)}, step)
        if step % 100 == 0:
            logger.rewind(step - 50)
    logger.rewind(100)
    for step in range(101, 121):
        logger.log_metrics({"x": -1.0}, step)
    logger.finalize("success")
    run_id = logger.run_id or ""
    newest = dict(points(database, run_id, "x"))
    kept = dict(zip(*logger.journal.series("x"), strict=True))
    assert newest | kept == newest and set(kept) <= set(newest)


def test_an_evaluation_is_a_run_of_its_own(database: str, tmp_path: Path) -> None:
    trained = MLflowLogger(tmp_path, database)
    trained.log_metrics({"val/hot/reward_mean": 0.5}, 3)
    trained.end_status = "KILLED"
    trained.finalize("success")
    settings = {"uri": database, "run_name": "mine", "tags": {"team": "a"}}
    named = named_as_evaluation(tmp_path, settings, trained.run_key, "checkpoints/iter_0000003")
    for reward in (0.25, 0.75):
        logger = MLflowLogger(tmp_path, **named, evaluation={"checkpoint": "iter_0000003"})
        logger.log_metrics({"val/hot/reward_mean": reward}, 3)
        logger.finalize("success")
        run = get_run(database, logger.run_id or "")
        assert run.info.run_name == "mine validate iter_0000003" and run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == trained.run_id and run.data.tags["team"] == "a"
        assert points(database, logger.run_id or "", "val/hot/reward_mean") == [(3, reward)]
    assert points(database, trained.run_id or "", "val/hot/reward_mean") == [(3, 0.5)]
    assert get_run(database, trained.run_id or "").info.status == "KILLED"
    lines = [json.loads(line) for line in (tmp_path / "validate.jsonl").read_text().splitlines()]
    assert [line["metrics"]["val/hot/reward_mean"] for line in lines] == [0.25, 0.75]
    assert {line["checkpoint"] for line in lines} == {"iter_0000003"}
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert all(spool.is_drained for spool in read_spools(tmp_path))


def test_run_resumed_in_another_folder_repeats_no_value(database: str, tmp_path: Path) -> None:
    first = MLflowLogger(tmp_path / "a", database)
    for step in (1, 2, 3):
        first.log_metrics({"x": step}, step)
    first.finalize("success")
    moved = MLflowLogger(tmp_path / "b", database, resume_run_id=first.run_id)
    for step in (2, 3, 4):
        moved.log_metrics({"x": step if step == 2 else 10 * step}, step)
    moved.finalize("success")

    assert moved.run_id == first.run_id and first.run_id is not None
    assert points(database, first.run_id, "x") == [(1, 1.0), (2, 2.0), (3, 3.0), (3, 30.0), (4, 40.0)]


@pytest.mark.parametrize("server", [refusing_server, hanging_server])
def test_dead_server_costs_no_time_and_loses_no_point(
    server,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with server() as uri:
        logger = MLflowLogger(tmp_path, uri.replace("//", "//ann:secret@"))
        began = time.perf_counter()
        logger.log_hyperparams({"lr": 1.0})
        for step in range(1, 201):
            logger.log_metrics({f"m/{i}": step + i for i in range(30)}, step)
        assert time.perf_counter() - began < 1.0
        (tmp_path / "curves.png").write_bytes(b"picture")
        logger.log_artifact("curves.png")
        began = time.perf_counter()
        logger.finalize("success")
        assert (
            time.perf_counter() - began < 12
        )  # mlflow is imported already: at most 10 s for a server not known to fail
        assert logger.run_id is None
        assert "6000 points and 2 other records" in caplog.messages[-1]
        assert f"python -m relax_lightning.tracking.replay {tmp_path}" in caplog.messages[-1]
        assert "secret" not in caplog.text

    redirect(tmp_path, database)
    assert replay(tmp_path)
    assert "6000 points and 2 other records sent" in capsys.readouterr().out
    spool = find_spool(tmp_path, logger.run_key)
    assert spool is not None and spool.state.run_id is not None
    run_id = spool.state.run_id
    expected = [(step, float(step + 29)) for step in range(1, 201)]
    assert points(database, run_id, "m/29") == expected
    assert get_run(database, run_id).info.status == "FINISHED"
    assert get_run(database, run_id).data.params == {"lr": "1.0"}

    # Once more, all of it, as if nothing had been noted: the run is found again and each point stays single.
    spool.update(run_id=None, journal_offset=0, events_offset=0, is_status_sent=False)
    assert replay(tmp_path)
    assert read_spools(tmp_path)[0].state.run_id == run_id
    assert points(database, run_id, "m/29") == expected
    assert sum(len(points(database, run_id, f"m/{i}")) for i in range(30)) == 6000


def test_next_run_in_the_folder_sends_what_a_killed_one_left(database: str, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from relax_lightning.tracking.mlflow_logger import MLflowLogger\n"
        "logger = MLflowLogger(sys.argv[1], sys.argv[2])\n"
        "[logger.log_metrics({'x': float(step)}, step) for step in (1, 2, 3)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), database], env={**os.environ}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = read_spools(tmp_path)
    assert left.num_pending() == (3, 0)

    logger = MLflowLogger(tmp_path, database)
    logger.log_metrics({"x": 7.0}, 1)
    logger.finalize("success")
    assert replay(tmp_path)
    spool = find_spool(tmp_path, left.state.key)
    assert spool is not None and spool.state.run_id not in (None, logger.run_id)
    assert points(database, spool.state.run_id or "", "x") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert get_run(database, spool.state.run_id or "").info.status == "KILLED"
    assert points(database, logger.run_id or "", "x") == [(1, 7.0)]


def test_wrong_use_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"tracking\.mlflow\.uri: wanted a server .* got 'file:runs'"):
        MLflowLogger(tmp_path, "file:runs")
    with pytest.raises(ValueError, match="wanted `step`"):
        JournalLogger(tmp_path).log_metrics({"x": 1.0})
    assert main([]) == main([str(tmp_path / "missing")]) == 2
    assert "usage:" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 0
    assert "no runs spooled" in capsys.readouterr().out


def test_journal_logger_resumes_without_mlflow(tmp_path: Path) -> None:
    first = JournalLogger(tmp_path)
    first.log_metrics({"x": 1.0}, 1)
    first.log_artifact("curves.png")
    first.finalize("success")
    resumed = JournalLogger(tmp_path, resume_run_id=first.run_key)
    resumed.log_metrics({"x": 5.0}, 1)
    resumed.log_metrics({"x": 2.0}, 2)

    assert resumed.run_id is None
    assert resumed.journal.series("x") == ([1, 2], [1.0, 2.0])
    assert not (tmp_path / SPOOL_NAME).exists()
