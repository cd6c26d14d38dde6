"""Tensors that leave and come back: every bit the same, memory really given up, views still views."""

import pytest
import torch

from relax_lightning.run import host_memory
from relax_lightning.strategies.offload import TensorGroup

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=[pytest.mark.gpu, NO_GPU])]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_twenty_rounds_change_no_bit_and_free_all_memory(device: torch.device) -> None:
    buffer = torch.randn(10_000, device=device)
    moments = torch.randn(3, 500, dtype=torch.float64, device=device)
    parameter, other = buffer[64:1064].view(10, 100), buffer[2000:]
    group = TensorGroup(lambda: [parameter, other, moments])
    size = 10_000 * 4 + 1500 * 8
    before = [tensor.clone() for tensor in (buffer, moments)]
    for _ in range(20):
        assert (group.size, group.is_away) == (size, False)
        group.offload()
        group.offload()
        assert (group.size, group.is_away) == (size, True)
        assert buffer.untyped_storage().nbytes() == moments.untyped_storage().nbytes() == 0
        group.onload()
        group.onload()
        assert all(torch.equal(*pair) for pair in zip((buffer, moments), before, strict=True))
    group.offload()
    group.onload(stays=True)  # the host's memory is given back, and taken anew when they leave again
    assert not group._arena.size
    group.offload()
    group.onload()
    assert all(torch.equal(*pair) for pair in zip((buffer, moments), before, strict=True))
    parameter.fill_(7.0)
    assert buffer[64:1064].eq(7.0).all()


def test_tensors_that_reach_over_the_pieces_of_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "LARGEST", 64)
    monkeypatch.setattr(host_memory, "SMALLEST", 16)
    tensors = [torch.arange(n, dtype=torch.float32) for n in (3, 40, 1, 16, 100)]
    before = [tensor.clone() for tensor in tensors]
    group = TensorGroup(lambda: tensors)
    group.offload()
    group.onload()
    assert all(torch.equal(*pair) for pair in zip(tensors, before, strict=True))


def test_what_need_not_be_kept_comes_back_as_room_only() -> None:
    gradients = torch.ones(1000)
    group = TensorGroup(lambda: [gradients], keeps=False)
    group.offload()
    assert gradients.untyped_storage().nbytes() == 0
    group.onload()
    assert gradients.zero_().sum() == 0


def test_tensors_that_an_optimizer_replaced_are_found() -> None:
    held = {"state": torch.zeros(10)}
    group = TensorGroup(lambda: held.values())
    group.offload()
    group.onload()
    held["state"] = torch.ones(20)
    assert group.size == 80
    group.offload()
    group.onload()
    assert held["state"].eq(1).all()


def test_nothing_to_move() -> None:
    group = TensorGroup(list)
    group.offload()
    group.onload()
    assert group.size == 0
