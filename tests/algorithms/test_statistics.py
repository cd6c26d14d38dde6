from __future__ import annotations

import pytest
import torch

from relax_lightning.algorithms.statistics import explained_variance, whiten

EVERYTHING = torch.ones(1, 4, dtype=torch.bool)


def test_whiten_golden_numbers() -> None:
    # Mean 2.5, unbiased variance (2.25 + .25 + .25 + 2.25) / 3 = 1.666667: 1.5 / 1.290994 = 1.161895.
    expected = torch.tensor([[-1.161895, -0.387298, 0.387298, 1.161895]])
    torch.testing.assert_close(
        whiten(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), EVERYTHING), expected, atol=1e-6, rtol=0
    )
    mask = torch.tensor([[True, False, True], [True, True, False]])
    junk = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 4.0, float("inf")]])
    expected = torch.tensor([[-1.161895, 0, -0.387298], [0.387298, 1.161895, 0]])
    torch.testing.assert_close(whiten(junk, mask), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e30, -7.0])
def test_equal_values_and_a_single_one_whiten_to_exact_zeros(number: float) -> None:
    x = torch.full((3, 37), number)
    assert torch.equal(whiten(x, torch.ones(3, 37, dtype=torch.bool)), torch.zeros(3, 37))
    one = torch.zeros(3, 37, dtype=torch.bool)
    one[1, 2] = True
    assert torch.equal(whiten(x, one), torch.zeros(3, 37))
    assert torch.equal(whiten(x * float("nan"), torch.zeros_like(one)), torch.zeros(3, 37))


def test_whiten_survives_a_large_offset() -> None:
    whitened = whiten(torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64) + 1e9, EVERYTHING)
    assert whitened.dtype == torch.float64
    torch.testing.assert_close(
        whitened, torch.tensor([[-1.161895, -0.387298, 0.387298, 1.161895]]).double(), atol=1e-6, rtol=0
    )


def test_explained_variance() -> None:
    returns = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert explained_variance(returns + 5, returns, EVERYTHING) == 1
    assert explained_variance(torch.full_like(returns, 0.3), returns, EVERYTHING) == 0
    # Residuals 0 0 1 1: variance .25; returns: 1.25; 1 - .25 / 1.25 = .8.
    values = torch.tensor([[0.0, 1.0, 1.0, 2.0]])
    assert explained_variance(values, returns, EVERYTHING).item() == pytest.approx(0.8)
    assert explained_variance(-returns, returns, EVERYTHING).item() == pytest.approx(-3.0)
    junk = torch.tensor([[0.0, 2.0, float("nan"), float("inf")]])
    assert explained_variance(
        junk, returns, torch.tensor([[True, True, False, False]])
    ).item() == pytest.approx(0)


def test_explained_variance_is_zero_where_returns_do_not_vary() -> None:
    equal, values = torch.full((1, 4), 0.1), torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert explained_variance(values, equal, EVERYTHING) == 0
    assert explained_variance(values, equal, ~EVERYTHING) == 0
