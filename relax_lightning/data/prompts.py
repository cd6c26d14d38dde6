"""Prompts, tokenized, and the loader that hands them out batch by batch."""

from __future__ import annotations

import hashlib
import logging
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

from relax_lightning.batch import Prompts
from relax_lightning.config import PromptsConfig
from relax_lightning.data.prompt_records import PromptRecord, read_records

_LOGGER = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """What prompts need of a `transformers` tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text."""
        ...

    def apply_chat_template(self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool) -> Any:
        """The text of a conversation, up to where the assistant goes on."""
        ...


@dataclass(frozen=True)
class PromptDataset:
    """All prompts of a set, tokenized."""

    token_ids: tuple[array[int], ...]
    texts: tuple[str, ...]
    labels: tuple[Any, ...]
    metadata: tuple[dict[str, Any], ...]
    num_dropped: int
    """Prompts that were longer than allowed."""

    @classmethod
    def load(
        cls,
        config: PromptsConfig,
        tokenizer: Tokenizer,
        *,
        max_prompt_tokens: int | None = None,
        read_label: Callable[[Any], Any] = lambda label: label,
    ) -> Self:
        """Read and tokenize a set; prompts that are too long are dropped and counted.

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
        kept: list[tuple[array[int], str, PromptRecord]] = []
        num_read = 0
        for record in read_records(config, read_label):
            num_read += 1
            tokens, text = _tokenize(record, tokenizer, config.apply_chat_template)
            if limit is None or len(tokens) <= limit:
                kept.append((tokens, text, record))
        num_dropped = num_read - len(kept)
        _check_not_empty(config, num_read, num_dropped, limit)
        return cls(
            token_ids=tuple(tokens for tokens, _, _ in kept),
            texts=tuple(text for _, text, _ in kept),
            labels=tuple(record.label for _, _, record in kept),
            metadata=tuple(record.metadata for _, _, record in kept),
            num_dropped=num_dropped,
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def select(self, ids: Sequence[int]) -> Prompts:
        """The prompts at the given positions, in the given order."""
        return Prompts(
            ids=tuple(ids),
            token_ids=tuple(tuple(self.token_ids[i]) for i in ids),
            texts=tuple(self.texts[i] for i in ids),
            labels=tuple(self.labels[i] for i in ids),
            metadata=tuple(self.metadata[i] for i in ids),
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all tokens and labels, in order."""
        digest = hashlib.blake2b(digest_size=8)
        for tokens, label in zip(self.token_ids, self.labels, strict=True):
            digest.update(len(tokens).to_bytes(8, "little") + tokens.tobytes() + repr(label).encode())
        return digest.hexdigest()


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


def _tokenize(
    record: PromptRecord, tokenizer: Tokenizer, apply_chat_template: bool
) -> tuple[array[int], str]:
    prompt = record.prompt
    if isinstance(prompt, str) and not apply_chat_template:
        tokens, text = tokenizer.encode(prompt), prompt
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:
            raise ValueError(f"{record.source}: the tokenizer's chat template failed: {error}") from error
        # The template has written the special tokens already.
        tokens = tokenizer.encode(text, add_special_tokens=False)
    if not tokens:
        raise ValueError(f"{record.source}: the tokenizer makes no token of {text!r:.80}")
    return array("q", tokens), text


def _check_not_empty(config: PromptsConfig, num_read: int, num_dropped: int, limit: int | None) -> None:
    name = config.path or config.class_path
    if num_read == 0:
        raise ValueError(f"{name}: there are no prompts in it")
    if num_dropped == num_read:
        raise ValueError(
            f"{name}: all {num_read} prompts are longer than {limit} tokens; raise max_prompt_tokens, or lower "
            "sampling.max_new_tokens to leave prompts more of the model's context"
        )
    if num_dropped > 0:
        _LOGGER.warning(
            "%s: %d of %d prompts are longer than %s tokens, dropped", name, num_dropped, num_read, limit
        )
