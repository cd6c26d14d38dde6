"""Published configurations, for a plan without the model's files. Each is its model's own `config.json`."""

from __future__ import annotations

from relax_lightning.config.model import ArchitectureConfig
from relax_lightning.plan.memory.architectures import Architecture, hybrid


def _qwen3(layers: int, hidden: int, ffn: int, heads: int, *, tied: bool) -> ArchitectureConfig:
    return ArchitectureConfig(
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_query_groups=8,
        kv_channels=128,
        vocab_size=151936,
        max_position_embeddings=40960,
        qk_layernorm=True,
        tie_word_embeddings=tied,
        rope_theta=1.0e6,
    )


def _qwen25(
    layers: int, hidden: int, ffn: int, heads: tuple[int, int], *, vocabulary: int = 151936
) -> ArchitectureConfig:
    return ArchitectureConfig(
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads[0],
        num_query_groups=heads[1],
        kv_channels=hidden // heads[0],
        vocab_size=vocabulary,
        max_position_embeddings=32768,
        qkv_bias=True,
        # The two sizes with the larger vocabulary have an output layer of their own.
        tie_word_embeddings=vocabulary == 151936,
        rope_theta=1.0e6,
    )


def _llama3(
    layers: int, hidden: int, ffn: int, heads: int, *, head: int, tied: bool, factor: float
) -> ArchitectureConfig:
    return ArchitectureConfig(
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_query_groups=8,
        kv_channels=head,
        vocab_size=128256,
        max_position_embeddings=131072,
        tie_word_embeddings=tied,
        rope_theta=5.0e5,
        rope_scaling_factor=factor,
        norm_epsilon=1.0e-5,
    )


def _smollm2(
    layers: int, hidden: int, ffn: int, heads: tuple[int, int], rope_theta: float
) -> ArchitectureConfig:
    return ArchitectureConfig(
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads[0],
        num_query_groups=heads[1],
        kv_channels=64,
        vocab_size=49152,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        rope_theta=rope_theta,
        norm_epsilon=1.0e-5,
    )


_QWEN35_9B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}

PUBLISHED: dict[str, Architecture] = {
    "Qwen/Qwen3.5-9B": hybrid(_QWEN35_9B, tied=False),
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 6144, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 9728, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 32, tied=False),
    "Qwen/Qwen3-14B": _qwen3(40, 5120, 17408, 40, tied=False),
    "Qwen/Qwen2.5-0.5B": _qwen25(24, 896, 4864, (14, 2)),
    "Qwen/Qwen2.5-1.5B": _qwen25(28, 1536, 8960, (12, 2)),
    "Qwen/Qwen2.5-3B": _qwen25(36, 2048, 11008, (16, 2)),
    "Qwen/Qwen2.5-7B": _qwen25(28, 3584, 18944, (28, 4), vocabulary=152064),
    "Qwen/Qwen2.5-14B": _qwen25(48, 5120, 13824, (40, 8), vocabulary=152064),
    "meta-llama/Llama-3.1-8B": _llama3(32, 4096, 14336, 32, head=128, tied=False, factor=8.0),
    "meta-llama/Llama-3.2-1B": _llama3(16, 2048, 8192, 32, head=64, tied=True, factor=32.0),
    "meta-llama/Llama-3.2-3B": _llama3(28, 3072, 8192, 24, head=128, tied=True, factor=32.0),
    "HuggingFaceTB/SmolLM2-135M": _smollm2(30, 576, 1536, (9, 3), 1.0e5),
    "HuggingFaceTB/SmolLM2-360M": _smollm2(32, 960, 2560, (15, 5), 1.0e5),
    "HuggingFaceTB/SmolLM2-1.7B": _smollm2(24, 2048, 8192, (32, 32), 1.3e5),
}
"""By name on the hub. Only sizes count here, and they are checked against the published numbers of parameters; context,
rope and epsilon differ in some instruct or base siblings, whose memory is the same."""

_SIBLINGS = ("-instruct", "-base")
"""Endings that leave a model's sizes as they are in all of these families."""


def find_published(name: str) -> str | None:
    """The name on the hub that a directory's name means, such as `Qwen3-8B-Base`; None where none is certain."""
    wanted = name.lower().removeprefix("meta-")
    for ending in _SIBLINGS:
        wanted = wanted.removesuffix(ending)
    return next((hub_name for hub_name in PUBLISHED if hub_name.split("/")[1].lower() == wanted), None)
