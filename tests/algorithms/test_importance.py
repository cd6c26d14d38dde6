from __future__ import annotations

import math

import torch

from relax_lightning.algorithms.importance import truncated_importance_weights


def test_weights_are_ratios_up_to_the_cap() -> None:
    ratios = [0.5, 1.0, 1.9, 2.5, 7.0]
    old = torch.tensor([[math.log(ratio) for ratio in ratios[:4]] + [500.0, float("nan")]])
    rollout = torch.zeros(1, 6)
    mask = torch.tensor([[True] * 5 + [False]])
    weights = truncated_importance_weights(old.requires_grad_(), rollout, mask, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 1.0, 1.9, 2.0, 2.0, 0.0]]))
    assert not weights.requires_grad
