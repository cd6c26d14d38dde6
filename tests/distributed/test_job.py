"""Jobs on a real Ray cluster: what they exchange, what they show, and how each of their parts may die."""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import psutil
import pytest

from relax_lightning.config.loader import load, resolve

ray = pytest.importorskip("ray")

from relax_lightning.distributed import stopped, watch  # noqa: E402
from relax_lightning.distributed.interruptions import Aborted, Interruptions  # noqa: E402
from relax_lightning.distributed.job import Job, Task  # noqa: E402
from relax_lightning.distributed.placement import Demand, SharedGroup  # noqa: E402
from relax_lightning.distributed.processes import RayProcesses  # noqa: E402
from relax_lightning.distributed.screen import Screen  # noqa: E402
from relax_lightning.distributed.watch import LostPartError, RankError  # noqa: E402

DIGITS = Path(__file__).resolve().parent.parent / "training" / "digits.yaml"
CONFIG = resolve(load([str(DIGITS)], []))
JOINED = RayProcesses()
RANK_1 = "rank 1 (actor, critic and rollout)"


@pytest.fixture(scope="module")
def group(address):
    """A placement group of two CPU ranks."""
    ray.init(address=address, namespace="test-job", log_to_driver=False, logging_level=logging.ERROR)
    with SharedGroup(Demand(2, "CPU"), JOINED) as group:
        yield group
    ray.shutdown()


def run(job, work, number=None):
    """The status of a job whose ranks do a work of works.py."""
    return job.run(Task(f"works.{work}", "fit", CONFIG, number), Screen(is_enabled=True), Interruptions())


def when(is_so, act):
    """Act in a thread as soon as something is so."""

    def wait():
        while not is_so():
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def is_starting():
    """Whether the main thread waits for a process of a job to come up."""
    frame = sys._current_frames()[threading.main_thread().ident]
    return "get_objects" in {frame.f_code.co_name for frame, _ in traceback.walk_stack(frame)}


def gone(job):
    """Whether no process of a job lives, waiting for the kills to take effect."""
    deadline = time.monotonic() + 10
    pids = [place.pid for place in job.places.values()]
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(pids) >= 4 and not any(psutil.pid_exists(pid) for pid in pids)


