"""The learning rates that a plan prints are those that Megatron applies, step by step."""

import pytest
import torch

from relax_lightning.config import OptimizerConfig
from relax_lightning.megatron.optimizer import build_schedule
from relax_lightning.plan.schedule import learning_rate


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("num_steps", [1, 2, 40])
def test_planned_rates_are_those_applied(decay: str, num_steps: int) -> None:
    settings = OptimizerConfig(lr=1e-3, min_lr=1e-5, decay=decay)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = build_schedule(optimizer, settings, num_steps)  # pyright: ignore[reportArgumentType]
    applied = []
    for _ in range(num_steps + 2):
        applied.append(optimizer.param_groups[0]["lr"])
        schedule.step(1)
    planned = [learning_rate(settings, step, num_steps, 0) for step in range(num_steps + 2)]
    assert applied == pytest.approx(planned, rel=1e-12)
    # The end is what the step after the last would have; a run that goes on stays there.
    last, end = (1e-3, 1e-3) if decay == "constant" else (applied[num_steps - 1], 1e-5)
    assert applied[num_steps:] == pytest.approx([end, end], rel=1e-12)
    assert last > end or decay == "constant"
    if decay == "linear":
        assert last == pytest.approx(1e-5 + (1e-3 - 1e-5) / num_steps, rel=1e-12)
