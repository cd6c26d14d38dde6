"""Checks of `model.algorithm`, `model.reference` and the shaping of rewards: keys that contradict or do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.loader import KL_WITHOUT_REFERENCE, kl_without_reference, value_at
from relax_lightning.config.sections import entries
from relax_lightning.config.tree import Config

_KEY = "model.algorithm"
_SHAPING = "data.rollout.shaping"
_NEEDED = {
    **dict.fromkeys(
        (f"{_KEY}.importance_floor", f"{_KEY}.importance_level", f"{_KEY}.importance_mode"),
        (f"{_KEY}.importance_cap", "give one, for example 2.0"),
    ),
    **dict.fromkeys((f"{_KEY}.kl_loss_coef", f"{_KEY}.kl_loss_type"), (f"{_KEY}.use_kl_loss", "set it true")),
    f"{_KEY}.kl_horizon": (f"{_KEY}.kl_target", "give one, for example 6.0"),
    f"{_KEY}.positive_nll_threshold": (f"{_KEY}.positive_nll_coef", "give one, for example 0.1"),
    "model.actor.optimizer.min_lr": ("model.actor.optimizer.decay", "say linear or cosine"),
    f"{_SHAPING}.overlong_penalty": (f"{_SHAPING}.overlong_buffer_tokens", "say how many"),
}
"""Keys that do nothing unless the one beside them is set, and how to set that."""


def algorithm_problems(config: Config) -> Iterator[Problem]:
    """What is wrong with a resolved configuration."""
    yield from _idle_problems(config)
    yield from _lambda_problems(config)
    yield from _importance_problems(config)
    yield from _kl_term_problems(config)
    yield from _reward_problems(config)
    yield from _warm_start_problems(config)


def missing_reference_problems(config: Config) -> Iterator[Problem]:
    """KL terms of a configuration as it was written that have no reference to compare with."""
    if kl_without_reference(config.model):
        yield Problem(_KEY, KL_WITHOUT_REFERENCE, "warning", ("model.reference",))


def _idle_problems(config: Config) -> Iterator[Problem]:
    known = entries()
    for key, (needed, change) in _NEEDED.items():
        beside = value_at(config, needed)
        if value_at(config, key) != known[key].default and beside == known[needed].default:
            change = f"it does nothing without; {change}"
            message = fault(f"{needed.rpartition('.')[2]} beside it", beside, change)
            yield Problem(key, message, "warning", (needed,))


def _lambda_problems(config: Config) -> Iterator[Problem]:
    algorithm = config.model.algorithm
    if algorithm.lambd_length_alpha is not None and algorithm.lambd != 1.0:
        message = fault("one of lambd and lambd_length_alpha", algorithm.lambd, "the second wins; remove one")
        yield Problem(f"{_KEY}.lambd", message, "warning", (f"{_KEY}.lambd_length_alpha",))


def _importance_problems(config: Config) -> Iterator[Problem]:
    a = config.model.algorithm
    if a.importance_cap is None:
        return
    if a.importance_floor is not None and a.importance_floor > a.importance_cap:
        message = fault(
            f"at most importance_cap ({a.importance_cap})", a.importance_floor, "change one of the two"
        )
        yield Problem(f"{_KEY}.importance_floor", message, involves=(f"{_KEY}.importance_cap",))
    if a.old_log_probs == "rollout":
        change = "set model.algorithm.old_log_probs: recompute, or leave importance_cap out"
        wanted = "old log-probs of the trainer, which the weights correct the engine's to"
        message = f"wanted {wanted}, got old_log_probs: rollout, so that every weight is 1; {change}"
        yield Problem(f"{_KEY}.importance_cap", message, "warning", (f"{_KEY}.old_log_probs",))


def _kl_term_problems(config: Config) -> Iterator[Problem]:
    a, reference = config.model.algorithm, ("model.reference",)
    if a.kl_coef and a.use_kl_loss:
        change = "the KL would count twice: set kl_coef: 0.0 or use_kl_loss: false"
        message = (
            f"wanted the KL in the rewards or in the loss, got kl_coef: {a.kl_coef} and use_kl_loss: true"
        )
        yield Problem(f"{_KEY}.use_kl_loss", f"{message}; {change}", involves=(f"{_KEY}.kl_coef", *reference))
    if a.kl_target is not None and not a.kl_coef:
        change = "give the weight to start with, for example 0.05"
        message = fault("above 0 with kl_target", a.kl_coef, change)
        yield Problem(f"{_KEY}.kl_coef", message, involves=(f"{_KEY}.kl_target", *reference))
    if a.use_kl_loss and not a.kl_loss_coef:
        message = fault("above 0 with use_kl_loss", a.kl_loss_coef, "the KL is only shown; give a weight")
        yield Problem(f"{_KEY}.kl_loss_coef", message, "warning", (f"{_KEY}.use_kl_loss", *reference))
    if a.use_kl_loss and a.kl_loss_coef and a.kl_loss_type == "k1":
        wanted = "k2 or k3: the gradient of k1 is 0 on average, so that it holds nothing back"
        message = fault(wanted, "k1", "set k2, whose gradient is that of the KL")
        yield Problem(f"{_KEY}.kl_loss_type", message, "warning", (f"{_KEY}.use_kl_loss", *reference))
    if config.model.reference is not None and not (a.kl_coef or a.use_kl_loss):
        message = (
            "wanted a KL term that uses it, got kl_coef: 0.0 and use_kl_loss: false; nothing is computed"
        )
        yield Problem("model.reference", f"{message}; give one or remove it", "warning", (_KEY,))


def _reward_problems(config: Config) -> Iterator[Problem]:
    rollout = config.data.rollout
    if rollout.drop_equal_rewards and rollout.n_samples_per_prompt == 1:
        message = fault(
            "n_samples_per_prompt above 1",
            1,
            "a sample alone always equals itself; raise it, or leave this out",
        )
        yield Problem(
            "data.rollout.drop_equal_rewards", message, involves=("data.rollout.n_samples_per_prompt",)
        )
    buffer, longest = rollout.shaping.overlong_buffer_tokens, rollout.sampling.max_new_tokens
    if buffer is not None and buffer > longest:
        message = fault(f"at most sampling.max_new_tokens ({longest})", buffer, "change one of the two")
        involves = ("data.rollout.sampling.max_new_tokens",)
        yield Problem("data.rollout.shaping.overlong_buffer_tokens", message, involves=involves)


def _warm_start_problems(config: Config) -> Iterator[Problem]:
    actor, critic = config.model.actor, config.model.critic
    if actor.warm_start is not None and actor.load is not None:
        change = "load resumes both roles with their optimizers, warm_start takes weights alone; remove one"
        message = fault("one of load and warm_start", actor.warm_start, change)
        yield Problem("model.actor.warm_start", message, involves=("model.actor.load",))
    elif critic.warm_start is not None and critic.load is not None:
        change = "load resumes the critic with its optimizer, warm_start takes weights alone; remove one"
        message = fault(
            "one of critic.load (which follows actor.load) and warm_start", critic.warm_start, change
        )
        yield Problem("model.critic.warm_start", message, involves=("model.critic.load", "model.actor.load"))
