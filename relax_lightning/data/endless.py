"""All epochs of the prompts as one, so that Lightning never ends an epoch of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relax_lightning.data.prompts import PromptLoader
from relax_lightning.ppo.batch import Prompts

NUM_BATCHES = 2**31


class EndlessPrompts:
    """Epoch after epoch of a `PromptLoader`, each in its own order, with no end.

    Lightning counts epochs on its own when it resumes from a checkpoint that was saved at the last batch of one, and
    loses prompts; in the middle of an epoch it goes on exactly, and here every iteration is in the middle.

    Args:
        loader: The prompts of one epoch at a time.
    """

    def __init__(self, loader: PromptLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """More batches than any training takes; without a length Lightning would fetch one batch ahead."""
        return NUM_BATCHES

    def __iter__(self) -> Iterator[Prompts]:
        """The next batch, from where the loader stands."""
        while True:
            yield from self._loader

    def state_dict(self) -> dict[str, Any]:
        """The loader's position."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on after the saved position."""
        self._loader.load_state_dict(state_dict)
