"""Optimizer steps and rates of a plan; tests/megatron/test_optimizer.py holds the decay against Megatron's own."""

import pytest

from relax_lightning.config import load, resolve
from relax_lightning.plan.schedule import role_schedule

BASE = [
    "trainer.max_steps=10",
    "model.global_batch_size=4",
    "model.algorithm.num_ppo_epochs=2",
    "model.algorithm.num_critic_epochs=3",
    "data.rollout.train.path=x.jsonl",
    "data.rollout.batch_size=4",
    "data.rollout.n_samples_per_prompt=2",
    "data.rollout.reward=exact_match",
    "model.actor.optimizer.lr=1.0e-3",
]


def schedule(role, *changes):
    return role_schedule(resolve(load([], [*BASE, *changes])), role)


def test_steps_and_iterations():
    actor, critic = schedule("actor", "callbacks.critic_only_warmup.num_steps=4"), schedule("critic")
    assert (actor.iterations, actor.steps_per_iteration) == (6, 4)
    assert (critic.iterations, critic.steps_per_iteration) == (10, 6)


def test_rates_of_warm_up_and_decay():
    constant = schedule("actor", "callbacks.lr_warmup.actor.num_iters=5")
    assert constant.rates == pytest.approx(
        {"step 0": 2e-4, "step 1": 4e-4, "warm-up end": 1e-3, "last step": 1e-3}, rel=1e-12
    )
    # 40 steps: step i has 1 - i / 40 of the rate; the last one 1 / 40 of it.
    linear = schedule("actor", "model.actor.optimizer.decay=linear")
    assert linear.rates == pytest.approx({"step 0": 1e-3, "step 1": 9.75e-4, "last step": 2.5e-5}, rel=1e-9)
    cosine = schedule(
        "critic", "model.critic.optimizer={decay: cosine, lr: 2.0e-3, min_lr: 1.0e-3}", "trainer.max_steps=1"
    )
    # 6 steps: 1e-3 + 0.5 * (1 + cos(pi * i / 6)) * 1e-3.
    assert cosine.rates["step 1"] == pytest.approx(1.9330127e-3, rel=1e-7)
    assert cosine.rates["last step"] == pytest.approx(1.0669873e-3, rel=1e-7)
    assert schedule("critic").rates["step 0"] == 1e-3


def test_nothing_is_said_while_the_sizes_are_missing():
    config = resolve(load([], [*BASE[4:6], "data.rollout.reward=exact_match"]))
    assert role_schedule(config, "actor") is None
