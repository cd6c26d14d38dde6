"""Evaluation within training: before it, of several sets, and when one of them fails; the health check beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from relax_lightning.data.evaluation import sample_metrics
from relax_lightning.rewards.records import RewardError
from tests.conftest import REPOSITORY

DIGITS = "class_path: relax_lightning.data.digits.ReversedDigits"
SETS = (
    f"{{short: {{{DIGITS}, init_args: {{size: 5, min_digits: 1, max_digits: 1}}}},"
    f" mine: {{{DIGITS}, init_args: {{size: 11, seed: 3}}, n_samples_per_prompt: 4, correct_reward: 0.5,"
    " sampling: {max_new_tokens: 4, temperature: 1.5}}}"
)
KEYS = (
    f"data.rollout.validation={SETS}",
    "data.rollout.reward.class_path=broken_rewards.wants_two_digits",
    "trainer.val_check_interval=2",
    # Runs of other lengths are to be compared.
    "model.actor.optimizer.decay=constant",
)
RANGES = "callbacks.health_check.ranges={reward/mean: [2.0, null], reward/median: [0, 1], reward/std: null}"


def points(folder: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "metrics" in entry:
            found.setdefault(entry["step"], {}).update(entry["metrics"])
    return found


@pytest.fixture(scope="module")
def run(fit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of four iterations with a set that always fails; what was recorded, and what it warned of."""
    folder = tmp_path_factory.mktemp("evaluation")
    keys = (
        *KEYS,
        RANGES,
        "trainer.max_steps=4",
        "trainer.val_before_training=true",
        "callbacks.health_check.stop_after=3",
    )
    with pytest.warns(UserWarning, match="the evaluation of short failed") as caught:
        run = fit(folder, *keys)
    warned = [str(w.message) for w in caught]
    return run, points(folder), [w for w in warned if not w.startswith("LightningCLI's args")]


def test_evaluations_are_recorded_and_a_failed_set_is_named(run: Any) -> None:
    recorded, found, warnings = run
    # Before training, after iteration 2, and at the end, which is after iteration 3 by the health check.
    assert sorted(step for step, metrics in found.items() if "val/mine/reward_mean" in metrics) == [0, 2, 3]
    assert set(recorded.metrics) == {1, 2, 3} and recorded.status == 0
    for step in (0, 2):
        metrics = {name.removeprefix("val/"): x for name, x in found[step].items() if name.startswith("val/")}
        assert {name for name in metrics if name.startswith("short")} == {"short/failed"}
        mine = {name.removeprefix("mine/"): x for name, x in metrics.items() if name.startswith("mine")}
        assert {name for name in mine if "_at_" in name} == {
            "mean_at_4", "pass_at_2", "pass_at_4", "maj_at_2", "maj_at_4"
        }  # fmt: skip
        assert 0 <= mine["mean_at_4"] <= mine["pass_at_2"] <= mine["pass_at_4"] <= 1
        assert mine["pass_at_4"] > mine["mean_at_4"] and mine["response_length_mean"] <= 4
    said = [w for w in warnings if "the evaluation of" in w]
    assert [w.partition(":")[0] for w in said] == ["iteration 0", "iteration 2", "iteration 3"]
    assert all("evaluation of short failed, training goes on: RewardError" in w for w in said)
    assert all("LookupError: no points for" in w and "on_validation_error: raise" in w for w in said)


def test_the_first_evaluation_is_of_the_weights_that_training_starts_from(
    run: Any, fit: Any, tmp_path: Path
) -> None:
    recorded, found, _ = run
    without = fit(tmp_path, *KEYS, "trainer.max_steps=2")
    # It moves nothing: the iterations after it are what they are without it.
    for iteration in (1, 2):
        told, plain = recorded.metrics[iteration], without.metrics[iteration]
        same = [n for n in plain if not n.startswith(("phase/", "perf/", "memory/"))]
        assert {n: told[n] for n in same} == {n: plain[n] for n in same}
    assert 0 not in points(tmp_path)
    assert {n: x for n, x in points(tmp_path)[2].items() if n.startswith("val/")} == {
        n: x for n, x in found[2].items() if n.startswith("val/")
    }


