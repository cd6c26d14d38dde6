"""Shaped rewards, left-out prompts, likelihood of good samples, and a critic that starts from another run's."""

import pytest
import torch

A, R = "model.algorithm", "data.rollout"
# The head starts at zero and the rewards end a response: the first iteration's return at a last token is its reward.
LAST = (f"{A}.lambd=1.0", f"{A}.normalize_advantages=false", "trainer.max_steps=1")


def last_returns(experience):
    rollouts = experience.rollouts
    return experience.returns.gather(1, (rollouts.response_lengths - 1)[:, None]).squeeze(1)


def test_penalties_and_bounds_reach_the_returns_and_not_the_reward_metric(fit, tmp_path):
    penalties = "overlong_buffer_tokens: 3, overlong_penalty: 0.6, missing_eos_penalty: 0.5"
    shaping = f"{{{penalties}, clip_min: -0.8, clip_max: 0.1}}"
    run = fit(tmp_path, *LAST, f"{R}.shaping={shaping}")
    rollouts, metrics = run.rollouts[0], run.metrics[1]
    lengths, cut = rollouts.response_lengths, rollouts.truncated
    assert cut.any() and not cut.all() and lengths.max() == 5
    # Of at most 5 tokens, the third, fourth and fifth cost .2 each.
    penalty = 0.2 * (lengths - 2).clamp(min=0) + 0.5 * cut
    whole = rollouts.rewards - penalty
    torch.testing.assert_close(last_returns(run.experiences[0]), whole.clamp(-0.8, 0.1))
    assert metrics["reward/mean"] == pytest.approx(float(rollouts.rewards.mean()))
    assert metrics["shaping/reward_mean"] == pytest.approx(float(whole.clamp(-0.8, 0.1).mean()))
    assert metrics["shaping/overlong_fraction"] == pytest.approx(float((lengths > 2).float().mean()))
    assert metrics["shaping/missing_eos_fraction"] == pytest.approx(float(cut.float().mean()))
    outside = (whole < -0.8) | (whole > 0.1)
    assert metrics["shaping/clipped_fraction"] == pytest.approx(float(outside.float().mean()))
    assert 0 < metrics["shaping/clipped_fraction"] < 1


def test_rewards_are_normalized_by_all_so_far(fit, tmp_path):
    run = fit(tmp_path, *LAST[:2], "trainer.max_steps=2", f"{R}.shaping.normalize=true")
    rewards = [rollouts.rewards.double() for rollouts in run.rollouts]
    first = (rewards[0] - rewards[0].mean()) / rewards[0].std()
    torch.testing.assert_close(last_returns(run.experiences[0]).double(), first, atol=1e-5, rtol=1e-5)
    both = torch.cat(rewards)
    assert run.metrics[2]["shaping/running_mean"] == pytest.approx(float(both.mean()))
    assert run.metrics[2]["shaping/running_std"] == pytest.approx(float(both.std()))


def test_prompts_with_equal_rewards_are_left_out(fit, tmp_path):
    run = fit(tmp_path, f"{R}.drop_equal_rewards=true", "trainer.max_steps=1")
    rollouts, experience = run.rollouts[0], run.experiences[0]
    pairs = rollouts.rewards.view(-1, 2)
    equal = (pairs[:, 0] == pairs[:, 1]).repeat_interleave(2)
    assert equal.any() and not equal.all()
    assert torch.equal(rollouts.response_mask.any(1), ~equal)
    assert not experience.advantages[equal].any() and experience.advantages[~equal].any()
    lengths = rollouts.response_lengths.float()
    assert run.metrics[1]["filter/dropped_prompts_fraction"] == pytest.approx(float(equal.float().mean()))
    share = float(lengths[equal].sum() / lengths.sum())
    assert run.metrics[1]["filter/dropped_tokens_fraction"] == pytest.approx(share)


def test_likelihood_of_good_samples_and_importance_are_told(fit, recorder, tmp_path):
    keys = (f"{A}.positive_nll_coef=0.1", f"{A}.positive_nll_threshold=0.2")
    weights = (
        f"{A}.old_log_probs=recompute", f"{A}.importance_cap=1.5", f"{A}.importance_mode=mask",
        f"{A}.importance_floor=0.5", f"{A}.importance_level=sequence",
    )  # fmt: skip
    run = fit(tmp_path, *keys, *weights)
    for metrics in run.metrics.values():
        assert metrics["actor/positive_nll"] > 0
        # Engine and trainer are the same model here.
        assert metrics["importance/effective_sample_fraction"] == pytest.approx(1, abs=1e-5)
        assert metrics["importance/ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert metrics["importance/masked_fraction"] == 0


@pytest.fixture(scope="module")
def pretrained(fit, tmp_path_factory):
    """Three critic-only iterations: nothing else is trained."""
    folder = tmp_path_factory.mktemp("pretrained")
    run = fit(
        folder, "trainer.max_steps=3", "callbacks.critic_only_warmup.num_steps=3",
        "callbacks.checkpoint={save_last: true}", "callbacks.lr_warmup.actor.num_iters=0",
    )  # fmt: skip
    run.folder = folder
    return run


def test_a_run_may_train_the_critic_alone(recorder, pretrained):
    assert sorted(pretrained.metrics) == [1, 2, 3]
    assert recorder.differing(pretrained.states[1], pretrained.states[3], "actor") == []
    assert recorder.differing(pretrained.states[1], pretrained.states[3], "critic.weights")
    assert pretrained.states[3]["actor.num_steps_done"] == 0


def test_a_critic_starts_from_the_weights_of_another_run_and_not_from_its_optimizer(
    fit, recorder, pretrained, tmp_path
):
    key = f"model.critic.warm_start={pretrained.folder / 'checkpoints'}"
    still = ("model.critic.optimizer.lr=1.0e-30", "model.critic.optimizer.min_lr=0.0", "trainer.max_steps=1")
    saved = "callbacks.checkpoint={save_last: true}"
    run = fit(tmp_path / "warm", key, *still, saved)
    name = "critic.weights"
    both = {k: v for k, v in run.states[1].items() if k.startswith(name)}
    assert recorder.differing(both, {k: pretrained.states[3][k] for k in both}, name) == []
    assert run.experiences[0].values.any()
    # Its own first two optimizer steps, twice over the samples.
    assert run.states[1]["critic.num_steps_done"] == 4 and sorted(run.metrics) == [1]
    assert run.states[1]["critic.schedule"]["num_steps"] == 4

    # A resumed run has its own critic, whatever it once started from.
    resumed = fit(
        tmp_path / "warm", "model.critic.warm_start=/nowhere", "trainer.max_steps=2", saved, ckpt_path="auto"
    )
    assert sorted(resumed.metrics) == [2] and resumed.states[2]["critic.num_steps_done"] == 8

    other = "model.actor.architecture.hidden_size=16"
    with pytest.raises(ValueError, match=r"another model than model.actor describes: hidden_size 32, now 16"):
        fit(tmp_path / "other", key, other)
