"""The example of docs/rollout_functions.md, trained through the product's own entry: masks with gaps, end to end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_lightning.algorithms.gae import compute_gae
from relax_lightning.algorithms.token_rewards import token_rewards
from relax_lightning.config.loader import load, resolve
from tests.conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
KEYS = [
    "trainer.max_steps=14",
    "data.rollout.batch_size=64",
    "data.rollout.train.init_args.size=4000",
    "trainer.val_check_interval=14",
    "model.max_tokens_per_microbatch=600",
    "model.actor.optimizer.decay=constant",
    "callbacks={curves: null, timeline: null, checkpoint: null}",
    "trainer.enable_progress_bar=false",
    "trainer.callbacks=[{class_path: recorder.Recorder}]",
    "tracking.mlflow=null",
]


@pytest.fixture(scope="module")
def run(recorder: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from relax_lightning.lightning_cli import run as start

    folder = tmp_path_factory.mktemp("calculator")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        config = resolve(
            load([str(EXAMPLES / "calculator.yaml")], [*KEYS, f"trainer.default_root_dir={folder}"])
        )
        assert start("fit", config, None) == 0
    return recorder.Recorder.last


def test_the_calculator_is_called_and_its_output_masked(run: Any) -> None:
    num_calls = 0
    for rollouts in run.rollouts:
        for row, response in enumerate(rollouts.responses):
            length = int(rollouts.response_lengths[row])
            mask = rollouts.response_mask[row]
            assert not mask[length:].any()
            gap = (~mask[:length]).nonzero().flatten().tolist()
            call = re.match(r"([^=]*=)(.*)", response)
            if call is None or (rollouts.finish_reasons[row] == "length" and len(call[1]) == length):
                assert gap == []
                continue
            num_calls += 1
            result = re.fullmatch(r"(\d+)\+(\d+)=", call[1])
            wanted = str(int(result[1]) + int(result[2])) if result else "?"
            # The text has no end of the sequence in it, so positions of text and tokens agree up to the call.
            assert gap == list(range(len(call[1]), min(len(call[1]) + len(wanted), 10)))
            assert wanted.startswith(call[2][: len(gap)])
            assert rollouts.rollout_log_probs[row][gap].tolist() == [0.0] * len(gap)
    assert num_calls > 500


def test_gae_and_losses_leave_the_calculators_tokens_out(run: Any) -> None:
    for experience in run.experiences[:3]:
        mask, rollouts = experience.rollouts.response_mask, experience.rollouts
        inside = torch.arange(mask.shape[1])[None] < rollouts.response_lengths[:, None]
        assert (inside & ~mask).any()
        assert not experience.returns[~mask].any() and not experience.advantages[~mask].any()
        # Without the masked columns, and without knowing of them, each sample's returns are the same.
        rows = (inside & ~mask).any(1).nonzero().flatten()[:20].tolist()
        for row in rows:
            kept = mask[row].nonzero().flatten()
            alone = torch.ones(1, len(kept), dtype=torch.bool)
            rewards = token_rewards(rollouts.rewards[row : row + 1], alone)
            _, returns = compute_gae(rewards, experience.values[row, kept][None], alone, gamma=1.0, lambd=0.7)
            torch.testing.assert_close(experience.returns[row, kept], returns[0])
    for metrics in run.metrics.values():
        # The engine's log-probs are those of the trainer's packed forward, with the calculator's tokens in between.
        assert metrics["mismatch/log_prob_abs_diff"] < 1e-5 and metrics["mismatch/kl_k3"] < 1e-7
        assert metrics["response/num_turns_mean"] > 1 > metrics["response/trainable_token_fraction"] > 0.5


def test_training_and_evaluation_go_through_it(run: Any) -> None:
    rewards = [run.metrics[iteration]["reward/mean"] for iteration in sorted(run.metrics)]
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3])
    before, after = run.validations
    assert after["val/sums/reward_mean"] > before["val/sums/reward_mean"]
    assert after["val/sums/response_num_turns_mean"] > 1


def test_the_document_shows_the_example() -> None:
    assert f"examples/{Path('calculator.py')}" in (REPOSITORY / "docs/rollout_functions.md").read_text()
