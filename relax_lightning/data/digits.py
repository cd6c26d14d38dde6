"""A task made here, small enough for a CPU: answer a few digits with the same digits reversed, then stop."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

DIGITS = "0123456789"


def digit_tokenizer() -> Any:
    """A transformers tokenizer of ten digits, `=`, and the end of the sequence: one token a character."""
    return character_tokenizer(f"={DIGITS}")


def character_tokenizer(characters: str) -> Any:
    """A transformers tokenizer of the end of the sequence and these characters, in this order: one token each.

    There is no other token: one that decodes to nothing would be a way around the end of the sequence.
    """
    from tokenizers import Regex, Tokenizer, decoders
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<eos>", *characters])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = Split(Regex("."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.clean_up_tokenization_spaces = False
    return fast


class ReversedDigits(Sequence[dict[str, Any]]):
    """Prompts such as `305=`, with the label `503`.

    Args:
        size: Number of prompts.
        seed: Of the digits.
        min_digits, max_digits: Length of the number.
    """

    def __init__(self, size: int, seed: int = 0, min_digits: int = 2, max_digits: int = 3) -> None:
        if not 1 <= min_digits <= max_digits:
            raise ValueError(f"wanted 1 <= min_digits <= max_digits, got {min_digits} and {max_digits}")
        draw = random.Random(seed)
        lengths = [draw.randint(min_digits, max_digits) for _ in range(size)]
        self._numbers = ["".join(draw.choices(DIGITS, k=length)) for length in lengths]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        number = self._numbers[index]
        return {"prompt": f"{number}=", "label": number[::-1]}


def matching_places(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    """1 for the right answer; else four fifths of the share of right places, the end of the sequence among them."""
    if response == label:
        return 1.0
    matches = sum(a == b for a, b in zip(response, label, strict=False)) + (len(response) == len(label))
    return 0.8 * matches / (max(len(response), len(label)) + 1)
