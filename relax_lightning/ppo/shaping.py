"""From the rewards that the environment gave to those that are learned from."""

from __future__ import annotations

from torch import Tensor

from relax_lightning.algorithms.kl import estimate_kl
from relax_lightning.algorithms.kl_controller import KLController
from relax_lightning.algorithms.reward_shaping import RunningMoments, has_equal_rewards, overlong_penalty
from relax_lightning.algorithms.token_rewards import token_rewards
from relax_lightning.config import AlgorithmConfig, RolloutConfig
from relax_lightning.ppo.batch import Rollouts


class RewardShaping:
    """Penalties for length and a missing end, running normalization, bounds, KL to the reference; in this order.

    Its running statistics and the weight of the KL are part of a checkpoint. It has to see all samples of an iteration.

    Args:
        config: The keys under `data.rollout`.
        algorithm: The keys under `model.algorithm`: what the KL weighs.
    """

    def __init__(self, config: RolloutConfig, algorithm: AlgorithmConfig) -> None:
        self._config = config
        self._moments = RunningMoments()
        self._kl = KLController(algorithm.kl_coef, algorithm.kl_target, algorithm.kl_horizon)
        self.penalizes_kl = algorithm.kl_coef > 0
        """Whether `token_rewards` wants log-probs."""
        self._observed = (0.0, 0)

    def learnable(self, rollouts: Rollouts) -> tuple[Tensor, dict[str, float]]:
        """[batch, response] bool: the mask without prompts that are left out, and what that costs."""
        if not self._config.drop_equal_rewards:
            return rollouts.response_mask, {}
        return drop_equal_rewards(rollouts, self._config.n_samples_per_prompt)

    def token_rewards(
        self, rollouts: Rollouts, old_log_probs: Tensor | None = None, ref_log_probs: Tensor | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """The rewards to learn from, one a token.

        Args:
            rollouts: All samples of the iteration.
            old_log_probs: [batch, response], of the policy before the update; None where no KL is taken off.
            ref_log_probs: [batch, response], of the reference; the same.

        Returns:
            [batch, response] float32, 0 where masked; and metrics of what was done, none where nothing is switched on.
        """
        rewards, metrics = self._of_samples(rollouts)
        mask = rollouts.response_mask
        if not self.penalizes_kl:
            return token_rewards(rewards, mask), metrics
        assert old_log_probs is not None and ref_log_probs is not None
        kl, kl_coef = estimate_kl(old_log_probs, ref_log_probs, mask, estimator="k1"), self._kl.kl_coef
        samples = int(mask.any(1).sum())
        mean = float(kl.double().sum()) / max(1, samples)
        self._observed = (mean, samples)
        metrics |= {"reference/kl_per_response": mean, "reference/kl_coef": kl_coef}
        return token_rewards(rewards, mask, kl=kl, kl_coef=kl_coef), metrics

    def steer_kl(self) -> None:
        """Let the iteration's KL move its weight: where the actor stands still, as in a warm-up, it tells nothing."""
        if self.penalizes_kl:
            self._kl.update(*self._observed)

    def _of_samples(self, rollouts: Rollouts) -> tuple[Tensor, dict[str, float]]:
        """[batch] float32, and metrics."""
        shaping = self._config.shaping
        rewards, metrics = rollouts.rewards.float(), {}
        if shaping.overlong_buffer_tokens is not None:
            penalty = shaping.overlong_penalty * overlong_penalty(
                rollouts.response_lengths,
                max_tokens=self._config.sampling.max_new_tokens,
                buffer_tokens=shaping.overlong_buffer_tokens,
            )
            rewards = rewards + penalty
            metrics["shaping/overlong_fraction"] = _fraction(penalty < 0)
        if shaping.missing_eos_penalty is not None:
            rewards = rewards - shaping.missing_eos_penalty * rollouts.truncated.float()
            metrics["shaping/missing_eos_fraction"] = _fraction(rollouts.truncated)
        if shaping.normalize:
            self._moments.update(rewards)
            rewards = self._moments.normalize(rewards)
            metrics |= {
                "shaping/running_mean": self._moments.mean,
                "shaping/running_std": self._moments.std,
            }
        if shaping.clip_min is not None or shaping.clip_max is not None:
            clipped = rewards.clamp(shaping.clip_min, shaping.clip_max)
            metrics["shaping/clipped_fraction"] = _fraction(clipped != rewards)
            rewards = clipped
        if metrics:
            metrics["shaping/reward_mean"] = float(rewards.double().mean())
        return rewards, metrics

    def state_dict(self) -> dict[str, dict[str, float]]:
        """The running statistics, and the weight of the KL."""
        return {"moments": self._moments.state_dict(), "kl": self._kl.state_dict()}

    def load_state_dict(self, state: dict[str, dict[str, float]]) -> None:
        """Go on from them."""
        self._moments.load_state_dict(state["moments"])
        self._kl.load_state_dict(state["kl"])


def drop_equal_rewards(rollouts: Rollouts, group_size: int) -> tuple[Tensor, dict[str, float]]:
    """The mask without prompts whose samples all got the same reward, and what leaving them out costs.

    Args:
        rollouts: With the rewards of the environment, the samples of a prompt beside each other.
        group_size: Samples a prompt.

    Returns:
        [batch, response] bool; and the share of prompts, and of generated tokens, that nothing is learned from.
    """
    dropped = has_equal_rewards(rollouts.rewards, group_size=group_size)
    lengths = rollouts.response_lengths.double()
    metrics = {
        "filter/dropped_prompts_fraction": _fraction(dropped),
        "filter/dropped_tokens_fraction": float(lengths[dropped].sum() / lengths.sum().clamp(min=1)),
    }
    return rollouts.response_mask & ~dropped[:, None], metrics


def _fraction(flags: Tensor) -> float:
    return float(flags.double().mean()) if flags.numel() else 0.0
