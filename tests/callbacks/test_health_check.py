"""What the health check says, and when; the ranges of the document are those of the code."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer

from callbacks.health_check import HEALTHY, HealthCheck
from relax_lightning.ppo.callback import check_hook_names
from tests.conftest import REPOSITORY

NAN = float("nan")


@pytest.fixture
def told(tmp_path: Any) -> Any:
    """A function that shows metrics of one iteration after another, and gives what was warned of, and the trainer."""

    def told(check: HealthCheck, *iterations: dict[str, float]) -> tuple[list[str], Trainer]:
        trainer = Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path
        )
        module: Any = LightningModule()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number, metrics in enumerate(iterations, 1):
                module.iteration = number
                check.on_iteration_end(trainer, module, metrics)
            check.on_train_end(trainer, module)
        return [str(warning.message) for warning in caught], trainer

    return told


def test_it_warns_once_each_time_a_range_is_left(told: Any) -> None:
    values = [0.3, 0.6, 0.6, 0.6, 0.6, 0.1, 0.6, 0.6, 0.6]
    said, trainer = told(HealthCheck(), *({"actor/pg_clipfrac": value} for value in values))
    assert [text.partition(":")[0] for text in said] == ["iteration 4", "iteration 9"]
    assert said[0].startswith(
        "iteration 4: actor/pg_clipfrac is 0.6, outside of its healthy range (at most 0.4) for 3 iterations: the "
        "ratio is clipped for many tokens"
    )
    assert not trainer.should_stop
    # Absent in between, as in iterations of the critic alone: neither in nor out.
    said, _ = told(HealthCheck(), *([{"actor/pg_clipfrac": 0.6}, {}] * 3))
    assert [text.partition(":")[0] for text in said] == ["iteration 5"]
    said, _ = told(HealthCheck(), *([{"critic/value_clipfrac": NAN}] * 10))
    assert "critic/value_clipfrac is nan" in said[0]


def test_a_solved_task_is_no_alarm(told: Any) -> None:
    solved = {"critic/explained_variance": -0.5, "actor/entropy": 0.0, "reward/std": 0.005}
    assert told(HealthCheck(), *[solved] * 30)[0] == []
    (entropy, variance), _ = told(HealthCheck(), *[solved | {"reward/std": 0.2}] * 30)
    assert entropy.startswith("iteration 5: actor/entropy") and variance.startswith(
        "iteration 20: critic/expl"
    )


def test_own_ranges_and_the_end_of_training(told: Any) -> None:
    own = {"reward/mean": [0.5, None], "actor/entropy": [0.1, 2.0], "reward/std": None, "reward/mode": [0, 1]}
    check = HealthCheck(own, stop_after=2)
    bad = {"reward/mean": 0.2, "actor/entropy": 1.0, "reward/std": 0.0}
    said, trainer = told(check, bad)
    assert [text.partition(",")[0] for text in said] == [
        "iteration 1: reward/mean is 0.2",
        "callbacks.health_check.ranges: wanted names of metrics",
    ]
    assert not trainer.should_stop
    # A resumed run goes on counting.
    other = HealthCheck(own, stop_after=2)
    other.load_state_dict(check.state_dict())
    said, trainer = told(other, bad)
    assert trainer.should_stop
    assert said[0].endswith("range (at least 0.5) for 2 iterations (callbacks.health_check.stop_after)")
    # A range of ours that takes three iterations to be said does not end training before it is said.
    assert not told(HealthCheck(stop_after=1), *[{"actor/pg_clipfrac": 1.0}] * 2)[1].should_stop
    assert told(HealthCheck(stop_after=1), *[{"actor/pg_clipfrac": 1.0}] * 3)[1].should_stop
    check_hook_names(check)


def test_the_document_has_these_ranges() -> None:
    text = (REPOSITORY / "docs/callbacks.md").read_text()
    rows = re.findall(r"^\| `(\w+/\w+)` \| ([^|]+) \| (\d+) \|", text, re.M)
    assert rows == [(h.metric, h.words, str(h.num_iterations)) for h in HEALTHY]
    listed = re.findall(r"`(\w+/\w+)`", (REPOSITORY / "docs/tracking.md").read_text())
    assert [h.metric for h in HEALTHY if h.metric not in listed] == []
