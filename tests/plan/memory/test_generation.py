"""Caches, engines, records and checkpoints by hand."""

from __future__ import annotations

import pytest

from relax_lightning.config import OptimizerConfig, ParallelConfig
from relax_lightning.plan.memory import (
    PUBLISHED,
    checkpoint_bytes,
    embedded_engine,
    kv_cache,
    resolved_dtype,
    rollout_bytes,
    sglang_engine,
)

ONE = ParallelConfig()
QWEN3 = PUBLISHED["Qwen/Qwen3-8B"]
HYBRID = PUBLISHED["Qwen/Qwen3.5-9B"]
GIB = 2**30


def test_a_token_of_keys_and_values() -> None:
    # 36 layers, keys and values of 8 heads of 128, 2 bytes: 144 KiB.
    assert kv_cache(QWEN3, ONE, 1, "bfloat16") == 36 * 2 * 8 * 128 * 2 == 144 * 1024
    assert kv_cache(QWEN3, ONE, 1000, "float32") == 2000 * 144 * 1024
    assert kv_cache(QWEN3, ParallelConfig(tensor=4, pipeline=2), 1, "bfloat16") == 18 * 1024
    # More ranks than heads: each holds one.
    assert kv_cache(QWEN3, ParallelConfig(tensor=16), 1, "bfloat16") == 18 * 1024


def test_a_hybrid_model_caches_in_its_full_layers_and_keeps_states_in_the_others() -> None:
    # 8 full layers of 4 heads of 256: 32 KiB a token.
    per_token = kv_cache(HYBRID, ONE, 1001, "bfloat16") - kv_cache(HYBRID, ONE, 1000, "bfloat16")
    assert per_token == 32 * 1024
    # 24 states of 32 x 128 x 128 in fp32, and 3 inputs of a convolution over 8,192 channels.
    state = 24 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert kv_cache(HYBRID, ONE, 0, "bfloat16", num_sequences=5) == 5 * state


def test_the_embedded_engine_decodes_on_the_actors_weights() -> None:
    engine = embedded_engine(QWEN3, ONE, 64, 2048, "bfloat16")
    assert engine.weights == 0
    assert engine.kv_cache == 64 * 2048 * 144 * 1024
    # Copying one of 72 tensors of the cache outweighs 64 rows of logits at 14 bytes.
    assert engine.working == 64 * 2048 * 2048 > 64 * 151936 * 14
    assert engine.total == engine.kv_cache + engine.working
    assert embedded_engine(QWEN3, ONE, 512, 16, "bfloat16").working == 512 * 151936 * 14


def test_sglang_takes_its_fraction_of_what_is_free() -> None:
    engine = sglang_engine(QWEN3, 2, 0.5, 100 * GIB, "bfloat16")
    # Norms are whole on both ranks: 36 layers of 2 x 4,096 and 2 x 128, and the last one.
    uncut = 36 * (2 * 4096 + 2 * 128) + 4096
    assert engine.weights == 8_190_735_360 + uncut
    assert engine.weights + engine.kv_cache == 50 * GIB
    assert engine.total == 100 * GIB
    message = r"mem_fraction_static: wanted a fraction above 0\.153, .*, got 0\.1; raise it"
    with pytest.raises(ValueError, match=message):
        sglang_engine(QWEN3, 1, 0.1, 100 * GIB, "bfloat16")


def test_records_and_checkpoints() -> None:
    assert rollout_bytes(2, 3, 5) == 2 * (28 + 3 * 8 + 5 * 29)
    trunk = 36 * (4096 * (32 + 16) * 128 + 32 * 128 * 4096 + 3 * 4096 * 12288 + 2 * 4096 + 256) + 4096
    actor, critic = trunk + 2 * 151936 * 4096, trunk + 151936 * 4096 + 4097
    both, plain = OptimizerConfig(), OptimizerConfig(distributed=False)
    assert checkpoint_bytes(QWEN3, "bfloat16", both, both) == 14 * (actor + critic)
    assert checkpoint_bytes(QWEN3, "bfloat16", plain, plain) == 14 * (actor + critic)
    assert checkpoint_bytes(QWEN3, "float32", both, plain) == 16 * actor + 12 * critic


def test_auto_is_resolved_by_the_device() -> None:
    assert resolved_dtype("auto", on_gpu=True) == "bfloat16"
    assert resolved_dtype("auto", on_gpu=False) == "float32"
    assert resolved_dtype("bfloat16", on_gpu=False) == "bfloat16"