def test_an_evaluation_that_must_not_fail_ends_training(fit: Any, tmp_path: Path) -> None:
    for key in ("data.rollout.on_validation_error=raise", "trainer.num_sanity_val_steps=1"):
        with pytest.raises(RewardError, match="no points for") as raised:
            fit(tmp_path / key.partition("=")[0], *KEYS, key)
        assert any("this was the evaluation of short" in note for note in raised.value.__notes__)


def test_the_health_check_speaks_once_and_ends_training(run: Any) -> None:
    recorded, _, warnings = run
    said = [w for w in warnings if "reward/mean" in w]
    assert said[0].startswith("iteration 1: reward/mean is 0.")
    assert said[0].endswith("outside of its healthy range (at least 2)")
    assert said[1].startswith("iteration 3: training ends, for reward/mean was outside") and len(said) == 2
    assert any("wanted names of metrics, got reward/median, which no iteration had" in w for w in warnings)
    assert recorded.trainer.should_stop


def test_every_metric_is_in_the_document(run: Any) -> None:
    recorded, found, _ = run
    listed = set(re.findall(r"`([\w/]+)`", (REPOSITORY / "docs/tracking.md").read_text()))
    assert {name for metrics in recorded.metrics.values() for name in metrics} - listed == {
        "phase/switch_seconds"
    }
    listed = set(re.findall(r"`val/SET/(\w+)`", (REPOSITORY / "docs/evaluation.md").read_text()))
    for name in (name for metrics in found.values() for name in metrics if name.startswith("val/mine/")):
        told = re.sub(r"(_at_)\d+$", r"\1", name.removeprefix("val/mine/"))
        assert told in {re.sub("[NK]$", "", entry) for entry in listed} or told.startswith("response_"), name


def test_diagnostics_are_told_of_every_iteration(run: Any) -> None:
    recorded, _, _ = run
    for iteration, metrics in recorded.metrics.items():
        experience = recorded.experiences[iteration - 1]
        mask, rollouts = experience.rollouts.response_mask, experience.rollouts
        errors = (experience.values - experience.returns)[mask]
        # The thirds together are all tokens.
        thirds = [metrics[f"values/bias_{third}"] for third in ("early", "middle", "late")]
        assert min(thirds) <= errors.mean().item() + 1e-6 and max(thirds) >= errors.mean().item() - 1e-6
        assert metrics["returns/std"] == pytest.approx(experience.returns[mask].std().item(), rel=1e-5)
        assert metrics["response/trainable_token_fraction"] == metrics["response/num_turns_mean"] == 1
        assert metrics["response/length_mean"] == pytest.approx(
            rollouts.response_lengths.double().mean().item()
        )
        # Two passes of two steps: later ones have moved.
        assert metrics["actor/ratio_max"] > 1 and 0.5 < metrics["actor/effective_sample_fraction"] < 1
        assert abs(metrics["actor/ratio_mean"] - 1) < 0.2
        assert 0 <= metrics["mismatch/kl_k3"] < 1e-9 and abs(metrics["mismatch/kl_k1"]) < 1e-5


def test_sample_metrics_do_not_depend_on_the_order_of_batches() -> None:
    import torch

    from relax_lightning.data.rollout import Scores

    zeros = torch.zeros(6, dtype=torch.float64)
    rewards, answers = torch.tensor([1.0, 0, 0, 0, 1, 1]), torch.tensor([0.0, 1, 1, 0, 1, 1])
    scores = Scores(rewards, zeros, zeros, zeros, zeros, zeros, torch.arange(6.0), answers)
    found = sample_metrics(scores, num_samples=3, correct_reward=1.0)
    # Prompt 0: one of three right, and the majority wrong; prompt 1: two of three, and the majority right.
    # pass@2: 1 - C(2, 2) / C(3, 2) = 2 / 3, and 1. maj@2 of the first two: a tie of one right; a tie of one right.
    assert found == pytest.approx(
        {"mean_at_3": 0.5, "pass_at_2": 5 / 6, "maj_at_2": 0.5, "pass_at_3": 1.0, "maj_at_3": 0.5}
    )
    order = torch.tensor([4, 1, 0, 5, 2, 3])
    order = order[order.argsort(stable=True)].flip(0).reshape(2, 3).flip(1).flatten()
    moved = Scores(*(getattr(scores, name)[order] for name in scores.__dataclass_fields__))
    assert sample_metrics(moved, num_samples=3, correct_reward=1.0) == found
    assert sample_metrics(scores, num_samples=1, correct_reward=0.5) == {"mean_at_1": 0.5}
