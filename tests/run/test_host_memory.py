"""Host memory in a few pieces: as much as is asked for, in sizes that torch does not round up."""

import pytest
import torch

from relax_lightning.run.host_memory import LARGEST, SMALLEST, HostArena, bytes_of

MIB = 2**20


def pieces(*sizes: int) -> list[int]:
    arena = HostArena("key", "leave it")
    for size in sizes:
        arena._grow(size)
        assert size <= arena.size < size + MIB
    return [len(piece) for piece in arena._pieces]


def test_no_more_than_a_mebibyte_is_left_over() -> None:
    # Empty memory of a CPU is not touched, so large sizes cost nothing.
    assert pieces(1) == [MIB]
    assert pieces(600 * MIB) == [256 * MIB, 256 * MIB, 64 * MIB, 16 * MIB, 8 * MIB]
    assert pieces(3 * MIB + 1) == [2 * MIB, MIB, MIB]
    assert pieces(5 * MIB, 5 * MIB, 6 * MIB) == [4 * MIB, MIB, MIB]
    for size in pieces(3 * 2**30 - 12345):
        assert SMALLEST <= size <= LARGEST and size & (size - 1) == 0


def test_what_was_written_is_read_again() -> None:
    arena = HostArena("key", "leave it")
    tensors = [
        torch.randn(700, 1000),
        torch.randn(3, dtype=torch.float64),
        torch.empty(0),
        torch.randn(5).bfloat16(),
    ]
    before = [tensor.clone() for tensor in tensors]
    for on_host, part in arena.places(map(bytes_of, tensors)):
        on_host.copy_(part)
        part.zero_()
    assert not any(tensor.any() for tensor in tensors)
    size = arena.size
    for on_host, part in arena.places(map(bytes_of, tensors)):
        part.copy_(on_host)
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True)) and arena.size == size
    arena.clear()
    assert arena.size == 0


def test_too_much_is_an_error_that_says_what_to_change() -> None:
    with pytest.raises(
        RuntimeError, match=r"^key: wanted another \d+ MiB of pinned host memory, got .*, or leave it$"
    ):
        HostArena("key", "leave it")._pinned(2**60)
