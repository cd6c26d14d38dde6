"""The advantages side: what the roles write to the sample store, and the experience that comes back."""

from __future__ import annotations

from lightning.pytorch import LightningDataModule
from torch import Tensor

from relax_lightning.batch import Experience, Rollouts
from relax_lightning.config import AlgorithmConfig
from relax_lightning.data.experience import AdvantagesService, LocalAdvantages
from relax_lightning.data.store import LocalStore, SampleStore
from relax_lightning.peers import ALONE, Peers


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
        self._is_shared = False
        self.peers = ALONE
        """All processes of the job; each of them holds all samples."""

    def connect(self, store: SampleStore, service: AdvantagesService) -> None:
        """Use a store and a service that all processes of the job share."""
        self._store, self._service, self._is_shared = store, service, True

    @property
    def _sharers(self) -> Peers:
        return self.peers if self._is_shared else ALONE

    def share(self, rollouts: Rollouts, iteration: int) -> None:
        """Write what the rollout gave, into a partition of its own; the one before is cleared."""
        if self._partition is not None and self._sharers.is_first:
            # All have read it: no process gets to the next iteration before the others have ended this one.
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
        self._write(columns)

    def _write(self, columns: dict[str, Tensor]) -> None:
        """Every process writes its share of the rows."""
        assert self._partition is not None
        rows = range(self._sharers.rank, len(next(iter(columns.values()))), self._sharers.size)
        mine = columns if self._sharers.size == 1 else {name: t[rows] for name, t in columns.items()}
        self._store.put(self._partition, rows, mine)

    def compute(
        self,
        rollouts: Rollouts,
        values: Tensor,
        final_values: Tensor | None,
        algorithm: AlgorithmConfig,
        *,
        rewards: Tensor | None = None,
    ) -> tuple[Experience, dict[str, float]]:
        """GAE and its statistics, for the rollouts that were shared last.

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
        partition = self._partition
        assert partition is not None
        written, of_rewards = {"values": values}, "rewards"
        if final_values is not None:
            written["final_values"] = final_values
        if rewards is not None:
            of_rewards = "token_rewards"
            written[of_rewards] = rewards
        self._write(written)
        metrics = self._sharers.on_first(
            lambda: self._service.compute(partition, len(rollouts), algorithm, rewards=of_rewards)
        )
        reader = f"rank {self._sharers.rank}"
        read = self._store.get(partition, range(len(rollouts)), ("advantages", "returns"), reader=reader)
        experience = Experience(
            rollouts, values, read["advantages"], read["returns"], rollouts.rollout_log_probs
        )
        return experience, metrics
