"""The advantages side: what the roles write to the sample store, and the experience that comes back."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule
from torch import Tensor

from relax_lightning.config import AlgorithmConfig
from relax_lightning.data.experience import AdvantagesService, LocalAdvantages
from relax_lightning.data.store import LocalStore, SampleStore
from relax_lightning.distributed.peers import ALONE, Peers
from relax_lightning.ppo.batch import Experience, Rollouts


class AdvantagesDataModule(LightningDataModule):
    """Turns rollouts and values into experience, by way of the sample store and the advantages service.

    Both are in this process unless a launcher connects others. The service sees every sample, so whitening is over the
    whole rollout.
    """

    def __init__(self) -> None:
        super().__init__()
        self._store: SampleStore = LocalStore()
        self._service: AdvantagesService = LocalAdvantages(self._store)
        self._partition = ""
        self._is_shared = False
        self.peers = ALONE
        """All processes of the job; each of them holds all samples."""

    def connect(self, store: SampleStore, service: AdvantagesService) -> None:
        """Use a store and a service that all processes of the job share."""
        self._store, self._service, self._is_shared = store, service, True

    @property
    def _sharers(self) -> Peers:
        return self.peers if self._is_shared else ALONE

    def compute(
        self,
        rollouts: Rollouts,
        values: Tensor,
        final_values: Tensor | None,
        algorithm: AlgorithmConfig,
        *,
        rewards: Tensor,
        iteration: int,
    ) -> tuple[Experience, dict[str, float]]:
        """GAE and its statistics, by way of a partition of their own; the one before is cleared.

        Args:
            rollouts: All samples of the iteration.
            values: [batch, response] float32.
            final_values: [batch] float32, value of the state after each response; None where truncation does not
                bootstrap.
            algorithm: Discount, lambdas, truncation and whitening.
            rewards: [batch, response] float32, shaped and with the KL penalty.
            iteration: From 1.

        Returns:
            The experience, with the engine's log-probs as old ones, and the metrics of values, advantages, returns.
        """
        self._begin(f"iteration {iteration}")
        columns = {"response_mask": rollouts.response_mask, "token_rewards": rewards, "values": values}
        if final_values is not None:
            columns |= {"truncated": rollouts.truncated, "final_values": final_values}
        self._write(columns)
        partition, num_rows = self._partition, len(rollouts)
        metrics = self._sharers.on_first(lambda: self._service.compute(partition, num_rows, algorithm))
        reader = f"rank {self._sharers.rank}"
        read = self._store.get(partition, range(num_rows), ("advantages", "returns"), reader=reader)
        experience = Experience(
            rollouts, values, read["advantages"], read["returns"], rollouts.rollout_log_probs
        )
        return experience, metrics

    def _begin(self, partition: str) -> None:
        if self._partition and self._sharers.is_first:
            # All have read it: no process gets to the next iteration before the others have ended this one.
            self._store.clear(self._partition)
        self._partition = partition

    def _write(self, columns: dict[str, Tensor]) -> None:
        """Every process writes its share of the rows."""
        rows = range(self._sharers.rank, len(next(iter(columns.values()))), self._sharers.size)
        mine = columns if self._sharers.size == 1 else {name: t[rows] for name, t in columns.items()}
        self._store.put(self._partition, rows, mine)
