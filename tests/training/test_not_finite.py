"""NaN, and samples with nothing to learn from."""

import math

import pytest

from relax_lightning.ppo.updates import NotFiniteError

POISON = ("Poisoner", {"hook": "on_iteration_start", "iteration": 2})
ONE_STEP = ("model.global_batch_size=null", "model.algorithm.num_ppo_epochs=1")


def test_nan_steps_are_not_applied_and_end_the_training(fit, recorder, tmp_path):
    with (
        pytest.warns(UserWarning, match="the optimizer step was not applied") as warned,
        pytest.raises(
            NotFiniteError,
            match=r"iteration 4, critic, rank 0, samples \[.*3 in a row, model.max_consecutive_nan reached",
        ),
    ):
        fit(tmp_path, "trainer.max_steps=9", *ONE_STEP, callbacks=(POISON,))
    run = recorder.Recorder.last
    # The values are NaN, so critic and actor both see NaN losses in iterations 2 and 3, and the critic again in 4.
    messages = [str(w.message) for w in warned if "not applied" in str(w.message)]
    seen = [(number, role) for number in (2, 3) for role in ("critic", "actor")]
    for (number, role), text in zip(seen, messages, strict=True):
        ids = run.rollouts[number - 1].sample_ids.tolist()
        assert f"in iteration {number}, {role}, rank 0, samples {ids}" in text
    poisoned = ["critic.weights.output_layer.bias"]
    assert recorder.differing(run.states[1], run.states[2]) == poisoned
    assert not any(name.startswith("actor/") for name in run.metrics[2])
    assert "critic/value_loss" not in run.metrics[2] and math.isnan(run.metrics[2]["values/mean"])
    assert sorted(run.metrics) == [1, 2, 3]


def test_each_role_counts_its_own(fit, tmp_path):
    # The critic's good steps do not make up for an actor that never takes one.
    keys = ("trainer.max_steps=9", "model.algorithm.entropy_coef=1.0e+39", *ONE_STEP)
    with (
        pytest.warns(UserWarning, match="the optimizer step was not applied"),
        pytest.raises(NotFiniteError, match=r"iteration 3, actor, .*3 in a row"),
    ):
        fit(tmp_path, *keys)


def test_limit_of_one(fit, tmp_path):
    with pytest.raises(NotFiniteError, match=r"iteration 2, critic, .*1 in a row"):
        fit(tmp_path, "model.max_consecutive_nan=1", callbacks=(POISON,))


def test_a_reward_of_nan_is_refused_and_the_samples_are_kept(fit, tmp_path):
    from relax_lightning.rewards.records import RewardError

    reward = "data.rollout.reward={class_path: broken_rewards.not_a_number, num_workers: 1}"
    with pytest.raises(RewardError, match="returned nan, a finite number was wanted") as caught:
        fit(tmp_path, reward)
    dump = tmp_path / "failed_rewards" / "iter_0000001.jsonl"
    assert len(dump.read_text().splitlines()) == 16 and str(dump) in caught.value.__notes__[0]
    counted = fit(tmp_path / "zero", reward, "data.rollout.reward.on_error=zero", "trainer.max_steps=1")
    assert counted.metrics[1]["reward/failed_fraction"] == 1.0 and counted.metrics[1]["reward/mean"] == 0.0


def test_a_batch_of_nothing_to_learn_from_changes_nothing(fit, recorder, tmp_path):
    keys = ("trainer.max_steps=2", "model.algorithm.truncation=mask", "data.rollout.sampling.ignore_eos=true")
    run = fit(tmp_path, *keys, "data.rollout.sampling.max_new_tokens=2")
    assert recorder.differing(run.states[1], run.states[2]) == []
    assert run.states[2]["critic.num_steps_done"] == 0
    metrics = run.metrics[2]
    assert metrics["response/untrainable_fraction"] == metrics["response/truncated_fraction"] == 1
    assert all(math.isfinite(value) for value in metrics.values())
    assert not any(name.startswith(("actor/", "critic/", "mismatch/", "advantages/")) for name in metrics)
    # The hooks before the steps are not fired for steps that are left out.
    assert "on_before_critic_step 0" not in run.events
    run = fit(tmp_path / "some", *keys[:2], "data.rollout.sampling.max_new_tokens=5")
    assert 0 < run.metrics[1]["response/untrainable_fraction"] < 1
    assert all(math.isfinite(value) for value in run.metrics[1].values())
    assert "actor/pg_loss" in run.metrics[1]
