"""Golden numbers of the losses with their working, masked junk, and what splitting a step into micro-batches keeps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from relax_lightning.algorithms.aggregation import sequence_mean_weights
from relax_lightning.algorithms.losses import policy_loss, positive_nll, value_loss

JUNK = (float("nan"), float("inf"), -float("inf"), 1e30)
Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]


def pair(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def everything(x: Tensor) -> Tensor:
    return torch.ones_like(x, dtype=torch.bool)


def test_value_loss_golden_numbers() -> None:
    # v_clip = .7 and .3. First token: max(.1^2, .3^2) = .09, the clipped one; second: max(.9^2, .7^2) = .81.
    # .5 * (.09 + .81) / 2 = .225; one of two tokens is clipped.
    values, old = pair(0.9, 0.1), pair(0.5, 0.5)
    loss, metrics = value_loss(values, old, pair(1, 1), everything(values), value_clip=0.2)
    assert loss.item() == pytest.approx(0.225, abs=1e-6)
    assert metrics["value_clipfrac"].item() == pytest.approx(0.5)
    # Without clipping: .5 * (.01 + .81) / 2 = .205.
    loss, metrics = value_loss(values, old, pair(1, 1), everything(values), value_clip=None)
    assert loss.item() == pytest.approx(0.205, abs=1e-6)
    assert metrics["value_clipfrac"].item() == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "margins", "expected", "clipfrac"),
    [
        (1.0, 2.0, {}, -2.0, 0),
        (1.5, 1.0, {}, -1.2, 1),  # capped at 1 + .2
        (1.5, 1.0, {"eps_clip_high": 0.3}, -1.3, 1),
        (1.5, -1.0, {}, 1.5, 0),  # moving the wrong way is not clipped
        (0.5, -1.0, {}, 0.8, 1),  # 1 - .2
        (0.5, -1.0, {"eps_clip_high": 0.9}, 0.8, 1),
        (0.5, 1.0, {}, -0.5, 0),
        (5.0, -1.0, {}, 5.0, 0),
        (5.0, -1.0, {"eps_clip_c": 3.0}, 3.0, 0),  # dual clip: at most -c * A
        (5.0, 1.0, {"eps_clip_c": 3.0}, -1.2, 1),  # only for A < 0
    ],
)
def test_policy_loss_of_one_token(ratio, advantage, margins, expected, clipfrac) -> None:
    log_probs, old = pair(math.log(ratio) - 2), pair(-2.0)
    loss, metrics = policy_loss(log_probs, old, pair(advantage), everything(old), eps_clip=0.2, **margins)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metrics["pg_clipfrac"].item() == clipfrac
    assert metrics["ppo_kl"].item() == pytest.approx(-math.log(ratio))
    assert metrics["ppo_kl_k3"].item() == pytest.approx(ratio - 1 - math.log(ratio))


def test_the_first_update_has_ratio_one() -> None:
    log_probs = pair(-1.0, -2.0, -3.0).requires_grad_()
    loss, metrics = policy_loss(
        log_probs, log_probs.detach(), pair(1, 2, -6), everything(log_probs), eps_clip=0.2
    )
    loss.backward()
    assert loss.item() == pytest.approx(1.0)
    assert log_probs.grad is not None
    torch.testing.assert_close(log_probs.grad, pair(1, 2, -6) / -3)
    assert {name: metric.item() for name, metric in metrics.items()} == dict.fromkeys(metrics, 0.0)


def test_a_huge_log_ratio_stays_finite() -> None:
    log_probs = torch.tensor([[500.0, -500.0]], requires_grad=True)
    loss, metrics = policy_loss(
        log_probs, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), everything(log_probs), eps_clip=0.2
    )
    loss.backward()
    assert loss.item() == pytest.approx(math.exp(20) / 2, rel=1e-5)
    assert log_probs.grad is not None and log_probs.grad.isfinite().all()
    assert all(metric.isfinite() for metric in metrics.values())


def policy(
    x: Tensor, old: Tensor, target: Tensor, mask: Tensor, **kwargs
) -> tuple[Tensor, dict[str, Tensor]]:
    return policy_loss(x, old, target, mask, eps_clip=0.2, eps_clip_c=3.0, **kwargs)


def value(x: Tensor, old: Tensor, target: Tensor, mask: Tensor, **kwargs) -> tuple[Tensor, dict[str, Tensor]]:
    return value_loss(x, old, target, mask, value_clip=0.2, **kwargs)


@pytest.mark.parametrize("loss_fn", [policy, value])
def test_masked_junk_reaches_neither_loss_nor_gradient(loss_fn: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    x, old, target, weights = torch.randn(4, 3, 6, generator=generator)
    mask = torch.rand(3, 6, generator=generator) < 0.6
    x.requires_grad_()
    expected, expected_metrics = loss_fn(x, old, target, mask, weights=weights)
    (expected_gradient,) = torch.autograd.grad(expected, x)
    for junk in JUNK:
        dirty = [torch.where(mask, tensor, junk) for tensor in (x.detach(), old, target, weights)]
        dirty[0].requires_grad_()
        loss, metrics = loss_fn(*dirty[:3], mask, weights=dirty[3])
        (gradient,) = torch.autograd.grad(loss, dirty[0])
        assert torch.equal(loss, expected) and torch.equal(gradient, expected_gradient)
        assert metrics == expected_metrics and not gradient[~mask].any()


@pytest.mark.parametrize("loss_fn", [policy, value])
def test_nothing_trainable_gives_zero_and_a_zero_gradient(loss_fn: Loss) -> None:
    for shape in ((2, 3), (2, 0)):
        x = torch.full(shape, float("nan"), requires_grad=True)
        loss, metrics = loss_fn(x, x.detach(), x.detach(), torch.zeros(shape, dtype=torch.bool))
        (gradient,) = torch.autograd.grad(loss, x)
        assert loss.item() == 0 and not gradient.any()
        assert all(metric.item() == 0 for metric in metrics.values())


@pytest.mark.parametrize("loss_fn", [policy, value])
def test_nan_at_a_trainable_token_is_not_hidden(loss_fn: Loss) -> None:
    x = pair(float("nan"), 0.0)
    assert loss_fn(x, pair(0, 0), pair(1, 1), everything(x))[0].isnan()


@pytest.mark.parametrize("loss_fn", [policy, value])
@pytest.mark.parametrize("sequence_mean", [False, True])
@pytest.mark.parametrize("rows_each", [1, 2, 3, 8])
def test_micro_batches_add_up(loss_fn: Loss, sequence_mean: bool, rows_each: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x, old, target = torch.randn(3, 8, 11, generator=generator)
    mask = torch.arange(11) < torch.tensor([[11], [3], [0], [1], [7], [11], [5], [2]])
    totals = {"num_tokens": mask.sum(), "num_samples": mask.any(1).sum()}
    weights = sequence_mean_weights(mask, **totals) if sequence_mean else torch.ones(8, 11)
    x.requires_grad_()
    whole, whole_metrics = loss_fn(x, old, target, mask, weights=weights)
    (whole_gradient,) = torch.autograd.grad(whole, x)
    loss, metrics = torch.zeros(()), dict.fromkeys(whole_metrics, 0.0)
    for start in range(0, 8, rows_each):
        rows = slice(start, start + rows_each)
        length = int(mask[rows].sum(1).max()) + 1  # padded to another length
        part, part_metrics = loss_fn(
            *(tensor[rows, :length] for tensor in (x, old, target, mask)),
            weights=weights[rows, :length],
            num_tokens=totals["num_tokens"],
        )
        loss = loss + part
        metrics = {name: metrics[name] + part_metrics[name].item() for name in metrics}
    (gradient,) = torch.autograd.grad(loss, x)
    assert loss.item() == pytest.approx(whole.item(), abs=1e-6)
    assert (gradient - whole_gradient).norm() <= 1e-5 * whole_gradient.norm()
    assert metrics == pytest.approx({name: metric.item() for name, metric in whole_metrics.items()}, abs=1e-6)


def test_positive_nll_golden_numbers() -> None:
    log_probs = torch.tensor(
        [[-1.0, -2.0, float("nan")], [-4.0, -8.0, -1.0], [-3.0, 0.0, 0.0]], requires_grad=True
    )
    mask = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    rewards = torch.tensor([1.0, 0.5, 2.0])
    # Above .5: samples 1 and 3, (1 + 2 + 3) / 3 tokens.
    loss = positive_nll(log_probs, rewards, mask, threshold=0.5)
    loss.backward()
    assert loss.item() == 2
    assert log_probs.grad is not None
    expected = torch.tensor([[-1 / 3, -1 / 3, 0], [0, 0, 0], [-1 / 3, 0, 0]])
    torch.testing.assert_close(log_probs.grad, expected)
    parts = [
        positive_nll(log_probs[r], rewards[r], mask[r], threshold=0.5, num_tokens=3) for r in ([0, 1], [2])
    ]
    assert sum(parts).item() == 2
    assert positive_nll(log_probs, rewards, mask, threshold=9.0).item() == 0
    with pytest.raises(ValueError, match=r"rewards must be \[batch\] = \[3\], got \[2\]"):
        positive_nll(log_probs, rewards[:2], mask, threshold=0.0)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="advantages must have the shape of mask"):
        policy_loss(pair(1), pair(1), pair(1, 2), everything(pair(1)), eps_clip=0.2)
    with pytest.raises(ValueError, match="returns must have the shape of mask"):
        value_loss(pair(1), pair(1), pair(1, 2), everything(pair(1)), value_clip=None)
