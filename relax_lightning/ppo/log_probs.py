"""Log-probs of a rollout under the policy before its update and under the reference: taken once, where first needed."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from relax_lightning.config import AlgorithmConfig
from relax_lightning.megatron.reference import Reference
from relax_lightning.megatron.role import Actor
from relax_lightning.ppo.batch import Experience, Rollouts
from relax_lightning.ppo.updates import Batching


class LogProbs:
    """Forward passes by the actor's model, with its own weights or the reference's.

    Args:
        algorithm: Which log-probs are wanted.
        actor: The policy.
        batching: Makes the micro-batches.
        reference: None where no KL term needs it.
    """

    def __init__(
        self, algorithm: AlgorithmConfig, actor: Actor, batching: Batching, reference: Reference | None
    ) -> None:
        self._algorithm = algorithm
        self._actor = actor
        self._batching = batching
        self.reference = reference

    @property
    def are_for_rewards(self) -> bool:
        """Whether the rewards take the KL from them, so that they are needed before GAE."""
        return self._algorithm.kl_coef > 0

    def for_rewards(self, rollouts: Rollouts) -> tuple[Tensor, Tensor]:
        """Those of the policy before the update and of the reference, both [batch, response] on CPU."""
        assert self.reference is not None
        groups = self._groups(rollouts)
        old_log_probs = rollouts.rollout_log_probs
        if self._algorithm.old_log_probs == "recompute":
            old_log_probs = self._actor.log_probs(rollouts, groups)
        return old_log_probs, self.reference.log_probs(rollouts, groups)

    def for_losses(self, experience: Experience) -> Experience:
        """The experience with what the actor's losses need and `for_rewards` has not taken."""
        if self.are_for_rewards:
            return experience
        rollouts = experience.rollouts
        groups = self._groups(rollouts)
        if self._algorithm.old_log_probs == "recompute":
            experience = replace(experience, old_log_probs=self._actor.log_probs(rollouts, groups))
        if self._algorithm.use_kl_loss:
            assert self.reference is not None
            experience = replace(experience, ref_log_probs=self.reference.log_probs(rollouts, groups))
        return experience

    def _groups(self, rollouts: Rollouts) -> list[list[int]]:
        return self._batching.groups(rollouts, list(range(len(rollouts))), self._actor.groups)
