"""Which rows of a model's vocabulary stand for a token of its tokenizer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_SPECIAL = ("eos_token_id", "pad_token_id", "bos_token_id", "unk_token_id", "all_special_ids")


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


def check_tokens(tokenizer: Any, num_rows: int) -> None:
    """Refuse a tokenizer that has a token for which the model has no row, special and added ones included.

    Raises:
        ValueError: Names the largest one.
    """
    beyond = {token: name for token, name in (_named(tokenizer) or _special(tokenizer)).items() if token >= num_rows}
    if beyond:
        last = max(beyond)
        more = f" ({len(beyond)} such tokens)" if len(beyond) > 1 else ""
        raise ValueError(
            f"model.actor.tokenizer: wanted tokens below {num_rows}, the rows of the model's vocabulary, got {last} for "
            f"{beyond[last]!r}{more}; raise vocab_size or give the model's own tokenizer"
        )


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
