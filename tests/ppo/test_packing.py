"""Which samples go together, on lists worked by hand."""

from __future__ import annotations

from relax_lightning.ppo.packing import microbatches, optimizer_steps


def test_optimizer_steps_cover_every_sample_once_a_pass() -> None:
    assert optimizer_steps(4, None, 1) == [[0, 1, 2, 3]]
    assert optimizer_steps(4, 4, 1) == [[0, 1, 2, 3]]
    assert optimizer_steps(6, 2, None) == [[0, 1], [2, 3], [4, 5]]
    shuffled = optimizer_steps(64, 16, 1)
    assert [len(step) for step in shuffled] == [16] * 4
    assert sorted(row for step in shuffled for row in step) == list(range(64))
    assert shuffled != optimizer_steps(64, 16, None)
    assert shuffled == optimizer_steps(64, 16, 1) != optimizer_steps(64, 16, 2)


def test_microbatches_by_samples_and_by_tokens() -> None:
    lengths = [5, 9, 3, 3, 20, 1]
    assert microbatches(lengths, [0, 1, 2, 4, 5], max_samples=2, max_tokens=1) == [[0, 1], [2, 4], [5]]
    # Longest first, 10 tokens each: 20 is over the budget and goes alone, then 9+... 9 leaves 1, 5 leaves 5.
    assert microbatches(lengths, range(6), max_tokens=10) == [[4], [1], [0, 2], [3, 5]]
    assert microbatches(lengths, range(6), max_tokens=1000) == [[4, 1, 0, 2, 3, 5]]
    assert microbatches(lengths, [], max_tokens=10) == []
