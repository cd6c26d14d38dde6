"""The golden numbers of GAE with their working, its identities, and a slow reference on ragged masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from relax_lightning.algorithms.gae import compute_gae

VALUES = [0.5, 0.4, 0.3, 0.2]
LAST = [0.0, 0.0, 0.0, 1.0]
NOTHING = [0.0, 0.0, 0.0, 0.0]


def row(numbers: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([numbers], dtype=dtype)


def full(numbers: list[float]) -> Tensor:
    return torch.ones(1, len(numbers), dtype=torch.bool)


def textbook(rewards, values, mask, gamma, lambd, bootstrap) -> tuple[Tensor, Tensor]:
    """A_t = delta_t + gamma * lambda * A_(t+1), backwards, one trainable token after the other."""
    advantages = torch.zeros_like(values)
    for sample in range(len(values)):
        next_value, next_advantage = bootstrap[sample].item(), 0.0
        for t in reversed(range(values.shape[1])):
            if mask[sample, t]:
                delta = rewards[sample, t].item() + gamma * next_value - values[sample, t].item()
                next_advantage = delta + gamma * lambd[sample].item() * next_advantage
                next_value = values[sample, t].item()
                advantages[sample, t] = next_advantage
    return advantages, (advantages + values) * mask


# Deltas with gamma 1: r + V_(t+1) - V_t = -.1 -.1 -.1 .8 (the state after the last token has V = 0).
@pytest.mark.parametrize(
    ("rewards", "gamma", "lambd", "bootstrap", "expected"),
    [
        # lambda 1: sum of the deltas that are left: .8 - .3, .8 - .2, .8 - .1, .8
        pytest.param(LAST, 1.0, 1.0, None, [0.5, 0.6, 0.7, 0.8], id="monte_carlo"),
        # .8 | -.1 + .95 * .8 = .66 | -.1 + .95 * .66 = .527 | -.1 + .95 * .527 = .40065
        pytest.param(LAST, 1.0, 0.95, None, [0.40065, 0.527, 0.66, 0.8], id="lambda_95"),
        # deltas .99*.4-.5 = -.104, .99*.3-.4 = -.103, .99*.2-.3 = -.102, .8; decay .9405:
        # .8 | -.102 + .7524 = .6504 | -.103 + .9405 * .6504 = .508701 | -.104 + .9405 * .508701 = .374433
        pytest.param(LAST, 0.99, 0.95, None, [0.374433, 0.508701, 0.6504, 0.8], id="gamma_99"),
        # lambda 0: the deltas themselves
        pytest.param(LAST, 1.0, 0.0, None, [-0.1, -0.1, -0.1, 0.8], id="temporal_difference"),
        # last delta 0 - .2 | -.1 - .19 = -.29 | -.1 - .2755 = -.3755 | -.1 - .356725 = -.456725
        pytest.param(NOTHING, 1.0, 0.95, None, [-0.456725, -0.3755, -0.29, -0.2], id="terminal"),
        # last delta .25 - .2 = .05 | -.1 + .0475 = -.0525 | -.1 - .049875 = -.149875 | -.1 - .14238125
        pytest.param(NOTHING, 1.0, 0.95, 0.25, [-0.242381, -0.149875, -0.0525, 0.05], id="bootstrap"),
    ],
)
def test_golden_numbers(rewards, gamma, lambd, bootstrap, expected) -> None:
    bootstrap_values = None if bootstrap is None else torch.tensor([bootstrap], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        advantages, returns = compute_gae(
            row(rewards, dtype),
            row(VALUES, dtype),
            full(VALUES),
            gamma=gamma,
            lambd=lambd,
            bootstrap_values=bootstrap_values,
        )
        assert advantages.dtype == returns.dtype == dtype
        torch.testing.assert_close(advantages.double(), row(expected), atol=1e-6, rtol=0)
        expected_returns = [a + v for a, v in zip(expected, VALUES, strict=True)]
        torch.testing.assert_close(returns.double(), row(expected_returns), atol=1e-6, rtol=0)


def test_masked_tokens_have_no_decay_and_no_content() -> None:
    # The next state of the first token is the last one: delta = .2 - .5 = -.3, A = -.3 + .95 * .8 = .46.
    mask = torch.tensor([[True, False, False, True]])
    advantages, returns = compute_gae(row(LAST), row(VALUES), mask, gamma=1.0, lambd=0.95)
    torch.testing.assert_close(advantages, row([0.46, 0, 0, 0.8]), atol=1e-6, rtol=0)
    torch.testing.assert_close(returns, row([0.96, 0, 0, 1.0]), atol=1e-6, rtol=0)
    # V = 0, 0: deltas 0 and 1, A = .95 and 1, whatever stands behind.
    mask = torch.tensor([[True, True, False]])
    for junk in (100.0, float("nan"), float("inf")):
        advantages, returns = compute_gae(row([0, 1, junk]), row([0, 0, junk]), mask, gamma=1.0, lambd=0.95)
        torch.testing.assert_close(advantages, row([0.95, 1, 0]), atol=1e-6, rtol=0)
        torch.testing.assert_close(returns, row([0.95, 1, 0]), atol=1e-6, rtol=0)
    mask = torch.tensor([[True, False, True]])
    advantages, _ = compute_gae(row([0, junk, 1]), row([0, junk, 0]), mask, gamma=1.0, lambd=0.95)
    torch.testing.assert_close(advantages, row([0.95, 0, 1]), atol=1e-6, rtol=0)


def test_decoupled_lambda() -> None:
    advantages, returns = compute_gae(
        row(LAST), row(VALUES), full(VALUES), gamma=1.0, lambd=0.95, lambd_critic=1.0
    )
    torch.testing.assert_close(advantages, row([0.40065, 0.527, 0.66, 0.8]), atol=1e-6, rtol=0)
    torch.testing.assert_close(returns, row([1.0, 1.0, 1.0, 1.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("response", [1, 2, 7, 64, 301])
def test_equals_the_textbook_recursion_on_ragged_masks(response: int) -> None:
    generator = torch.Generator().manual_seed(response)
    rewards, values = torch.randn(2, 23, response, generator=generator, dtype=torch.float64)
    mask = torch.rand(23, response, generator=generator) < torch.rand(23, 1, generator=generator)
    mask[3] = False
    mask[4] = True
    lambd = torch.rand(23, generator=generator, dtype=torch.float64)
    bootstrap = torch.randn(23, generator=generator, dtype=torch.float64)
    for gamma in (1.0, 0.9, 0.0):
        expected = textbook(rewards, values, mask, gamma, lambd, bootstrap)
        inputs = {"gamma": gamma, "lambd": lambd, "bootstrap_values": bootstrap}
        torch.testing.assert_close(
            compute_gae(rewards, values, mask, **inputs), expected, atol=1e-12, rtol=1e-12
        )
    right_padded = torch.arange(response) < mask.sum(1, keepdim=True)
    expected = textbook(rewards, values, right_padded, 0.99, lambd, bootstrap)
    actual = compute_gae(rewards, values, right_padded, gamma=0.99, lambd=lambd, bootstrap_values=bootstrap)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


def test_many_blocks_equal_one_sample_at_a_time_and_themselves() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 70, 16_384, generator=generator)
    mask = torch.arange(16_384) < torch.randint(0, 16_385, (70, 1), generator=generator)
    together = compute_gae(rewards, values, mask, gamma=1.0, lambd=0.95)
    again = compute_gae(rewards.clone(), values.clone(), mask.clone(), gamma=1.0, lambd=0.95)
    assert torch.equal(together[0], again[0]) and torch.equal(together[1], again[1])
    for sample in (0, 31, 32, 69):
        one = slice(sample, sample + 1)
        alone, _ = compute_gae(rewards[one], values[one], mask[one], gamma=1.0, lambd=0.95)
        torch.testing.assert_close(together[0][one], alone, atol=1e-5, rtol=1e-6)


def test_identities() -> None:
    generator = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(2, 5, 40, generator=generator, dtype=torch.float64)
    mask = torch.ones(5, 40, dtype=torch.bool)
    powers = 0.97 ** torch.arange(40, dtype=torch.float64)
    monte_carlo = torch.stack([(rewards[:, t:] * powers[: 40 - t]).sum(1) for t in range(40)], dim=1)
    advantages, returns = compute_gae(rewards, values, mask, gamma=0.97, lambd=1.0)
    torch.testing.assert_close(returns, monte_carlo)
    torch.testing.assert_close(advantages, monte_carlo - values)
    advantages, _ = compute_gae(rewards, values, mask, gamma=0.97, lambd=0.0)
    next_values = torch.nn.functional.pad(values[:, 1:], (0, 1))
    torch.testing.assert_close(advantages, rewards + 0.97 * next_values - values)


def test_padding_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(2)
    rewards, values = torch.randn(2, 4, 9, generator=generator)
    mask = torch.rand(4, 9, generator=generator) < 0.7
    expected = compute_gae(rewards, values, mask, gamma=0.99, lambd=0.9)
    for left, right in ((0, 23), (5, 0), (5, 23)):
        junk = [torch.nn.functional.pad(x, (left, right), value=float("nan")) for x in (rewards, values)]
        padded = compute_gae(
            junk[0], junk[1], torch.nn.functional.pad(mask, (left, right)), gamma=0.99, lambd=0.9
        )
        for actual, wanted in zip(padded, expected, strict=True):
            torch.testing.assert_close(actual[:, left : left + 9], wanted, atol=1e-6, rtol=1e-6)
            assert not actual[:, :left].any() and not actual[:, left + 9 :].any()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (3, 4)])
def test_nothing_trainable_gives_zeros(shape: tuple[int, int]) -> None:
    junk, mask = torch.full(shape, float("nan")), torch.zeros(shape, dtype=torch.bool)
    bootstrap = torch.ones(shape[0])
    for tensor in compute_gae(junk, junk, mask, gamma=1.0, lambd=0.95, bootstrap_values=bootstrap):
        assert tensor.shape == shape and not tensor.any()


def test_low_precision_is_raised_and_no_gradient_comes_out() -> None:
    values = torch.tensor([VALUES], dtype=torch.bfloat16, requires_grad=True)
    advantages, returns = compute_gae(row(LAST, torch.bfloat16), values, full(VALUES), gamma=1.0, lambd=1.0)
    assert advantages.dtype == returns.dtype == torch.float32
    assert not advantages.requires_grad and not returns.requires_grad


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"values must have the shape of mask.*\[1, 4\], got \[1, 3\]"):
        compute_gae(row(LAST), row([0, 0, 0]), full(VALUES), gamma=1.0, lambd=1.0)
    with pytest.raises(ValueError, match="mask must be bool"):
        compute_gae(row(LAST), row(VALUES), row(LAST), gamma=1.0, lambd=1.0)
    with pytest.raises(ValueError, match="lambd must be a number"):
        compute_gae(row(LAST), row(VALUES), full(VALUES), gamma=1.0, lambd=torch.ones(4))
    with pytest.raises(ValueError, match="bootstrap_values"):
        compute_gae(
            row(LAST), row(VALUES), full(VALUES), gamma=1.0, lambd=1.0, bootstrap_values=torch.ones(4)
        )
