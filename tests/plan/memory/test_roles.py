"""Buffers and optimizers of a role, by hand; tests/megatron/test_memory.py holds them against Megatron."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relax_lightning.config import ArchitectureConfig, OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import complete
from relax_lightning.plan.memory import PUBLISHED, parameters, role_memory
from relax_lightning.plan.memory.parameters import Parameter, stage_parameters
from relax_lightning.plan.memory.roles import buffer_layout, host_share

ONE = ParallelConfig()
TINY = complete(
    ArchitectureConfig(
        num_layers=2, hidden_size=8, num_attention_heads=2, vocab_size=13, tie_word_embeddings=True
    )
)


def test_parameters_begin_at_64_and_buckets_end_at_128() -> None:
    layout = buffer_layout([Parameter("a", 100), Parameter("b", 7), Parameter("c", 65)], ranks=1)
    # Backwards: c from 0 to 65, b from 128, a from 192 to 292, and 292 padded to 384.
    assert layout.spans == ((0, 65), (128, 135), (192, 292))
    assert layout.buckets == ((0, 384),)
    assert layout.share(0) == 172


def test_a_bucket_divides_over_the_ranks_and_padding_belongs_to_nobody() -> None:
    layout = buffer_layout([Parameter("a", 100), Parameter("b", 7), Parameter("c", 65)], ranks=3)
    assert layout.size == 384
    # Thirds of 128: c; b and the first 64 of a; the last 36 of a.
    assert [layout.share(rank) for rank in range(3)] == [65, 7 + 64, 36]
    assert buffer_layout([Parameter("a", 100)], ranks=5).size == 640


def test_a_tied_copy_has_a_bucket_of_its_own() -> None:
    layout = buffer_layout([Parameter("embedding", 30, True), Parameter("b", 7)], ranks=2)
    assert layout.buckets == ((0, 128), (128, 256))
    assert layout.spans == ((0, 7), (128, 158))
    assert [layout.share(rank) for rank in range(2)] == [37, 0]


def test_bytes_of_each_kind() -> None:
    number = parameters(TINY, ONE, "actor")
    plain = OptimizerConfig(distributed=False)
    half = role_memory(TINY, ONE, plain, "bfloat16", "actor")
    # 2 bytes of weight, 4 of gradient, and main weight and two moments of 4 each: the 18 bytes of Korthikanti et al.
    assert (half.weights, half.gradients, half.optimizer) == (2 * number, 4 * number, 12 * number)
    assert half.total == 18 * number
    whole = role_memory(TINY, ONE, plain, "float32", "actor")
    assert (whole.weights, whole.gradients, whole.optimizer) == (4 * number, 4 * number, 8 * number)
    assert half.host_optimizer == 0


def test_the_host_takes_whole_parameters_largest_first() -> None:
    # Half of 100 is 50: 40 fits, 30 and 20 do not, 10 does.
    assert host_share([10, 40, 20, 30], 0.5) == [0, 1]
    # 55 of 110: 40 and 10 fit, and 50 is nearer than 80.
    assert host_share([10, 40, 30, 30], 0.5) == [0, 1]
    assert host_share([10, 40, 5, 30, 25], 0.5) == [0, 1, 2]
    # 2 of 10 is nearer to nothing than to all, 8 nearer to all.
    assert (host_share([10], 0.2), host_share([10], 0.8)) == ([], [0])
    assert host_share([3, 3, 3], 0.4) == [0]
    assert (host_share([5, 0, 5], 1.0), host_share([5, 5], 0.0), host_share([], 1.0)) == ([0, 1, 2], [], [])


def test_the_host_holds_weights_gradients_and_moments_of_its_share() -> None:
    number = parameters(TINY, ONE, "critic")
    plain = OptimizerConfig(distributed=False)
    sizes = [p.size for p in stage_parameters(TINY, ONE, "critic", 0)]
    for dtype, main in (("bfloat16", 4), ("float32", 0)):
        all_here = role_memory(TINY, ONE, plain, dtype, "critic")
        for fraction in (0.25, 1.0):
            shared = role_memory(TINY, ONE, replace(plain, cpu_offload_fraction=fraction), dtype, "critic")
            there = sum(sizes[n] for n in host_share(sizes, fraction))
            assert there == pytest.approx(fraction * number, abs=4)
            assert shared.optimizer == (main + 8) * (number - there)
            assert (shared.host_optimizer, shared.returned_weights) == (16 * there, main * there)
            assert (shared.weights, shared.gradients) == (all_here.weights, all_here.gradients)


def test_each_rank_gives_the_host_of_its_own_part() -> None:
    layout = buffer_layout([Parameter("a", 100), Parameter("b", 7), Parameter("c", 65)], ranks=3)
    assert [layout.shards(rank) for rank in range(3)] == [[65], [7, 64], [36]]


def test_eight_ranks_share_the_optimizer_of_an_8b_model() -> None:
    memory = role_memory(PUBLISHED["Qwen/Qwen3-8B"], ONE, OptimizerConfig(), "bfloat16", "actor", 8)
    assert memory.weights == 2 * 8_190_735_360
    assert memory.gradients == 4 * 8_190_735_360
    assert memory.optimizer == 12 * 8_190_735_360 // 8
    plain = role_memory(
        PUBLISHED["Qwen/Qwen3-8B"], ONE, OptimizerConfig(distributed=False), "bfloat16", "actor", 8
    )
    assert plain.optimizer == 12 * 8_190_735_360


def test_context_ranks_share_it_as_well_and_stages_can_be_named() -> None:
    a = PUBLISHED["Qwen/Qwen3-0.6B"]
    split = role_memory(a, ParallelConfig(context=2), OptimizerConfig(), "bfloat16", "actor", 4)
    assert split == role_memory(a, ONE, OptimizerConfig(), "bfloat16", "actor", 8)
    two = ParallelConfig(pipeline=2)
    stages = [role_memory(a, two, OptimizerConfig(), "bfloat16", "critic", stage=n) for n in range(2)]
    assert stages[0].total > stages[1].total
    assert role_memory(a, two, OptimizerConfig(), "bfloat16", "critic") == stages[0]


def test_another_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype: wanted bfloat16 or float32, got 'float16'; change it"):
        role_memory(TINY, ONE, OptimizerConfig(), "float16", "actor")
