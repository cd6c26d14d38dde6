"""How a field of a configuration carries its meaning."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import MISSING, field
from typing import Any


def key(default: Any, meaning: str) -> Any:
    """A field with a default and the sentence that `fit --help` shows."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata={"help": meaning})
    return field(default=default, metadata={"help": meaning})


def required(meaning: str) -> Any:
    """A field without a default."""
    return field(default=MISSING, metadata={"help": meaning})


def section(make: Callable[[], Any], meaning: str) -> Any:
    """A field that holds a dataclass of its own, made by `make` when left out."""
    return field(default_factory=make, metadata={"help": meaning})
