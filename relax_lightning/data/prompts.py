"""Prompts, tokenized, and the loader that hands them out batch by batch."""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from relax_lightning.config import PromptsConfig
from relax_lightning.data.prompt_cache import cache_key, table_of
from relax_lightning.data.prompt_records import read_records
from relax_lightning.data.prompt_rows import ArrowRows, PromptRow, Summary, Tokenizer, arrow_batch, prepare
from relax_lightning.ppo.batch import Prompts
from relax_lightning.rewards.registry import ANY_LABEL

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptDataset:
    """All prompts of a set, tokenized."""

    rows: Sequence[PromptRow]
    num_dropped: int
    """Prompts that were longer than allowed."""
    fingerprint: str
    """A hash of all tokens and labels, in order."""

    @classmethod
    def load(
        cls,
        config: PromptsConfig,
        tokenizer: Tokenizer,
        *,
        max_prompt_tokens: int | None = None,
        read_label: Callable[[Any], Any] = ANY_LABEL,
    ) -> Self:
        """Read and tokenize a set; prompts that are too long are dropped and counted.

        A file is prepared once a host (`prompt_cache`); a prompts class is asked by every process.

        Args:
            config: Where the prompts are.
            tokenizer: Of the model that answers them.
            max_prompt_tokens: What the model has room for; the configuration may ask for less.
            read_label: Of the reward, see `read_records`.

        Raises:
            ValueError: A line is bad (named with file, line and reason), or no prompt is left.
        """
        limits = [limit for limit in (max_prompt_tokens, config.max_prompt_tokens) if limit is not None]
        limit = min(limits, default=None)

        def make(write: Callable[[list[PromptRow]], object]) -> Summary:
            return prepare(
                read_records(config, read_label),
                tokenizer,
                write,
                apply_chat_template=config.apply_chat_template,
                limit=limit,
            )

        if config.path is None:
            # Labels and metadata of a class may be any objects.
            rows: list[PromptRow] = []
            summary = make(rows.extend)
            found: Sequence[PromptRow] = rows
        else:
            table, summary = table_of(
                lambda: cache_key(config, tokenizer, limit, read_label),
                lambda write: make(lambda rows: write(arrow_batch(rows))),
            )
            found = ArrowRows(table)
        _check_not_empty(config, summary, limit)
        return cls(found, summary.num_read - summary.num_kept, summary.fingerprint)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def token_ids(self) -> tuple[array[int], ...]:
        """Tokens of every prompt; like `texts`, `labels` and `metadata`, all of them in memory at once."""
        return tuple(array("q", row.token_ids) for row in self.rows)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every prompt as text."""
        return tuple(row.text for row in self.rows)

    @property
    def labels(self) -> tuple[Any, ...]:
        """Every label."""
        return tuple(row.label for row in self.rows)

    @property
    def metadata(self) -> tuple[dict[str, Any], ...]:
        """Every prompt's metadata."""
        return tuple(row.metadata for row in self.rows)

    def select(self, ids: Sequence[int]) -> Prompts:
        """The prompts at the given positions, in the given order."""
        rows = [self.rows[i] for i in ids]
        return Prompts(
            ids=tuple(ids),
            token_ids=tuple(tuple(row.token_ids) for row in rows),
            texts=tuple(row.text for row in rows),
            labels=tuple(row.label for row in rows),
            metadata=tuple(row.metadata for row in rows),
        )


class PromptLoader:
    """Batches of prompts, epoch after epoch, that can be resumed in the middle of one.

    The order of an epoch depends on (seed, epoch) alone. It has a length, so Lightning does not fetch ahead of the
    iteration that is running.

    Args:
        dataset: The prompts.
        batch_size: Prompts a batch.
        shuffle: Another order in every epoch, else the order of the data set.
        seed: Of the orders.
        drop_last: Leave out the prompts that fill no whole batch; False for validation.

    Raises:
        ValueError: The data set does not fill one batch.
    """

    def __init__(
        self, dataset: PromptDataset, batch_size: int, *, shuffle: bool, seed: int, drop_last: bool = True
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if drop_last and len(dataset) < batch_size:
            raise ValueError(
                f"a batch takes {batch_size} prompts, the data set has {len(dataset)} ({dataset.num_dropped} were too "
                "long); lower data.rollout.batch_size or add prompts"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._order = {"seed": seed, "shuffle": shuffle}
        self._epoch = 0
        self._num_batches = 0
        self._continues = False

    def __len__(self) -> int:
        """Batches an epoch."""
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full if self.drop_last or rest == 0 else full + 1

    def __iter__(self) -> Iterator[Prompts]:
        """The rest of the epoch after `load_state_dict`, else the next whole epoch.

        Nothing happens before the first batch is taken, so making an iterator and leaving it costs no epoch.
        """
        if self._num_batches > 0 and not (self._continues and self._num_batches < len(self)):
            self._epoch, self._num_batches = self._epoch + 1, 0
        self._continues = False
        order = self._epoch_order(self._epoch)
        for batch in range(self._num_batches, len(self)):
            self._num_batches = batch + 1
            yield self.dataset.select(order[batch * self.batch_size : (batch + 1) * self.batch_size])

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches that were taken, and what it is a position in."""
        return {"epoch": self._epoch, "num_batches": self._num_batches, **self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the batches that were taken when the state was saved.

        Raises:
            ValueError: The prompts, or the order they come in, are not those of the state.
        """
        changed = [
            f"{name}: {state_dict.get(name)!r} then, {value!r} now"
            for name, value in self._identity().items()
            if state_dict.get(name) != value
        ]
        if changed:
            raise ValueError(
                f"the checkpoint was made with other prompts or another order ({'; '.join(changed)}); resume with the "
                "same data, batch size and seed, or start another run from its weights: model.actor.warm_start "
                "instead of --ckpt_path or model.actor.load"
            )
        self._epoch, self._num_batches = state_dict["epoch"], state_dict["num_batches"]
        self._continues = True

    def _identity(self) -> dict[str, Any]:
        return {
            "num_prompts": len(self.dataset),
            "fingerprint": self.dataset.fingerprint,
            "batch_size": self.batch_size,
            **self._order,
        }

    def _epoch_order(self, epoch: int) -> list[int]:
        order = list(range(len(self.dataset)))
        if self._order["shuffle"]:
            random.Random(f"{self._order['seed']} {epoch}").shuffle(order)
        return order


def _check_not_empty(config: PromptsConfig, summary: Summary, limit: int | None) -> None:
    name = config.path or config.class_path
    num_dropped = summary.num_read - summary.num_kept
    if summary.num_read == 0:
        raise ValueError(f"{name}: there are no prompts in it")
    if summary.num_kept == 0:
        raise ValueError(
            f"{name}: all {summary.num_read} prompts are longer than {limit} tokens; raise max_prompt_tokens, or lower "
            "sampling.max_new_tokens to leave prompts more of the model's context"
        )
    if num_dropped > 0:
        _LOGGER.warning(
            "%s: %d of %d prompts are longer than %s tokens, dropped",
            name,
            num_dropped,
            summary.num_read,
            limit,
        )
