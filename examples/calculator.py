"""A rollout function of one's own: the policy writes a sum and `=`, a calculator goes on with the result."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from relax_lightning.rollout.turns import Sample, TurnEngine


class Calculator:
    """Ends a turn at `=`, writes the result of the sum before it, and lets the policy go on.

    Args:
        max_calls: How often the calculator answers in one response.
    """

    def __init__(self, max_calls: int = 1) -> None:
        self.max_calls = max_calls

    def __call__(self, samples: Sequence[Sample], engine: TurnEngine) -> list[Sample]:
        """The samples with their responses; all that still go on generate together."""
        answered = list(samples)
        going = list(range(len(answered)))
        for _ in range(self.max_calls):
            for row, sample in zip(
                going, engine.generate([answered[row] for row in going], stop=["="]), strict=True
            ):
                answered[row] = sample
            going = [row for row in going if engine.text(answered[row].last_turn).endswith("=")]
            for row in going:
                # The result is nothing that the policy generated: it stands in the response, masked.
                answered[row] = engine.append(answered[row], result(engine.text(answered[row].last_turn)))
        for row, sample in zip(going, engine.generate([answered[row] for row in going]), strict=True):
            answered[row] = sample
        return answered


def result(call: str) -> str:
    """`7+8=` to `15`; `?` for what is no sum."""
    match = re.fullmatch(r"(\d+)\+(\d+)=", call)
    return str(int(match[1]) + int(match[2])) if match else "?"


class Sums(Sequence[dict[str, Any]]):
    """Prompts such as `7+8:`, with the label `7+8=15`.

    Args:
        size: Number of prompts.
        seed: Of the numbers.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        draw = random.Random(seed)
        self._pairs = [(draw.randint(0, 9), draw.randint(0, 9)) for _ in range(size)]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: Any) -> Any:
        a, b = self._pairs[index]
        return {"prompt": f"{a}+{b}:", "label": f"{a}+{b}={a + b}"}


def sum_tokenizer() -> Any:
    """A transformers tokenizer of digits, `+`, `=`, `:`, `?` and the end of the sequence: one token a character."""
    from relax_lightning.data.digits import character_tokenizer

    return character_tokenizer("0123456789+=:?")
