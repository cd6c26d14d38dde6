"""Every option that is off by default, two iterations each."""

import math

import pytest
import torch

A = "model.algorithm"
OPTIONS = {
    "lambd_critic": (f"{A}.lambd_critic=1.0",),
    "lambd_length_alpha": (f"{A}.lambd_length_alpha=0.5",),
    "eps_clip_high": (f"{A}.eps_clip_high=0.28",),
    "eps_clip_c": (f"{A}.eps_clip_c=3.0",),
    "no value clip": (f"{A}.value_clip=null",),
    "no entropy": (f"{A}.entropy_coef=0.0",),
    "bootstrap": (f"{A}.truncation=bootstrap", "model.critic.head_init=normal"),
    "sequence_mean": (f"{A}.loss_aggregation=sequence_mean",),
    "importance_cap": (f"{A}.importance_cap=2.0", f"{A}.old_log_probs=recompute"),
    "critic epochs": (f"{A}.num_critic_epochs=3",),
    "micro_batch_size": ("model.micro_batch_size=4",),
    "token budget": ("model.max_tokens_per_microbatch=20",),
    "plain optimizer": ("model.actor.optimizer.distributed=false",),
    "recompute": ("model.actor.recompute=full", "model.critic.recompute=full"),
    "cosine": ("model.actor.optimizer.decay=cosine",),
    "temperature": ("data.rollout.sampling.temperature=0.7",),
    "top_p": ("data.rollout.sampling.top_p=0.9", f"{A}.old_log_probs=recompute"),
    "greedy validation": (
        "trainer.val_check_interval=1",
        "data.rollout.validation={easy: {class_path: relax_lightning.data.digits.ReversedDigits,"
        " init_args: {size: 9, max_digits: 2}, n_samples_per_prompt: 3,"
        " sampling: {temperature: 0, max_new_tokens: 3}}}",
    ),
    "tied": ("model.actor.architecture.tie_word_embeddings=true",),
}


@pytest.fixture(scope="module")
def plain(fit, tmp_path_factory):
    return fit(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def run_with(fit, tmp_path):
    def run_with(option):
        run = fit(tmp_path, *OPTIONS[option])
        assert sorted(run.metrics) == [1, 2]
        assert [k for m in run.metrics.values() for k, v in m.items() if not math.isfinite(v)] == []
        assert all(torch.isfinite(v).all() for v in run.states[2].values() if isinstance(v, torch.Tensor))
        assert {"actor/pg_loss", "critic/value_loss"} <= set(run.metrics[2])
        return run

    return run_with


# What an option must change of the first iterations, and what it must leave, compared with the run without it.
@pytest.mark.parametrize("option", ["lambd_critic", "lambd_length_alpha", "no entropy", "sequence_mean", "cosine",
                                    "critic epochs", "temperature", "top_p"])  # fmt: skip
def test_option_changes_the_training(run_with, recorder, plain, option):
    run = run_with(option)
    assert recorder.differing(plain.states[2], run.states[2], "actor.weights")


@pytest.mark.parametrize("option", ["micro_batch_size", "token budget", "recompute", "plain optimizer"])
def test_option_changes_only_how_it_is_computed(run_with, plain, option):
    run = run_with(option)
    for name, value in plain.states[2].items():
        if ".weights." in name:
            torch.testing.assert_close(run.states[2][name], value, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("option", ["eps_clip_high", "eps_clip_c", "no value clip", "importance_cap", "tied"])
def test_option_runs(run_with, option):
    run_with(option)


def test_lambd_critic_moves_returns_and_not_advantages(run_with, plain):
    one, other = run_with("lambd_critic").experiences[1], plain.experiences[1]
    assert not torch.equal(one.returns, other.returns)
    first = (run_with("lambd_critic").experiences[0], plain.experiences[0])
    torch.testing.assert_close(first[0].advantages, first[1].advantages)


def test_bootstrap_counts_the_value_after_a_cut_response(run_with):
    experience = run_with("bootstrap").experiences[0]
    rollouts = experience.rollouts
    last = (rollouts.response_lengths - 1).unsqueeze(1)
    left = (experience.returns.gather(1, last).squeeze(1) - rollouts.rewards).abs()
    # The return at the last token is the reward, and where the response was cut also the value of what follows.
    assert rollouts.truncated.any() and not rollouts.truncated.all()
    assert (left[rollouts.truncated] > 1e-6).all() and (left[~rollouts.truncated] < 1e-6).all()


def test_epochs_and_target_kl_count_steps(fit, run_with, tmp_path):
    run = run_with("critic epochs")
    # Two optimizer steps a pass: 2 passes of the actor, 3 of the critic, 2 iterations.
    assert (run.states[2]["actor.num_steps_done"], run.states[2]["critic.num_steps_done"]) == (8, 12)
    cut = fit(tmp_path / "kl", "model.algorithm.target_kl=1.0e-12", "model.algorithm.num_ppo_epochs=4")
    # The first step's KL is 0; the one after it ends the passes, in both iterations.
    actor_steps = [event for event in cut.events if event.startswith("on_before_actor_step")]
    assert 2 <= len(actor_steps) <= 6 and cut.states[2]["actor.num_steps_done"] == len(actor_steps)
    assert cut.states[2]["critic.num_steps_done"] == 16


def test_greedy_validation_has_its_own_sampling(run_with):
    run = run_with("greedy validation")
    # Three greedy samples of one prompt are one sample.
    assert [set(v) for v in run.validations] == [{f"val/easy/{name}" for name in (
        "reward_mean", "reward_std", "response_length_mean", "response_truncated_fraction",
        "response_untrainable_fraction", "response_trainable_token_fraction", "response_num_turns_mean",
        "response_repeated_fraction", "mean_at_3", "pass_at_2", "maj_at_2", "pass_at_3", "maj_at_3")}] * 2  # fmt: skip
    first = run.validations[0]
    assert (
        len({first[f"val/easy/{name}"] for name in ("mean_at_3", "pass_at_2", "maj_at_2", "maj_at_3")}) == 1
    )
    assert run.validations[0]["val/easy/response_length_mean"] <= 3
    assert max(int(r.response_lengths.max()) for r in run.rollouts) == 5


def test_shuffled_rewards_are_the_same_rewards_elsewhere(fit, plain, tmp_path):
    run = fit(tmp_path, "trainer.max_steps=1", "data.rollout.shuffle_rewards=true")
    one, other = run.rollouts[0].rewards, plain.rollouts[0].rewards
    assert torch.equal(run.rollouts[0].response_tokens, plain.rollouts[0].response_tokens)
    assert torch.equal(one.sort().values, other.sort().values) and not torch.equal(one, other)
