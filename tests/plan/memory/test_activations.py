"""What forward saves, by hand and by what must hold; tests/megatron/test_memory.py holds it against real forwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relax_lightning.config import ArchitectureConfig, ParallelConfig
from relax_lightning.config.architecture import complete
from relax_lightning.plan.memory import PUBLISHED, Activations, activations
from relax_lightning.plan.memory.parameters import RoleName

ONE = ParallelConfig()
SMALL = complete(
    ArchitectureConfig(
        num_layers=4,
        hidden_size=64,
        ffn_hidden_size=160,
        num_attention_heads=4,
        num_query_groups=2,
        kv_channels=32,
        vocab_size=1000,
    )
)


def taken(
    a: ArchitectureConfig = SMALL,
    parallel: ParallelConfig = ONE,
    tokens: int = 100,
    dtype: str = "bfloat16",
    recompute: str | None = None,
    role: RoleName = "critic",
    response_tokens: int = 40,
) -> Activations:
    found = activations(
        a,
        parallel,
        tokens,
        dtype,
        recompute,
        role,
        response_tokens=response_tokens,
    )
    assert found is not None
    return found


def test_a_critic_on_a_gpu_by_hand() -> None:
    # A token and layer, in bfloat16: two norms' inputs and outputs; the projection of queries, keys and values, whose
    # values are a view; rotated queries and keys; what attention gives; gate and up; their product. In fp32: two
    # norms' roots and attention's log-sum-exp.
    layer = 2 * (4 * 64 + 256 + 128 + 64 + 128 + 3 * 160) + 4 * (2 + 4)
    # 16 bytes of indices; the final norm; 40 states in fp32 and 48 bytes each of the loss.
    rest = 100 * 16 + 100 * (2 * 64 + 4) + 40 * (4 * 64 + 48)
    # Cosine and sine, once for all layers.
    angles = 100 * 2 * 2 * 32
    assert taken().saved == 100 * 4 * layer + rest + angles
    # Gradients of the residual stream, of gate and of up.
    assert taken().working == 100 * 2 * (64 + 2 * 160)
    full = taken(recompute="full")
    # Every layer's input.
    assert full.saved == 100 * 4 * 2 * 64 + rest
    assert full.working == taken().working + 100 * layer
    assert full.peak == full.saved + full.working
    # The flash kernel saves its log-sum-exp, rotated keys and the angles beyond the core attention's own checkpoint.
    assert taken().saved - taken(recompute="selective").saved == 100 * 4 * (4 * 4 + 2 * 64) + angles


def test_logits_are_kept_up_to_a_chunk_and_not_beyond() -> None:
    without = taken(response_tokens=0).saved
    kept = 2 * 64 + 48
    for responses in (40, 2048):
        with_logits = taken(tokens=4000, role="actor", response_tokens=responses)
        assert with_logits.saved - taken(tokens=4000, response_tokens=0).saved == responses * (kept + 2000)
    assert taken(role="actor", response_tokens=0).saved == without
    chunked = taken(tokens=4000, role="actor", response_tokens=2049)
    assert chunked.saved - taken(tokens=4000, response_tokens=0).saved == 2049 * kept
    # One chunk at a time: logits and their gradient, beside the gradient of the chunk before.
    assert chunked.working == 2048 * 1000 * (2 + 2) + 2 * 1000 * 64


def test_recomputing_saves_and_ranks_share() -> None:
    a = PUBLISHED["Qwen/Qwen3-8B"]
    assert isinstance(a, ArchitectureConfig)

    def saved(**arguments: object) -> int:
        return taken(a, tokens=8192, **arguments).saved  # pyright: ignore[reportArgumentType]

    assert saved(recompute="full") < saved(recompute="selective") < saved()
    cut, sequence = ParallelConfig(tensor=4), ParallelConfig(tensor=4, sequence=True)
    assert saved() / 4 < saved(parallel=sequence) < saved(parallel=cut) < saved() / 2
    assert saved(parallel=ParallelConfig(context=2)) == taken(a, tokens=4096, response_tokens=20).saved
    assert saved(dtype="float32") > 1.9 * saved()


def test_the_first_stage_holds_all_micro_batches_in_flight() -> None:
    whole, two = taken(), taken(parallel=ParallelConfig(pipeline=2))
    layer = 2 * (4 * 64 + 256 + 128 + 64 + 128 + 3 * 160) + 4 * (2 + 4)
    # Besides, 16 bytes of indices and the angles' cosine and sine.
    assert two.saved == 2 * 100 * (2 * layer + 16 + 2 * 2 * 32)
    assert abs(two.saved - whole.saved) < 0.1 * whole.saved
    # With a large vocabulary the last stage takes more.
    large = replace(SMALL, vocab_size=100_000)
    last = taken(large, parallel=ParallelConfig(pipeline=2), role="actor")
    assert last.peak > 40 * 100_000 * 4


def test_few_tokens_still_need_the_embeddings_gradient() -> None:
    gradient = 2 * 100_000 * 64
    few = taken(replace(SMALL, vocab_size=100_000), tokens=1, response_tokens=0, role="actor")
    assert few.working == gradient
    # When tied, the output layer's waits for the embedding's, and the sum is a third.
    tied = replace(SMALL, vocab_size=100_000, tie_word_embeddings=True)
    assert taken(tied, tokens=1, response_tokens=0, role="actor").peak == 3 * gradient
    assert taken(tied, tokens=1, response_tokens=0).peak == gradient


def test_a_hybrid_model_is_unknown() -> None:
    assert activations(PUBLISHED["Qwen/Qwen3.5-9B"], ONE, 8192, "bfloat16", None, "actor") is None


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parallel\.tensor: wanted a divisor of num_query_groups \(2\)"):
        taken(parallel=ParallelConfig(tensor=3))
