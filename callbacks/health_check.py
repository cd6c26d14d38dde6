"""Warnings in words when a metric leaves its healthy range. docs/callbacks.md has the ranges and the reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from relax_lightning.ppo.callback import PPOCallback


@dataclass(frozen=True)
class HealthyRange:
    """Where a metric should stay, and what it means when it does not."""

    metric: str
    low: float = -math.inf
    high: float = math.inf
    num_iterations: int = 1
    """Iterations in a row outside before it is said: one bad value of a noisy metric means nothing."""
    meaning: str = ""
    """What is wrong then, and what to try."""
    needs: tuple[str, float] | None = None
    """Another metric and the value it must exceed, else this one says nothing."""

    def holds(self, metrics: Mapping[str, float]) -> bool | None:
        """Whether the metric is inside; None where it is absent or says nothing."""
        if self.metric not in metrics:
            return None
        if self.needs is not None and not metrics.get(self.needs[0], math.inf) > self.needs[1]:
            return None
        # NaN is inside of nothing.
        return self.low <= metrics[self.metric] <= self.high

    @property
    def words(self) -> str:
        """The range in words."""
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        return f"at least {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"


HEALTHY = (
    HealthyRange(
        "reward/std", low=1e-6, num_iterations=3,
        meaning="all rewards are equal, so there is nothing to tell good responses by; look at samples/, choose easier "
        "or harder prompts, or correct the reward",
    ),
    HealthyRange(
        "response/truncated_fraction", high=0.5, num_iterations=5,
        meaning="most responses are cut off before their end; raise data.rollout.sampling.max_new_tokens, or look in "
        "samples/ whether they ramble",
    ),
    HealthyRange(
        "response/repeated_fraction", high=0.5, num_iterations=3,
        meaning="responses repeat themselves, as a policy does that has collapsed or found a way around the reward; "
        "look at samples/, lower the actor's lr, go back to an earlier checkpoint",
    ),
    HealthyRange(
        "response/untrainable_fraction", high=0.5, num_iterations=3,
        meaning="most samples have no token to learn from: empty, or masked throughout; look at truncation and at the "
        "rollout function's masks",
    ),
    HealthyRange(
        "critic/explained_variance", low=0.0, num_iterations=20, needs=("reward/std", 0.01),
        meaning="the critic predicts returns worse than their mean would; give it more steps "
        "(callbacks.critic_only_warmup, model.algorithm.num_critic_epochs), or change model.critic.optimizer.lr",
    ),
    HealthyRange(
        "critic/value_clipfrac", high=0.5, num_iterations=10,
        meaning="the value loss is clipped for most tokens, so the critic cannot follow; raise "
        "model.algorithm.value_clip, or set it to null",
    ),
    HealthyRange(
        "actor/pg_clipfrac", high=0.4, num_iterations=3,
        meaning="the ratio is clipped for many tokens: the steps are too large; lower model.actor.optimizer.lr or "
        "model.algorithm.num_ppo_epochs",
    ),
    HealthyRange(
        "actor/ppo_kl_k3", high=0.2, num_iterations=3,
        meaning="the policy moves far in one iteration; lower model.actor.optimizer.lr, or set "
        "model.algorithm.target_kl",
    ),
    HealthyRange(
        "actor/ratio_max", high=1e4, num_iterations=3,
        meaning="some token has become thousands of times likelier within one iteration; lower "
        "model.actor.optimizer.lr, or set model.algorithm.eps_clip_c",
    ),
    HealthyRange(
        "actor/effective_sample_fraction", low=0.3, num_iterations=3,
        meaning="a few tokens carry the weight of all the others; lower model.actor.optimizer.lr or "
        "model.algorithm.num_ppo_epochs",
    ),
    HealthyRange(
        "actor/entropy", low=0.005, num_iterations=5, needs=("reward/std", 0.01),
        meaning="the policy hardly draws any more, while the rewards still differ: it explores nothing; raise "
        "model.algorithm.entropy_coef or the temperature, lower the lr",
    ),
    HealthyRange(
        "mismatch/log_prob_abs_diff", high=0.1, num_iterations=3,
        meaning="the engine's log-probs are far from the actor's: other weights, precision or sampling; try "
        "strategy.verify_publish, model.algorithm.old_log_probs: recompute, model.algorithm.importance_cap",
    ),
)  # fmt: skip


class HealthCheck(PPOCallback):
    """Warns once each time a metric has left its healthy range for some iterations, and says what to try.

    Args:
        ranges: Own ranges by metric, a lowest and a highest number, None: no bound; None for the pair: not looked at.
            The metric of an own range counts at its first iteration outside.
        stop_after: End training once a metric has been outside for this many iterations in a row, and not before its
            warning; None: never.
    """

    def __init__(
        self, ranges: Mapping[str, Sequence[float | None] | None] | None = None, stop_after: int | None = None
    ) -> None:
        self.ranges = _with_own(ranges or {})
        self._own = [name for name, given in (ranges or {}).items() if given is not None]
        self._stop_after = stop_after
        self._num_outside: dict[str, int] = {}
        self._seen: set[str] = set()

    def on_iteration_end(self, trainer: Trainer, module: LightningModule, metrics: dict[str, float]) -> None:
        """Look at every range."""
        iteration = int(getattr(module, "iteration", trainer.global_step))
        self._seen.update(metrics)
        for healthy in self.ranges:
            holds = healthy.holds(metrics)
            if holds is None:
                continue
            count = 0 if holds else self._num_outside.get(healthy.metric, 0) + 1
            self._num_outside[healthy.metric] = count
            value = metrics[healthy.metric]
            if count == healthy.num_iterations:
                rank_zero_warn(_warning(iteration, healthy, value))
            is_lasting = self._stop_after is not None and count >= max(
                self._stop_after, healthy.num_iterations
            )
            if is_lasting and not trainer.should_stop:
                trainer.should_stop = True
                rank_zero_warn(
                    f"iteration {iteration}: training ends, for {healthy.metric} was outside of its healthy range "
                    f"({healthy.words}) for {count} iterations (callbacks.health_check.stop_after)"
                )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name own ranges that were never looked at."""
        unknown = [name for name in self._own if name not in self._seen]
        if unknown and self._seen:
            rank_zero_warn(
                f"callbacks.health_check.ranges: wanted names of metrics, got {', '.join(unknown)}, which no iteration "
                "had; docs/tracking.md lists them"
            )

    def state_dict(self) -> dict[str, Any]:
        """How long each metric has been outside."""
        return {"num_outside": dict(self._num_outside)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._num_outside = dict(state_dict["num_outside"])


def _with_own(own: Mapping[str, Sequence[float | None] | None]) -> list[HealthyRange]:
    ranges = {healthy.metric: healthy for healthy in HEALTHY if healthy.metric not in own}
    known = {healthy.metric: healthy for healthy in HEALTHY}
    for name, given in own.items():
        if given is not None:
            low, high = given
            ranges[name] = replace(
                known.get(name, HealthyRange(name)),
                low=-math.inf if low is None else low,
                high=math.inf if high is None else high,
                num_iterations=1,
                needs=None,
            )
    return list(ranges.values())


def _warning(iteration: int, healthy: HealthyRange, value: float) -> str:
    lasting = f" for {healthy.num_iterations} iterations" if healthy.num_iterations > 1 else ""
    meaning = f": {healthy.meaning}" if healthy.meaning else ""
    return (
        f"iteration {iteration}: {healthy.metric} is {value:.4g}, outside of its healthy range ({healthy.words})"
        f"{lasting}{meaning}"
    )
