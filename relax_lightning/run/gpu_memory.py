"""How torch takes GPU memory: in segments that grow, so that blocks of changing sizes leave no holes between them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ALLOCATOR_VARIABLES = re.compile(r"PYTORCH_(\w+_)?ALLOC_CONF$")
"""Environment variables by which a user sets torch's allocator."""
_GROWING = "expandable_segments:True"


def use_growing_segments() -> None:
    """Have torch map pages behind what it holds, in place of a block of memory for each size that it meets.

    Every micro-batch has a size of its own. Nothing where the user has set the allocator.
    """
    if not _set_by_user():
        torch._C._accelerator_setAllocatorSettings(_GROWING)


@contextmanager
def for_other_processes() -> Iterator[None]:
    """Around an allocation that another process is to map: a segment's pages it may not."""
    settings = _set_by_user() or _GROWING
    if _GROWING not in settings:
        yield
        return
    # Each call sets everything: what it does not name goes back to torch's default.
    torch._C._accelerator_setAllocatorSettings(settings.replace(_GROWING, "expandable_segments:False"))
    try:
        yield
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)


def _set_by_user() -> str:
    return ",".join(value for name, value in os.environ.items() if ALLOCATOR_VARIABLES.match(name))
