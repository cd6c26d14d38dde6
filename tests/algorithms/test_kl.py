from __future__ import annotations

import math

import pytest
import torch

from relax_lightning.algorithms.kl import estimate_kl


@pytest.mark.parametrize(
    ("estimator", "expected"),
    # r = log 2: k1 = r, k2 = r^2 / 2, k3 = 1/2 - 1 + r
    [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", math.log(2) - 0.5)],
)
def test_estimators(estimator: str, expected: float) -> None:
    log_probs = torch.tensor([[-1.0, -3.0, float("nan")]], requires_grad=True)
    ref_log_probs = torch.tensor([[-1.0 - math.log(2), -3.0, float("inf")]])
    kl = estimate_kl(log_probs, ref_log_probs, torch.tensor([[True, True, False]]), estimator=estimator)
    torch.testing.assert_close(kl, torch.tensor([[expected, 0.0, 0.0]]))
    kl.sum().backward()
    assert log_probs.grad is not None and log_probs.grad.isfinite().all() and log_probs.grad[0, 2] == 0


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_over_the_policy(estimator: str) -> None:
    policy, reference = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.3, 0.3, 0.4]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    kl = estimate_kl(policy.log(), reference.log(), mask, estimator=estimator)
    exact = (policy * (policy / reference).log()).sum()
    torch.testing.assert_close((policy * kl).sum(), exact)


def test_another_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="one of k1, k2, k3, got 'k4'"):
        estimate_kl(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), estimator="k4")
