"""A tokenizer for tests: 96 printable characters, the first of which ends a sequence."""

from __future__ import annotations

from typing import Any

VOCABULARY = 96


class Letters:
    eos_token_id = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) - 32 for c in text]

    def decode(self, token_ids: Any, **_: Any) -> str:
        return "".join(chr(32 + t) for t in token_ids)
