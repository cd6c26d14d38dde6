"""Which architecture a configuration means, and where that is known from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from relax_lightning.config.architecture import complete, read_architecture
from relax_lightning.config.tree import Config
from relax_lightning.plan.memory.architectures import Architecture, hybrid
from relax_lightning.plan.memory.published import PUBLISHED, find_published


class Known(NamedTuple):
    """An architecture, and the words that say where it comes from."""

    architecture: Architecture
    source: str


def architecture_of(config: Config, check_files: bool) -> Known | None:
    """The architecture of actor and critic; None where nothing says it, which means "unknown", never a guess.

    Tried in this order: `model.actor.architecture`; the `config.json` of `model.actor.hf_checkpoint` when files may be
    looked at; the directory's name among the published configurations.

    Args:
        config: The whole configuration, resolved or not.
        check_files: Whether paths may be looked at.
    """
    actor = config.model.actor
    if actor.architecture is not None:
        return Known(complete(actor.architecture), "model.actor.architecture")
    if actor.hf_checkpoint is None:
        return None
    path = Path(actor.hf_checkpoint) / "config.json"
    if check_files and path.is_file():
        return _read(path)
    hub_name = find_published(path.parent.name)
    if hub_name is None:
        return None
    return Known(PUBLISHED[hub_name], f"https://huggingface.co/{hub_name}/blob/main/config.json")


def _read(path: Path) -> Known | None:
    try:
        return Known(read_architecture(path.parent), str(path))
    except (ValueError, TypeError):
        # What the converter cannot load is among the plan's problems; its memory may still be known.
        return _read_hybrid(path)


def _read_hybrid(path: Path) -> Known | None:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        text = described.get("text_config", described)
        if text["model_type"] not in ("qwen3_5_text", "qwen3_5"):
            return None
        tied = described.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
        return Known(hybrid(text, tied=bool(tied)), str(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
