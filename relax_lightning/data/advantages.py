"""The advantages service, in this process: GAE once an iteration, over all samples."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from relax_lightning.algorithms.diagnostics import value_bias
from relax_lightning.algorithms.gae import compute_gae
from relax_lightning.algorithms.length_adaptive import length_adaptive_lambd
from relax_lightning.algorithms.statistics import explained_variance, whiten
from relax_lightning.algorithms.token_rewards import token_rewards
from relax_lightning.batch import Experience, Rollouts
from relax_lightning.config import AlgorithmConfig


class AdvantagesDataModule(LightningDataModule):
    """Turns rollouts and values into experience. It sees every sample, so whitening is over the whole rollout."""

    def compute(
        self,
        rollouts: Rollouts,
        values: Tensor,
        final_values: Tensor | None,
        algorithm: AlgorithmConfig,
        *,
        rewards: Tensor | None = None,
    ) -> tuple[Experience, dict[str, float]]:
        """GAE and its statistics.

        Args:
            rollouts: All samples of the iteration.
            values: [batch, response] float32.
            final_values: [batch] float32, value of the state after each response; None where truncation does not
                bootstrap.
            algorithm: Discount, lambdas, truncation and whitening.
            rewards: [batch, response], shaped and with the KL penalty; None: those of the rollouts as they are.

        Returns:
            The experience, with the engine's log-probs as old ones, and the metrics of values, advantages, returns.
        """
        mask = rollouts.response_mask
        lambd: float | Tensor = algorithm.lambd
        if algorithm.lambd_length_alpha is not None:
            lambd = length_adaptive_lambd(mask, alpha=algorithm.lambd_length_alpha)
        bootstrap = None
        if algorithm.truncation == "bootstrap":
            assert final_values is not None
            bootstrap = torch.where(rollouts.truncated, final_values, 0.0)
        advantages, returns = compute_gae(
            token_rewards(rollouts.rewards, mask) if rewards is None else rewards,
            values,
            mask,
            gamma=algorithm.gamma,
            lambd=lambd,
            lambd_critic=algorithm.lambd_critic,
            bootstrap_values=bootstrap,
        )
        metrics = _statistics(values, advantages, returns, mask)
        if algorithm.normalize_advantages:
            advantages = whiten(advantages, mask)
        return Experience(rollouts, values, advantages, returns, rollouts.rollout_log_probs), metrics


def _statistics(values: Tensor, advantages: Tensor, returns: Tensor, mask: Tensor) -> dict[str, float]:
    if not mask.any():
        return {}
    metrics = {"critic/explained_variance": float(explained_variance(values, returns, mask))}
    for name, record in {"values": values, "returns": returns, "advantages": advantages}.items():
        kept = record[mask]
        metrics[f"{name}/mean"] = float(kept.mean())
        metrics[f"{name}/std"] = float(kept.std()) if kept.numel() > 1 else 0.0
    metrics["advantages/abs_max"] = float(advantages[mask].abs().max())
    bias = value_bias(values, returns, mask)
    return metrics | {f"values/bias_{third}": float(mean) for third, mean in bias.items()}
