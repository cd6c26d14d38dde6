"""Which architecture a configuration means, and where that is known from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from relax_lightning.config.architecture import complete, read_architecture
from relax_lightning.config.model import ArchitectureConfig

if TYPE_CHECKING:
    from relax_lightning.config.tree import Config


@dataclass(frozen=True)
class HybridArchitecture:
    """Qwen3.5's text model: gated delta-net layers, and full attention with an output gate every few layers.

    Structure: transformers' `models/qwen3_5/modeling_qwen3_5.py`, Megatron-Core's `core/ssm/gated_delta_net/common.py`;
    Yang et al. 2025, "Gated Delta Networks". The vision tower and the multi-token prediction head are not part of it.
    """

    trunk: ArchitectureConfig
    """What all layers share, and the heads of the full-attention layers."""
    full_attention_interval: int
    """Every how many layers attention is full: layers 3, 7, 11 and so on with 4."""
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int

    needs = "Megatron-Bridge with Transformer Engine, and flash-linear-attention, on a GPU"
    """What loading such a model takes; the built-in converter and layers do not know it."""

    def is_full_attention(self, layer: int) -> bool:
        """Whether the layer with this number, from 0, has full attention."""
        return (layer + 1) % self.full_attention_interval == 0


Architecture = ArchitectureConfig | HybridArchitecture


class Known(NamedTuple):
    """An architecture, and the words that say where it comes from."""

    architecture: Architecture
    source: str


def trunk_of(architecture: Architecture) -> ArchitectureConfig:
    """What all layers share."""
    return architecture.trunk if isinstance(architecture, HybridArchitecture) else complete(architecture)


def architecture_of(config: Config, check_files: bool) -> Known | None:
    """The architecture of actor and critic; None where nothing says it, which means "unknown", never a guess.

    Tried in this order: `model.actor.architecture`; the `config.json` of `model.actor.hf_checkpoint` when files may be
    looked at; the directory's name among the published configurations.

    Args:
        config: The whole configuration, resolved or not.
        check_files: Whether paths may be looked at.
    """
    from relax_lightning.memory.published import find_published

    actor = config.model.actor
    if actor.architecture is not None:
        return Known(complete(actor.architecture), "model.actor.architecture")
    if actor.hf_checkpoint is None:
        return None
    path = Path(actor.hf_checkpoint) / "config.json"
    if check_files and path.is_file():
        return _read(path)
    return find_published(path.parent.name)


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


def hybrid(text: dict[str, Any], *, tied: bool) -> HybridArchitecture:
    """The architecture that a `text_config` of Qwen3.5 describes.

    Raises:
        KeyError: A key is missing.
        ValueError: Its `layer_types` are not one full-attention layer after every few others.
    """
    trunk = ArchitectureConfig(
        num_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        ffn_hidden_size=text["intermediate_size"],
        num_attention_heads=text["num_attention_heads"],
        num_query_groups=text["num_key_value_heads"],
        kv_channels=text["head_dim"],
        vocab_size=text["vocab_size"],
        max_position_embeddings=text["max_position_embeddings"],
        qk_layernorm=True,
        tie_word_embeddings=tied,
    )
    architecture = HybridArchitecture(
        trunk=trunk,
        full_attention_interval=text.get("full_attention_interval", 4),
        **{name: text[name] for name in _LINEAR},
    )
    layers = range(trunk.num_layers)
    expected = ["full_attention" if architecture.is_full_attention(n) else "linear_attention" for n in layers]
    if text.get("layer_types", expected) != expected:
        raise ValueError(f"layer_types: wanted {expected}, got {text['layer_types']}")
    return architecture


_LINEAR = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
