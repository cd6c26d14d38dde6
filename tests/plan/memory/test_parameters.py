"""Numbers of parameters: as published, and by hand."""

from __future__ import annotations

import pytest

from relax_lightning.config import ArchitectureConfig, ParallelConfig
from relax_lightning.config.architecture import complete
from relax_lightning.plan.memory import PUBLISHED, HybridArchitecture, parameters
from relax_lightning.plan.memory.parameters import stage_parameters

ONE = ParallelConfig()
PUBLISHED_NUMBERS = {
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}
"""What the hub counts in each model's safetensors."""


@pytest.mark.parametrize("name", PUBLISHED_NUMBERS)
def test_sizes_are_those_that_were_published(name: str) -> None:
    assert parameters(PUBLISHED[name], ONE, "actor") == PUBLISHED_NUMBERS[name]


def test_every_published_dense_model_is_checked() -> None:
    dense = {name for name, a in PUBLISHED.items() if not isinstance(a, HybridArchitecture)}
    assert dense == PUBLISHED_NUMBERS.keys()


def test_qwen35_9b_fills_its_published_checkpoint() -> None:
    """model.safetensors.index.json of revision c2022362 says total_size 19,306,216,416, with A_log and the delta-net's
    norm in fp32, a vision tower and a multi-token prediction head."""
    architecture = PUBLISHED["Qwen/Qwen3.5-9B"]
    text = parameters(architecture, ONE, "actor")
    assert text == 8_953_803_264
    in_fp32 = sum(
        p.size
        for p in stage_parameters(architecture, ONE, "actor", 0)
        if p.name in ("A_log", "out_norm.weight")
    )
    assert in_fp32 == 24 * (32 + 128)
    hidden, ffn, full = 4096, 12288, 4096 * (2 * 16 + 2 * 4) * 256 + 16 * 256 * 4096 + 2 * 256
    prediction = full + 2 * hidden + 3 * hidden * ffn + 2 * hidden * hidden + 3 * hidden
    width, inner, merged = 1152, 4304, 4 * 1152
    block = 4 * width * width + 4 * width + 2 * width * inner + width + inner + 4 * width
    patches = 3 * 2 * 16 * 16 * width + width + 2304 * width
    merger = 2 * width + merged * merged + merged + merged * hidden + hidden
    vision = 27 * block + patches + merger
    assert 2 * (text + prediction + vision + in_fp32) == 19_306_216_416


def test_every_kind_of_parameter_by_hand() -> None:
    a = ArchitectureConfig(
        num_layers=4,
        hidden_size=8,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=6,
        ffn_hidden_size=10,
        vocab_size=13,
        qk_layernorm=True,
        tie_word_embeddings=True,
    )
    # norms 8 + 8; attention 24x8 out and (24 + 12 + 12)x8 in, q and k norms of 6; feed-forward 20x8 and 8x10
    layer = 16 + 192 + 384 + 12 + 160 + 80
    assert parameters(complete(a), ONE, "actor") == 13 * 8 + 4 * layer + 8
    assert parameters(complete(a), ONE, "critic") == 13 * 8 + 4 * layer + 8 + (8 + 1)
    two = ParallelConfig(pipeline=2)
    assert parameters(complete(a), two, "actor", 0) == 13 * 8 + 2 * layer
    # The last stage has its own copy of the tied embedding.
    assert parameters(complete(a), two, "actor", 1) == 2 * layer + 8 + 13 * 8
    assert parameters(complete(a), two, "actor") == 2 * layer + 8 + 13 * 8
    assert parameters(complete(a), two, "critic", 1) == 2 * layer + 8 + 9
    # Over two ranks 13 rows of the vocabulary become 14; the norms stay whole.
    halves = 16 + 96 + 192 + 12 + 80 + 40
    assert parameters(complete(a), ParallelConfig(tensor=2), "actor") == 7 * 8 + 4 * halves + 8


def test_a_hybrid_model_is_cut_by_its_heads() -> None:
    whole = parameters(PUBLISHED["Qwen/Qwen3.5-9B"], ONE, "actor")
    quarter = parameters(PUBLISHED["Qwen/Qwen3.5-9B"], ParallelConfig(tensor=4), "actor")
    uncut = 32 * 2 * 4096 + 8 * 2 * 256 + 24 * 128 + 4096
    assert quarter == (whole - uncut) // 4 + uncut


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (ParallelConfig(tensor=3), r"parallel\.tensor: wanted a divisor of num_query_groups \(8\), got 3"),
        (ParallelConfig(pipeline=5), r"parallel\.pipeline: wanted a divisor of num_layers \(36\), got 5"),
    ],
)
def test_what_does_not_divide_is_refused(parallel: ParallelConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parameters(PUBLISHED["Qwen/Qwen3-8B"], parallel, "actor")
