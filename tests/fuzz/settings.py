"""How many examples the tests here draw, and from which seed.

The seeds are fixed; FUZZ_SEED=N draws others, and FUZZ_EXAMPLES=N that many times more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, seed, settings

SEED = os.environ.get("FUZZ_SEED")
MANY = int(os.environ.get("FUZZ_EXAMPLES", "1"))


def fuzz(num_examples: int) -> Callable:
    """The settings that all tests here share."""
    chosen = settings(
        max_examples=num_examples * MANY,
        derandomize=SEED is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return chosen if SEED is None else lambda test: seed(int(SEED))(chosen(test))
