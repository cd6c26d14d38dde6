"""What reads a model's Hugging Face weights, and what must be installed for it."""

from __future__ import annotations

import importlib.util

from relax_lightning.config.architecture import MODEL_CLASSES, described_model
from relax_lightning.config.model import ModelConfig

NEEDED = {
    "megatron.bridge": "megatron-bridge",
    "transformer_engine": "transformer-engine",
    "fla": "flash-linear-attention",
}
"""Modules that megatron-bridge's path needs, and the packages that bring them. flash-linear-attention is for hybrid
models such as Qwen3.5, whose GatedDeltaNet layers refuse to be built without it."""


def missing_packages() -> list[str]:
    """Packages that the megatron-bridge path needs and that are not installed; nothing is imported."""
    return [package for module, package in NEEDED.items() if not _is_installed(module)]


def chosen_bridge(config: ModelConfig) -> str:
    """`builtin` or `megatron_bridge`: what `model.bridge` says, and for `auto` what the model's type needs."""
    if config.bridge != "auto":
        return config.bridge
    kind = described_model(config.actor.hf_checkpoint).get("model_type")
    return "builtin" if kind is None or kind in MODEL_CLASSES else "megatron_bridge"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
