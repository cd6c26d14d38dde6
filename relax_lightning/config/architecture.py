"""Between a Hugging Face `config.json` and our `ArchitectureConfig`: Llama, Qwen2 and Qwen3, dense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from relax_lightning.config.model import ArchitectureConfig, ModelConfig

_REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
MODEL_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""transformers' class of every `model_type` that can be trained."""


def described_model(directory: str | Path | None) -> dict[str, Any]:
    """The `config.json` of a Hugging Face directory; empty where it cannot be read."""
    try:
        described = json.loads((Path(directory or "") / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}


def read_architecture(directory: str | Path) -> ArchitectureConfig:
    """The architecture of a Hugging Face model directory.

    Raises:
        ValueError: `config.json` is missing, or describes what the built-in converter cannot load.
    """
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a Hugging Face model directory holds a config.json")
    c: Any = json.loads(path.read_text())
    if not isinstance(c, dict):
        raise ValueError(
            f"{path}: wanted a JSON object, got {type(c).__name__}; use another copy of the model"
        )
    kind = c.get("model_type")
    if kind not in MODEL_CLASSES:
        raise ValueError(
            f"{path}: model_type {kind!r} is not supported; supported are {', '.join(MODEL_CLASSES)}"
        )
    if missing := [key for key in _REQUIRED if key not in c]:
        raise ValueError(f"{path}: wanted {', '.join(missing)}, got none; give a complete config.json")
    refuse_variants(path, c)
    heads = c["num_attention_heads"]
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    return ArchitectureConfig(
        num_layers=c["num_hidden_layers"],
        hidden_size=c["hidden_size"],
        ffn_hidden_size=c["intermediate_size"],
        num_attention_heads=heads,
        num_query_groups=c.get("num_key_value_heads") or heads,
        kv_channels=c.get("head_dim") or c["hidden_size"] // heads,
        vocab_size=c["vocab_size"],
        max_position_embeddings=c["max_position_embeddings"],
        qk_layernorm=kind == "qwen3",
        qkv_bias=kind == "qwen2",
        tie_word_embeddings=bool(c.get("tie_word_embeddings", False)),
        rope_theta=float(rope.get("rope_theta") or c.get("rope_theta") or 10000.0),
        rope_scaling_factor=float(rope["factor"]) if _rope_kind(rope) == "llama3" else None,
        norm_epsilon=c.get("rms_norm_eps", 1e-6),
    )


def architecture_of(config: ModelConfig) -> ArchitectureConfig:
    """The trunk that `model.actor` describes.

    Raises:
        ValueError: It names neither a readable Hugging Face directory nor an architecture.
    """
    actor = config.actor
    if actor.architecture is not None:
        return complete(actor.architecture)
    if actor.hf_checkpoint is None:
        raise ValueError(
            "model.actor: wanted hf_checkpoint or architecture, got neither; give one of the two"
        )
    return read_architecture(actor.hf_checkpoint)


def complete(a: ArchitectureConfig) -> ArchitectureConfig:
    """The architecture with every "null follows" filled in."""
    return replace(
        a,
        ffn_hidden_size=a.ffn_hidden_size or 4 * a.hidden_size,
        num_query_groups=a.num_query_groups or a.num_attention_heads,
        kv_channels=a.kv_channels or a.hidden_size // a.num_attention_heads,
    )


def _rope_kind(rope: dict[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def refuse_variants(path: Path, c: dict[str, Any]) -> None:
    """Refuse a `config.json`, of a family that is known, with an option that the models here do not have.

    Raises:
        ValueError: Names the option.
    """
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    kind = _rope_kind(rope)
    megatron_llama3 = {
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if kind == "llama3" and any(rope.get(k, v) != v for k, v in megatron_llama3.items()):
        raise ValueError(
            f"{path}: rope scaling {rope} differs from Llama 3's {megatron_llama3}, which is supported"
        )
    wanted = {
        "rope scaling": (kind, ("default", "llama3")),
        "hidden_act": (c.get("hidden_act", "silu"), ("silu",)),
        "attention_bias": (bool(c.get("attention_bias", False)), (False,)),
        "mlp_bias": (bool(c.get("mlp_bias", False)), (False,)),
        "use_sliding_window": (bool(c.get("use_sliding_window", False)), (False,)),
    }
    for key, (value, supported) in wanted.items():
        if value not in supported:
            raise ValueError(
                f"{path}: {key} {value!r} is not supported; supported: {', '.join(map(str, supported))}"
            )


def hugging_face_config(a: ArchitectureConfig, dtype: str, special: dict[str, Any]) -> dict[str, Any]:
    """The `config.json` of an exported model that was trained from scratch.

    Args:
        a: The architecture.
        dtype: Name of the weights' dtype, such as `float32`.
        special: Token ids to write, such as `eos_token_id`.
    """
    kind = "qwen3" if a.qk_layernorm else "qwen2" if a.qkv_bias else "llama"
    rope: dict[str, Any] = {"rope_theta": a.rope_theta, "rope_type": "default"}
    if a.rope_scaling_factor is not None:
        rope |= {"rope_type": "llama3", "factor": a.rope_scaling_factor, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {
        "architectures": [MODEL_CLASSES[kind]],
        "model_type": kind,
        "num_hidden_layers": a.num_layers,
        "hidden_size": a.hidden_size,
        "intermediate_size": a.ffn_hidden_size,
        "num_attention_heads": a.num_attention_heads,
        "num_key_value_heads": a.num_query_groups,
        "head_dim": a.kv_channels,
        "vocab_size": a.vocab_size,
        "max_position_embeddings": a.max_position_embeddings,
        "tie_word_embeddings": a.tie_word_embeddings,
        "rope_theta": a.rope_theta,
        "rope_parameters": rope,
        "rms_norm_eps": a.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": dtype,
        **special,
    }
