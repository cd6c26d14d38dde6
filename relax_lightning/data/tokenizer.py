"""The tokenizer of a run: from a Hugging Face directory, or made by a function named by import path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relax_lightning.run.import_path import import_object


def load_tokenizer(source: str) -> Any:
    """A transformers tokenizer, or whatever the named function or class returns.

    Args:
        source: A directory, or an import path such as `relax_lightning.data.digits.digit_tokenizer`.

    Raises:
        ValueError: Neither a directory with a tokenizer nor an import path.
    """
    if Path(source).is_dir():
        from transformers import AutoTokenizer

        try:
            # Not told, transformers asks at the terminal whether to run the folder's own code.
            return AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            # A file that was cut or written over may fail in any way.
            reason = f"{type(error).__name__}: {' '.join(str(error).split()):.400}"
            raise ValueError(f"tokenizer {source}: no tokenizer could be read from it ({reason})") from error
    if "/" in source or "." not in source:
        raise ValueError(
            f"model.actor.tokenizer: wanted a directory or an import path like my_package.make_tokenizer, got {source}"
        )
    try:
        tokenizer = import_object("model.actor.tokenizer", source)()
    except TypeError as error:
        raise ValueError(
            f"model.actor.tokenizer: {source} cannot be called without arguments: {error}"
        ) from error
    if not hasattr(tokenizer, "encode"):
        raise ValueError(f"model.actor.tokenizer: wanted a tokenizer, got {tokenizer!r:.80} from {source}")
    return tokenizer
