"""Keeps what third parties say about themselves off the terminal; what concerns a user's run stays."""

from __future__ import annotations

import logging
import os
import warnings

_LOGGERS = (
    "megatron",
    "torch.utils.cpp_extension",
    "lightning.pytorch.utilities.rank_zero",
    "lightning.pytorch.accelerators.cuda",
    "lightning.fabric.utilities.seed",
)


def quiet_third_parties() -> None:
    """Before torch, Megatron and Lightning are imported, for much of it is said while they are."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings(
        "ignore", module=r"(megatron|torch|lightning|jsonargparse|mlflow|transformers)\b.*"
    )
    # Megatron looks at .grad of gradient views; torch blames the line that calls it.
    warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
