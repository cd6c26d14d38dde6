"""What the advantages service computes from the columns of an iteration, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from relax_lightning.algorithms.diagnostics import value_bias
from relax_lightning.algorithms.gae import compute_gae
from relax_lightning.algorithms.length_adaptive import length_adaptive_lambd
from relax_lightning.algorithms.statistics import explained_variance, whiten
from relax_lightning.config import AlgorithmConfig
from relax_lightning.data.store import SampleStore


class AdvantagesService(Protocol):
    """Reads rewards, masks and values of a partition from the sample store, and writes advantages and returns."""

    def compute(self, partition: str, num_rows: int, algorithm: AlgorithmConfig) -> dict[str, float]:
        """Do so for the rows 0 to `num_rows` - 1; returns the metrics of values, advantages and returns.

        Args:
            partition: Name of the iteration.
            num_rows: Its samples.
            algorithm: Discount, lambdas, truncation and whitening.

        Raises:
            RuntimeError: A row or column did not come.
        """
        ...


class LocalAdvantages:
    """The service in a process that has the store at hand.

    Args:
        store: What it reads and writes.
    """

    def __init__(self, store: SampleStore) -> None:
        self._store = store

    def compute(self, partition: str, num_rows: int, algorithm: AlgorithmConfig) -> dict[str, float]:
        """As `AdvantagesService` says."""
        rows, names = range(num_rows), ["token_rewards", "response_mask", "values"]
        if algorithm.truncation == "bootstrap":
            names += ["truncated", "final_values"]
        read = self._store.get(partition, rows, names, reader="advantages")
        written, metrics = advantages_and_returns(read, algorithm)
        self._store.put(partition, rows, written)
        return metrics


def advantages_and_returns(
    columns: Mapping[str, Tensor], algorithm: AlgorithmConfig
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """GAE over all samples of an iteration, whitened when asked, and its statistics.

    Args:
        columns: `token_rewards`, `response_mask` and `values` [batch, response]; with truncation `bootstrap` also
            `truncated` and `final_values` [batch], the value of the state after each response.
        algorithm: Discount, lambdas, truncation and whitening.

    Returns:
        `advantages` and `returns`, both [batch, response], 0 where masked; and the metrics, before whitening.
    """
    mask, values = columns["response_mask"], columns["values"]
    lambd: float | Tensor = algorithm.lambd
    if algorithm.lambd_length_alpha is not None:
        lambd = length_adaptive_lambd(mask, alpha=algorithm.lambd_length_alpha)
    bootstrap = None
    if algorithm.truncation == "bootstrap":
        bootstrap = torch.where(columns["truncated"], columns["final_values"], 0.0)
    advantages, returns = compute_gae(
        columns["token_rewards"],
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
    return {"advantages": advantages, "returns": returns}, metrics


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
