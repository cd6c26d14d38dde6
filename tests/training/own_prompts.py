"""A user's prompts that differ by rank, as those of an unseeded draw do."""

from __future__ import annotations

import os

from relax_lightning.data.digits import ReversedDigits


class Unseeded(ReversedDigits):
    """Other digits on each rank."""

    def __init__(self, size: int) -> None:
        super().__init__(size=size, seed=int(os.environ["RANK"]))