def test_two_jobs_on_one_cluster_exchange_samples_bit_for_bit(group, tmp_path, monkeypatch, capfd):
    """Both use the same names of partitions, at the same time, in one namespace."""
    monkeypatch.chdir(tmp_path)
    with SharedGroup(Demand(1, "CPU"), JOINED) as first, SharedGroup(Demand(1, "CPU"), JOINED) as second:
        with Job("a", first, 1) as a, Job("b", second, 1) as b:
            statuses = {}
            threads = [
                threading.Thread(target=lambda j=job, s=seed: statuses.update({s: run(j, "exchange", s)}))
                for job, seed in ((a, "1"), (b, "2"))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert statuses == {"1": 0, "2": 0}
        assert gone(a) and gone(b)
    printed = capfd.readouterr().out
    assert "exchanged 0 1\n" in printed and "exchanged 0 2\n" in printed


def test_the_terminal_shows_rank_0_and_a_signal_reaches_every_rank(group, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with Interruptions() as interruptions, Job("show", group, 2) as job:
        thread = when((tmp_path / "begun-1").exists, lambda: os.kill(os.getpid(), signal.SIGINT))
        task = Task("works.show", "fit", CONFIG, None)
        assert job.run(task, Screen(is_enabled=True), interruptions) == 130
        thread.join()
    out, err = capfd.readouterr()
    assert out.startswith(f"hello of rank 0, fit, {tmp_path.name}\niteration 1/2  reward  0.250")
    assert out.endswith("\nsaved after SIGINT\n")
    assert "mind rank 0" in err and err.endswith("no end of line\n")
    assert "SIGINT: this iteration ends, then the run is saved; a second SIGINT aborts at once" in err
    assert "rank 1" not in out + err
    assert gone(job)


def test_an_exception_is_told_once_with_rank_and_phase(group, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with Job("fail", group, 2) as job, pytest.raises(RankError) as caught:
        run(job, "fail")
    message = str(caught.value)
    assert message.startswith("rank 1, actor phase: Traceback")
    assert message.endswith("ValueError: nothing but trouble") and message.count("trouble") == 2
    assert "trouble" not in "".join(capfd.readouterr())
    assert gone(job)


@pytest.mark.slow
def test_a_rank_that_leaves_ends_the_job_and_so_does_a_second_signal(group, tmp_path, monkeypatch):
    """Ranks that have ended, or that are let go on to their end, can work again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "_LEAVE_SECONDS", 3.0)
    with Interruptions() as interruptions, Job("leave", group, 2) as job:
        thread = when(is_starting, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(KeyboardInterrupt):
            job.run(Task("works.leave", "fit", CONFIG, "all"), Screen(is_enabled=False), interruptions)
        thread.join()
        assert interruptions.aborted is not None and interruptions.aborted.number == signal.SIGTERM

        assert run(job, "leave", "all") == 3
        with pytest.raises(RankError) as error:
            run(job, "leave", "one")
        assert str(error.value) == "rank 1 left with status 3 (sys.exit) in its actor phase, others did not"
        (tmp_path / "one-over").touch()
        with pytest.raises(Aborted) as aborted:
            run(job, "leave", "signal")
        assert aborted.value.number == signal.SIGTERM and not aborted.value.is_second
        (tmp_path / "signal-over").touch()

        again = Interruptions()
        with again:
            threads = [
                when((tmp_path / name).exists, lambda: os.kill(os.getpid(), signal.SIGINT))
                for name in ("both-begun", "noted")
            ]
            with pytest.raises(KeyboardInterrupt):
                job.run(Task("works.leave", "fit", CONFIG, "both"), Screen(is_enabled=False), again)
            for thread in threads:
                thread.join()
        assert again.aborted is not None and again.aborted.is_second
    assert gone(job)


@pytest.mark.parametrize(
    ("name", "number", "how"),
    [
        (RANK_1, signal.SIGKILL, "was killed or crashed in its actor phase"),
        *(
            pytest.param(*part, marks=pytest.mark.slow)
            for part in (
                ("the sample store", signal.SIGKILL, "was killed or crashed"),
                (
                    "the advantages service",
                    signal.SIGSTOP,
                    "was stopped (SIGSTOP) and did not go on for 30 s",
                ),
                ("the coordinator", signal.SIGKILL, "was killed or crashed"),
                ("the coordinator", signal.SIGSTOP, "gave no answer for 40 s"),
            )
        ),
    ],
)
def test_a_part_that_is_killed_or_stopped_is_named(group, tmp_path, monkeypatch, name, number, how):
    """Rank 0 waits for rank 1 in a collective when that is killed; else one rank exchanges samples."""
    monkeypatch.chdir(tmp_path)
    # Of a stopped part it is sure sooner than a job would be; test_launcher.py waits the real time.
    monkeypatch.setattr(stopped, "NUM_LOOKS", 2)
    monkeypatch.setattr(stopped, "SILENT_SECONDS", 15.0 if name == "the coordinator" else 40.0)
    killed = []

    def kill():
        killed.append(time.monotonic())
        os.kill(job.places[name].pid, number)

    is_rank = name == RANK_1
    with Job(f"kill-{len(name)}-{number}", group, 2 if is_rank else 1) as job:
        thread = when((tmp_path / "begun").exists, kill)
        with pytest.raises(LostPartError) as caught:
            run(job, "fail" if is_rank else "keep_exchanging", "wait")
        assert time.monotonic() - killed[0] < 30
        thread.join()
    message = str(caught.value)
    pid = job.places[name].pid
    assert message.startswith(f"{name} {how} (process {pid} on ")
    assert f"-{pid}.out" in message
    if is_rank:
        assert message.endswith("waiting to be killed")
    assert gone(job)
