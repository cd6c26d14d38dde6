"""The tokens of a policy: rows of its vocabulary that its tokenizer has a name for, and those that end a response."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from relax_lightning.config import SamplingConfig
from relax_lightning.plan.tokens import no_row
from relax_lightning.rollout.turns import Sample

_SPECIAL = ("eos_token_id", "pad_token_id", "bos_token_id", "unk_token_id", "all_special_ids")


class Vocabulary:
    """What a tokenizer and a model's files say together.

    Args:
        tokenizer: Of the policy.
        num_rows: Rows of the policy's vocabulary, which may have more than the tokenizer has tokens.
        ends: Tokens that end a response, by the model's files.

    Attributes:
        num_rows: As given.
        absent: Rows that stand for no token.
        ends: Those of the given ones that exist and that the tokenizer does not name itself.
        unknown_ends: Those that do not exist.

    Raises:
        ValueError: The policy has no row for a token of the tokenizer, special and added ones included.
    """

    def __init__(self, tokenizer: Any, num_rows: int, ends: Sequence[int] = ()) -> None:
        named = _named(tokenizer)
        self._is_named = named is not None
        names = named or _special(tokenizer)
        last = max(names, default=-1)
        if last >= num_rows:
            raise ValueError(f"model.actor.tokenizer: {no_row(last, names[last], num_rows)}")
        self.num_rows = num_rows
        self.absent = frozenset(absent_tokens(tokenizer, num_rows))
        self.unknown_ends = [token for token in ends if not 0 <= token < num_rows or token in self.absent]
        known = end_tokens(tokenizer).union(self.unknown_ends)
        self.ends = [token for token in dict.fromkeys(ends) if token not in known]

    def ending(self, sampling: SamplingConfig) -> SamplingConfig:
        """The sampling with all tokens that end a response."""
        if sampling.ignore_eos:
            return sampling
        return replace(sampling, stop_token_ids=[*sampling.stop_token_ids, *self.ends])

    def refuse_absent(self, samples: Sequence[Sample]) -> None:
        """Look at responses: an engine that is not ours may draw what the policy gives no probability at all.

        Raises:
            RuntimeError: Names sample and token.
        """
        for sample in samples:
            if self.absent.isdisjoint(sample.token_ids):
                continue
            generated = zip(sample.token_ids, sample.mask, strict=True)
            if wrong := [token for token, learned in generated if learned and token in self.absent]:
                raise RuntimeError(
                    f"sample {sample.sample_id}: the engine drew {wrong[:5]}, for which the model has rows and the "
                    "tokenizer no tokens; let the run start its engine (no url), or give the tokenizer that has them"
                )

    def check_prompts(self, name: str, prompts: Iterable[Sequence[int]]) -> None:
        """Look at the tokens of a tokenizer that does not say which ones it has.

        Raises:
            ValueError: The policy has no row for one of them.
        """
        last = -1 if self._is_named else max(map(max, prompts), default=-1)
        if last >= self.num_rows:
            raise ValueError(f"model.actor.tokenizer: {no_row(last, f'prompts {name}', self.num_rows)}")


def absent_tokens(tokenizer: Any, num_rows: int) -> list[int]:
    """Rows that stand for no token, in order: never drawn, and without a part in any log-prob.

    A token exists where the tokenizer has a name for it, so ids may have holes. One without `get_vocab` says at most
    how many tokens it has (`len`), which are the first ones; of one that does not say that either all rows count.

    Args:
        tokenizer: Of the model.
        num_rows: Rows of the model's vocabulary.
    """
    named = _named(tokenizer)
    return [] if named is None else sorted(set(range(num_rows)) - named.keys())


def end_tokens(tokenizer: Any) -> set[int]:
    """Tokens that end a response by the tokenizer's own word."""
    return _ids(tokenizer.eos_token_id)


def _named(tokenizer: Any) -> dict[int, str] | None:
    """Names of the tokens that exist, by id; None: the tokenizer does not say."""
    if hasattr(tokenizer, "get_vocab"):
        found = {token: name for name, token in tokenizer.get_vocab().items()}
        # The vocabulary of a tokenizer in plain Python may leave these out.
        added = {token: str(name) for token, name in getattr(tokenizer, "added_tokens_decoder", {}).items()}
        return _special(tokenizer) | added | found
    if hasattr(tokenizer, "__len__"):
        return _special(tokenizer) | {token: str(token) for token in range(len(tokenizer))}
    return None


def _special(tokenizer: Any) -> dict[int, str]:
    return {token: name for name in _SPECIAL for token in _ids(getattr(tokenizer, name, None))}


def _ids(value: int | Collection[int] | None) -> set[int]:
    return set() if value is None else {value} if isinstance(value, int) else set(value)
