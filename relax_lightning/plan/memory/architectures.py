"""What an architecture is here: a dense one of the configuration, or Qwen3.5's hybrid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relax_lightning.config.architecture import complete
from relax_lightning.config.model import ArchitectureConfig


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


def trunk_of(architecture: Architecture) -> ArchitectureConfig:
    """What all layers share."""
    return architecture.trunk if isinstance(architecture, HybridArchitecture) else complete(architecture)


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
