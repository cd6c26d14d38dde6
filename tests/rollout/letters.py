"""A tokenizer for tests: printable characters, the first of which ends a sequence; three of 96 ids have none."""

from __future__ import annotations

from typing import Any

VOCABULARY = 96
ABSENT = (50, 94, 95)
"""Rows of the vocabulary that stand for no token."""


class Letters:
    eos_token_id = 0

    def get_vocab(self) -> dict[str, int]:
        return {chr(32 + token): token for token in range(VOCABULARY) if token not in ABSENT}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) - 32 for c in text]

    def decode(self, token_ids: Any, **_: Any) -> str:
        return "".join(chr(32 + t) for t in token_ids)
