"""A share of the optimizer on the host: the weights of the device alone, bit for bit, before and after a resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from relax_lightning.config import AlgorithmConfig, OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import read_architecture
from relax_lightning.megatron.host_optimizer import HostAdamW
from relax_lightning.megatron.optimizer import inner_optimizers
from relax_lightning.megatron.role import Actor
from relax_lightning.ppo.updates import StepLoss
from relax_lightning.strategies.offload import RoleResident
from tests.megatron.allocations import allocated
from tests.megatron.test_role import make_experience

CPU = torch.device("cpu")
KINDS = list(itertools.product((torch.float32, torch.bfloat16), (True, False)))
pytestmark = [
    pytest.mark.usefixtures("process_group"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="bits are those of one kernel; test_gpu.py has the GPU"
    ),
]


class Trained:
    """An actor on fixed samples, whose gradients are clipped and whose learning rate decays."""

    def __init__(self, directory: Path, fraction: float, dtype: torch.dtype, distributed: bool) -> None:
        settings = OptimizerConfig(
            lr=1e-2, decay="linear", clip_grad=0.1, distributed=distributed, cpu_offload_fraction=fraction
        )
        self.role = Actor(
            "actor",
            read_architecture(directory),
            ParallelConfig(),
            settings,
            num_steps=9,
            dtype=dtype,
            device=CPU,
            weights=str(directory),
        )
        self._experience = make_experience()

    def step(self, lr_scale: float = 1.0) -> float:
        """One optimizer step; gives the gradient norm."""
        rollouts, rows = self._experience.rollouts, list(range(len(self._experience)))
        loss = StepLoss(self._experience, rows, AlgorithmConfig(), CPU)
        kept = [row for row in rows if rollouts.response_lengths[row] > 0]
        packed = [self.role.pack(rollouts, kept[n::2]) for n in range(2)]
        result = self.role.update(packed, self.role.head(rollouts.temperature), loss.actor, lr_scale)
        assert result.applied
        return result.grad_norm

    @property
    def inner(self) -> Any:
        return next(inner_optimizers(self.role.optimizer))

    def state(self) -> list[Tensor]:
        """Weights, then moments and steps in the parameters' order."""
        weights = [p.detach().clone() for p in self.role.model.parameters()]
        moments = [value.clone() for values in self.inner.state.values() for value in values.values()]
        return weights + moments


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize(("dtype", "distributed"), KINDS)
def test_any_share_on_the_host_changes_no_bit(
    dtype: torch.dtype, distributed: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    make = [Trained(tiny_model("qwen3"), fraction, dtype, distributed) for fraction in (0.0, 0.5, 1.0)]
    device, half, host = make
    start = device.state()
    assert not isinstance(device.inner, HostAdamW)
    assert 0 < len(half.inner.held) < len(host.inner.held) == len(host.inner.state)
    norms = [[trained.step(scale) for scale in (1.0, 0.5, 1.0, 1.0)] for trained in make]
    assert norms[0] == norms[1] == norms[2] and min(norms[0]) > 0.1
    assert equal(device.state(), half.state()) and equal(device.state(), host.state())
    assert not equal(device.state(), start)
    # A main weight on the host has no memory on the device between steps.
    assert all(
        bool(parameter.untyped_storage().nbytes()) != state.is_main
        for parameter, state in host.inner.held.items()
    )
    before = allocated(half.role)

    # Each saves what it has; all that load any of it go on as the one that never stopped.
    for trained, name in zip(make, ("0", "half", "1"), strict=True):
        trained.role.save(tmp_path / name)
    for source, fraction in (("0", 1.0), ("half", 0.0), ("1", 0.5), ("half", 0.5)):
        resumed = Trained(tiny_model("qwen3"), fraction, dtype, distributed)
        block = resumed.inner.block if fraction else None
        resumed.role.load(tmp_path / source)
        assert equal(resumed.state(), device_state := device.state()), (source, fraction)
        assert resumed.role.num_steps_done == 4
        if block is not None:
            held = resumed.inner.held
            assert resumed.inner.block is block
            assert all(resumed.inner.state[p]["exp_avg"] is held[p].exp_avg for p in held)
        last = resumed
    expected = device.step()
    assert half.step() == last.step() == host.step() == expected
    assert equal(half.state(), device.state()) and equal(last.state(), device.state())
    assert not equal(device.state(), device_state)
    assert allocated(half.role) == allocated(last.role) == before


@pytest.mark.parametrize(("dtype", "distributed"), KINDS)
def test_the_pool_moves_only_what_is_on_the_device(
    dtype: torch.dtype, distributed: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    device, fixed, moved = (
        Trained(tiny_model("llama"), fraction, dtype, distributed) for fraction in (0.0, 0.5, 0.5)
    )
    device.role.save(tmp_path / "start")
    resident = RoleResident(moved.role)
    for _ in range(2):
        for trained in (device, fixed, moved):
            trained.step()
        host = moved.inner.block.clone()
        for tag in ("gradients", "optimizer", "weights"):
            resident.offload(tag)
        assert allocated(moved.role)[:3] == (0, 0, 0)
        assert torch.equal(moved.inner.block, host)
        for tag in ("weights", "optimizer", "gradients"):
            resident.onload(tag)
        assert equal(fixed.state(), moved.state()) and torch.equal(moved.inner.block, host)
    # Weights alone: the host's own follow, and moments and steps stay.
    for trained in (device, fixed, moved):
        trained.role.load(tmp_path / "start", weights_only=True)
        trained.step()
    assert equal(device.state(), fixed.state()) and equal(device.state(), moved.state())
