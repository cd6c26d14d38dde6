"""The pool with real processes: rewards that hang, raise, crash and lie, each in its own way."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from relax_lightning.config import RewardConfig
from relax_lightning.rewards.records import RewardError, RewardRequest
from relax_lightning.rewards.workers import RewardWorkers

MINE = r"""
import os, re, subprocess, sys
import numpy as np

NOT_NUMBERS = {"text": "1.0", "nothing": None, "nan": float("nan"), "inf": float("inf")}
NUMPY = {"numpy": np.float32(0.5), "numpy bool": np.bool_(True), "numpy array": np.array([0.25])}

def score(prompt, response, label, metadata):
    print("a reward may print", response, flush=True)
    sys.stderr.write("and warn\n")
    if response == "hang":
        while True:
            pass
    if response == "hang in C":
        re.match("(a+)+$", "a" * 64 + "b")
    if response == "hang in a child":
        subprocess.run([sys.executable, "-c", "while True: pass"])
    if response == "crash":
        os._exit(7)
    if response == "raise":
        raise KeyError("no such key")
    if response == "exit":
        sys.exit(1)
    if response == "large":
        return 1e300
    return (NOT_NUMBERS | NUMPY).get(response, label * 2)

def process(prompt, response, label, metadata):
    return os.getpid()
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker_rewards.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def config(name: str = "score", **changes) -> RewardConfig:
    return RewardConfig(**{"class_path": f"worker_rewards.{name}", "timeout_seconds": 20.0, **changes})


def requests(*responses: str) -> list[RewardRequest]:
    """Sample 100, 101, ... with labels 0, 1, ..."""
    return [RewardRequest(100 + i, "prompt", response, i, {"i": i}) for i, response in enumerate(responses)]


def test_order_is_kept_over_workers_and_calls() -> None:
    with RewardWorkers(config(num_workers=3)) as workers:
        for num_samples in (50, 1, 0, 7):
            outcomes = workers.score(requests(*["good"] * num_samples))
            assert [outcome.sample_id for outcome in outcomes] == [100 + i for i in range(num_samples)]
            assert [outcome.reward for outcome in outcomes] == [2.0 * i for i in range(num_samples)]
            assert all(outcome.error is None for outcome in outcomes)


def test_every_failure_is_named_and_the_others_are_scored() -> None:
    bad = ["crash", "raise", "exit", "text", "nothing", "nan", "inf"]
    with RewardWorkers(config(on_error="zero")) as workers:
        outcomes = workers.score(requests("good", *bad, "good"))
        again = workers.score(requests("good", "good", "good"))
    errors = [outcome.error for outcome in outcomes]
    assert [outcome.reward for outcome in outcomes] == [0.0] * 8 + [16.0]
    assert errors[0] is None and errors[-1] is None
    assert errors[1] == "its process ended with exit code 7"
    assert errors[2] is not None and errors[2].startswith("raised KeyError: 'no such key' (")
    assert "worker_rewards.py:21)" in errors[2]
    assert errors[3].startswith("raised SystemExit: 1 (")
    assert errors[4:8] == [
        f"returned {shown}, a finite number was wanted"
        for shown in ("str '1.0'", "NoneType None", "nan", "inf")
    ]
    assert [outcome.reward for outcome in again] == [0.0, 2.0, 4.0]


def test_numbers_of_numpy_and_numbers_that_are_too_large() -> None:
    with RewardWorkers(config(on_error="zero")) as workers:
        outcomes = workers.score(requests("numpy", "numpy bool", "numpy array", "large"))
    assert [outcome.reward for outcome in outcomes] == [0.5, 1.0, 0.25, 0.0]
    assert [outcome.error for outcome in outcomes[:3]] == [None] * 3
    assert outcomes[3].error == "returned 1e+300, a number of single precision was wanted"


@pytest.mark.parametrize("how", ["hang", "hang in C", "hang in a child"])
def test_a_hung_reward_is_ended_at_its_time_and_named(how: str) -> None:
    with RewardWorkers(config(timeout_seconds=1.0)) as workers:
        start = time.monotonic()
        with pytest.raises(RewardError) as caught:
            workers.score(requests("good", how, "good", "good"))
        assert 1.0 <= time.monotonic() - start < 15.0
        assert [outcome.sample_id for outcome in caught.value.failed] == [101]
        assert [outcome.reward for outcome in caught.value.outcomes] == [0.0, 0.0, 4.0, 6.0]
        message = str(caught.value)
        assert "failed on 1 of 4 samples" in message and "on_error to zero" in message
        assert "sample 101: ran longer than timeout_seconds = 1, so it was ended" in message
        assert [outcome.reward for outcome in workers.score(requests("good", "good"))] == [0.0, 2.0]


def test_all_samples_hanging_ends_too() -> None:
    with RewardWorkers(config(timeout_seconds=0.5, on_error="zero")) as workers:
        outcomes = workers.score(requests("hang", "hang", "hang"))
    assert [outcome.error is not None for outcome in outcomes] == [True, True, True]


def test_a_worker_that_died_in_between_is_replaced() -> None:
    with RewardWorkers(config("process", num_workers=1)) as workers:
        (first,) = workers.score(requests("good"))
        subprocess.run(["kill", "-KILL", str(int(first.reward))], check=True)
        workers._workers[0]._process.wait()
        (second,) = workers.score(requests("good"))
    assert second.error is None and second.reward != first.reward


def test_a_reward_that_cannot_be_loaded_is_an_error_on_entry() -> None:
    with pytest.raises(
        ValueError, match=r"data\.rollout\.reward: class_path: no_such .* could not be imported"
    ):
        RewardWorkers(RewardConfig(class_path="no_such.score")).__enter__()


