"""What generation holds: keys and values, and what an engine keeps besides."""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.faults import fault
from relax_lightning.config.model import ParallelConfig
from relax_lightning.plan.memory.architectures import Architecture, HybridArchitecture, trunk_of
from relax_lightning.plan.memory.parameters import parameters
from relax_lightning.plan.memory.widths import FP32, Widths, cut, element_bytes


@dataclass(frozen=True)
class EngineMemory:
    """Bytes that an engine holds on one rank."""

    weights: int
    """0 where they are the actor's own."""
    kv_cache: int
    working: int
    """Beside these, while it generates."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv_cache + self.working


def kv_cache(
    architecture: Architecture,
    parallel: ParallelConfig,
    tokens: int,
    dtype: str,
    *,
    num_sequences: int = 1,
) -> int:
    """Bytes of the keys and values of `tokens` cached positions on one rank.

    2 * layers * key/value heads * head width * element (Pope et al. 2022, "Efficiently Scaling Transformer Inference",
    section 2.1). Where ranks outnumber key/value heads, each holds one.

    Args:
        architecture: The trunk.
        parallel: Tensor and pipeline ranks cut heads and layers.
        tokens: Over all sequences.
        dtype: Of the cache.
        num_sequences: Of a hybrid model, whose delta-net layers keep a state of fixed size a sequence: fp32 of
            [value heads, key width, value width] and the last inputs of the convolution (transformers'
            models/qwen3_5/modeling_qwen3_5.py).
    """
    a, element = trunk_of(architecture), element_bytes(dtype)
    widths = Widths.of(a, parallel)
    stage_layers = range(cut("num_layers", a.num_layers, parallel.pipeline, "pipeline"))
    if not isinstance(architecture, HybridArchitecture):
        return 2 * len(stage_layers) * widths.key * tokens * element
    num_full = sum(architecture.is_full_attention(layer) for layer in stage_layers)
    states = (len(stage_layers) - num_full) * _delta_net_state(architecture, parallel.tensor, element)
    return 2 * num_full * widths.key * tokens * element + states * num_sequences


def _delta_net_state(a: HybridArchitecture, ranks: int, element: int) -> int:
    keys = cut("linear key heads", a.linear_num_key_heads, ranks, "tensor") * a.linear_key_head_dim
    heads = cut("linear value heads", a.linear_num_value_heads, ranks, "tensor")
    state = heads * a.linear_key_head_dim * a.linear_value_head_dim * FP32
    inputs = (2 * keys + heads * a.linear_value_head_dim) * (a.linear_conv_kernel_dim - 1) * element
    return state + inputs


def sampling_bytes(num_logits: int) -> int:
    """Bytes beside the logits while a token is drawn for each row.

    Log-probs and probabilities in fp32, and no more than once again either of them on the way (rollout/sampling.py:
    sample_tokens).
    """
    return 12 * num_logits


def embedded_engine(
    architecture: Architecture, parallel: ParallelConfig, num_sequences: int, max_length: int, dtype: str
) -> EngineMemory:
    """The embedded engine with a full batch: it decodes on the actor's weights.

    Args:
        architecture: The trunk.
        parallel: The actor's.
        num_sequences: Decoded together: the engine's `max_batch_size`, or all samples where they are fewer.
        max_length: Longest prompt and response together; every row of the cache has this room
            (megatron/decoder.py: _new_cache).
        dtype: The model's.
    """
    a, element = trunk_of(architecture), element_bytes(dtype)
    cache = kv_cache(architecture, parallel, num_sequences * max_length, dtype, num_sequences=num_sequences)
    num_logits = num_sequences * Widths.of(a, parallel).vocabulary
    logits = num_logits * element + sampling_bytes(num_logits)
    # Dropping finished rows copies the cache tensor by tensor: 2 a layer (megatron/layout.py: KVCache.select).
    copied = cache // (2 * a.num_layers)
    return EngineMemory(weights=0, kv_cache=cache, working=max(logits, copied))


def sglang_engine(
    architecture: Architecture,
    tensor_parallel_size: int,
    mem_fraction_static: float,
    free_bytes: int,
    dtype: str,
) -> EngineMemory:
    """An SGLang engine's rank.

    `mem_fraction_static` is the share of the memory that was free before the weights were loaded which weights and the
    pool of keys and values take together (SGLang's server_args.py on mem_fraction_static; model_executor/
    model_runner_kv_cache_mixin.py: _profile_available_bytes). The rest is for activations and CUDA graphs.

    Args:
        architecture: The trunk; an engine that loads the whole of a multimodal checkpoint holds more.
        tensor_parallel_size: Ranks of one engine.
        mem_fraction_static: In (0, 1).
        free_bytes: Of the GPU when the engine starts. What training holds by then counts as taken.
        dtype: Of weights and cache.

    Raises:
        ValueError: The fraction does not hold the weights.
    """
    parallel = ParallelConfig(tensor=tensor_parallel_size)
    weights = parameters(architecture, parallel, "actor") * element_bytes(dtype)
    static = round(free_bytes * mem_fraction_static)
    if static <= weights:
        wanted = f"a fraction above {weights / free_bytes:.3f}, which the weights alone take"
        change = "raise it, or raise tensor_parallel_size"
        raise ValueError(f"mem_fraction_static: {fault(wanted, mem_fraction_static, change)}")
    return EngineMemory(weights=weights, kv_cache=static - weights, working=free_bytes - static)
