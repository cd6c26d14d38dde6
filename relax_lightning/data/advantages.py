"""The advantages side: what the roles write to the sample store, and the experience that comes back."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule
from torch import Tensor

from relax_lightning.batch import Experience, Rollouts
from relax_lightning.config import AlgorithmConfig
from relax_lightning.data.experience import AdvantagesService, LocalAdvantages
from relax_lightning.data.store import LocalStore, SampleStore


class AdvantagesDataModule(LightningDataModule):
    """Turns rollouts and values into experience, by way of the sample store and the advantages service.

    Both are in this process unless a launcher connects others. The service sees every sample, so whitening is over the
    whole rollout.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: SampleStore = LocalStore()
        self._service: AdvantagesService = LocalAdvantages(self._store)
        self._partition: str | None = None

    def connect(self, store: SampleStore, service: AdvantagesService) -> None:
        """Use a store and a service that live elsewhere."""
        self._store, self._service = store, service

    def share(self, rollouts: Rollouts, iteration: int) -> None:
        """Write what the rollout gave, into a partition of its own; the one before is cleared."""
        if self._partition is not None:
            self._store.clear(self._partition)
        self._partition = f"iteration {iteration}"
        columns = {
            "prompt_tokens": rollouts.prompt_tokens,
            "prompt_lengths": rollouts.prompt_lengths,
            "response_tokens": rollouts.response_tokens,
            "response_lengths": rollouts.response_lengths,
            "response_mask": rollouts.response_mask,
            "rollout_log_probs": rollouts.rollout_log_probs,
            "rewards": rollouts.rewards,
            "truncated": rollouts.truncated,
        }
        self._store.put(self._partition, range(len(rollouts)), columns)

    def compute(
        self, rollouts: Rollouts, values: Tensor, final_values: Tensor | None, algorithm: AlgorithmConfig
    ) -> tuple[Experience, dict[str, float]]:
        """GAE and its statistics, for the rollouts that were shared last.

        Args:
            rollouts: All samples of the iteration.
            values: [batch, response] float32.
            final_values: [batch] float32, value of the state after each response; None where truncation does not
                bootstrap.
            algorithm: Discount, lambdas, truncation and whitening.

        Returns:
            The experience, with the engine's log-probs as old ones, and the metrics of values, advantages, returns.
        """
        assert self._partition is not None
        rows, written = range(len(rollouts)), {"values": values}
        if final_values is not None:
            written["final_values"] = final_values
        self._store.put(self._partition, rows, written)
        metrics = self._service.compute(self._partition, len(rollouts), algorithm)
        read = self._store.get(self._partition, rows, ("advantages", "returns"), reader="actor and critic")
        return Experience(
            rollouts, values, read["advantages"], read["returns"], rollouts.rollout_log_probs
        ), metrics