def test_many_failures_are_all_named() -> None:
    with RewardWorkers(config()) as workers, pytest.raises(RewardError) as caught:
        workers.score(requests(*["raise"] * 14))
    message = str(caught.value)
    assert all(str(sample_id) in message for sample_id in range(100, 114)) and len(message.splitlines()) == 3


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
from relax_lightning.config import RewardConfig
from relax_lightning.rewards.records import RewardRequest
from relax_lightning.rewards.workers import RewardWorkers

with RewardWorkers(RewardConfig(class_path="worker_rewards.score", timeout_seconds=60.0)) as workers:
    print("loaded", flush=True)
    workers.score([RewardRequest(i, "", "hang", 0, {}) for i in range(2)])
"""


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None and parent.stderr is not None
    assert parent.stdout.readline() == "loaded\n"
    num_started = 0
    while num_started < 2:  # both workers are in their sample once both have printed
        num_started += "a reward may print hang" in parent.stderr.readline()
    parent.kill()
    # The workers hold stderr open too: it ends when the last of them does, long before their time is over.
    start = time.monotonic()
    parent.stderr.read()
    assert time.monotonic() - start < 30.0
    parent.wait()


def test_a_reward_that_always_hangs_ends_after_the_first_samples() -> None:
    start = time.monotonic()
    with (
        RewardWorkers(config(timeout_seconds=0.5, num_workers=2)) as workers,
        pytest.raises(RewardError) as caught,
    ):
        workers.score(requests(*["hang"] * 1000))
    assert time.monotonic() - start < 60.0  # 0.5 s, 5 s for the rest, and what processes take to start
    num_failed = len(caught.value.failed)
    # Where a new worker takes over 5 s to start, only the first sample is tried.
    assert 1 <= num_failed <= 24 and len(caught.value.outcomes) == 1000
    message = str(caught.value)
    assert message.startswith(f"the reward failed on {num_failed} of {num_failed} samples; sample ")
    assert f"the other {1000 - num_failed} were not tried any more\n" in message
    assert len(message.splitlines()) == 3
    # Eight lost samples, which a fast machine gets to, say that on_error would not help.
    change = "data.rollout.reward." + ("timeout_seconds" if num_failed >= 8 else "on_error")
    assert change in message.splitlines()[-1]


@pytest.mark.parametrize(("how", "error"), [("hang", "ran longer than"), ("crash", "exit code 7")])
def test_on_error_zero_does_not_help_a_reward_that_never_scores(how: str, error: str) -> None:
    with RewardWorkers(config(timeout_seconds=0.5, num_workers=2, on_error="zero")) as workers:
        # Over several rounds: 3 + 3 samples go on, the eighth ends it.
        for _ in range(2):
            assert [outcome.reward for outcome in workers.score(requests(how, how, how))] == [0.0] * 3
        with pytest.raises(RewardError) as caught:
            workers.score(requests(*[how] * 1000))
    assert 2 <= len(caught.value.failed) <= 3
    assert error in str(caught.value) and "not tried any more" in str(caught.value)
    assert str(caught.value).endswith("raise data.rollout.reward.timeout_seconds if it needs more time")


def test_on_error_zero_goes_on_while_most_samples_are_scored() -> None:
    with RewardWorkers(config(timeout_seconds=20.0, num_workers=2, on_error="zero")) as workers:
        outcomes = workers.score(requests(*["good"] * 20, *["crash"] * 9))
    assert sum(outcome.error is not None for outcome in outcomes) == 9


def test_odd_rewards_are_named_and_harm_no_other_sample(tmp_path: Path) -> None:
    odd = ["huge", "wordless", "wordy", "interrupt", "alarm", "array", "chatty", "child"]
    (tmp_path / "odd_rewards.py").write_text(ODD)
    settings = RewardConfig(class_path="odd_rewards.score", timeout_seconds=20.0, on_error="zero")
    with RewardWorkers(settings) as workers:
        outcomes = dict(zip(odd, workers.score(requests(*odd)), strict=True))
        (memory,) = workers.score(requests("memory"))
    errors = {how: outcome.error or "" for how, outcome in outcomes.items()}
    assert errors["huge"].startswith("raised OverflowError")
    assert errors["wordless"].startswith("raised Wordless: (its message cannot be shown: RuntimeError)")
    assert errors["wordy"].startswith("raised ValueError: aaaa") and len(errors["wordy"]) < 700
    assert errors["interrupt"] == "its process ended with exit code 1" or "SIGINT" in errors["interrupt"]
    assert "array" in errors["array"]
    assert all(outcomes[how].reward == 1.0 and not errors[how] for how in ("alarm", "chatty", "child"))
    assert memory.reward == 1000.0


ODD = r"""
import signal, subprocess, sys
import numpy as np

class Wordless(Exception):
    def __str__(self):
        raise RuntimeError

def score(prompt, response, label, metadata):
    if response == "huge":
        return 10**400
    if response == "wordless":
        raise Wordless
    if response == "wordy":
        raise ValueError("a" * 10_000_000)
    if response == "interrupt":
        raise KeyboardInterrupt
    if response == "array":
        return np.ones(3)
    if response == "alarm":
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(1)
    if response == "chatty":
        sys.stderr.write("a" * 100_000 + "\n")
    if response == "child":
        subprocess.Popen(["sleep", "600"])
    if response == "memory":
        return float(open("/proc/self/oom_score_adj").read())
    return 1.0
"""
