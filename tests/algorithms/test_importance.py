"""Golden numbers of importance weights at both levels and in both modes, and what their metrics say."""

from __future__ import annotations

import math

import pytest
import torch

from relax_lightning.algorithms.importance import importance_metrics, importance_sums, importance_weights

MASK = torch.tensor([[True, True, True, False], [True, False, False, False]])
# Ratios of the trainer's probability to the engine's; the last ones are masked junk.
RATIOS = torch.tensor([[0.25, 1.0, 4.0, 1.0], [3.0, 1.0, 1.0, 1.0]])
OLD = torch.where(MASK, RATIOS.log(), torch.tensor(float("nan")))


@pytest.mark.parametrize(
    ("level", "mode", "floor", "expected", "outside"),
    [
        ("token", "truncate", None, [[0.25, 1, 2, 0], [2, 0, 0, 0]], 2),
        ("token", "truncate", 0.5, [[0.5, 1, 2, 0], [2, 0, 0, 0]], 3),
        ("token", "mask", 0.5, [[0, 1, 0, 0], [0, 0, 0, 0]], 3),
        ("token", "mask", None, [[0.25, 1, 0, 0], [0, 0, 0, 0]], 2),
        # .25 * 1 * 4 = 1, and 3: every trainable token has its sample's.
        ("sequence", "truncate", None, [[1, 1, 1, 0], [2, 0, 0, 0]], 1),
        ("sequence", "mask", 0.5, [[1, 1, 1, 0], [0, 0, 0, 0]], 1),
    ],
)
def test_golden_numbers(level, mode, floor, expected, outside) -> None:
    found = importance_weights(
        OLD.clone().requires_grad_(), torch.zeros(2, 4), MASK, cap=2.0, floor=floor, level=level, mode=mode
    )
    torch.testing.assert_close(found.weights, torch.tensor(expected).float())
    assert not found.weights.requires_grad and int(found.is_outside.sum()) == outside
    name = "clipped_fraction" if mode == "truncate" else "masked_fraction"
    assert importance_metrics(importance_sums(found, MASK), mode=mode)[f"importance/{name}"] == outside / 4


def test_metrics() -> None:
    found = importance_weights(OLD, torch.zeros(2, 4), MASK, cap=2.0)
    metrics = importance_metrics(importance_sums(found, MASK), mode="truncate")
    # Weights .25 1 2 2: sum 5.25, squares 9.0625; 5.25^2 / 9.0625 / 4. Ratios .25 1 4 3.
    assert metrics == {
        "importance/ratio_mean": pytest.approx(8.25 / 4),
        "importance/weight_mean": pytest.approx(5.25 / 4),
        "importance/effective_sample_fraction": pytest.approx(5.25**2 / 9.0625 / 4),
        "importance/clipped_fraction": 0.5,
    }
    equal = importance_weights(OLD, OLD, MASK, cap=2.0)
    metrics = importance_metrics(importance_sums(equal, MASK), mode="mask")
    assert metrics["importance/effective_sample_fraction"] == 1 and metrics["importance/masked_fraction"] == 0
    # Sums of parts add up to the sums of the whole, as over micro-batches and ranks.
    parts = [
        importance_sums(
            importance_weights(OLD[n : n + 1], torch.zeros(1, 4), MASK[n : n + 1], cap=2.0), MASK[n : n + 1]
        )
        for n in (0, 1)
    ]
    assert {k: float(parts[0][k] + parts[1][k]) for k in parts[0]} == pytest.approx(
        {k: float(v) for k, v in importance_sums(found, MASK).items()}
    )
    nothing = importance_weights(OLD, OLD, torch.zeros_like(MASK), cap=2.0)
    assert importance_metrics(importance_sums(nothing, torch.zeros_like(MASK)), mode="mask") == {}


def test_ratios_beyond_float32_stay_finite() -> None:
    old = torch.tensor([[500.0, -500.0]])
    for level in ("token", "sequence"):
        found = importance_weights(
            old, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), cap=2.0, level=level
        )
        assert found.weights.isfinite().all() and found.raw.isfinite().all()
    assert found.raw.tolist() == [[1, 1]]
    assert math.isclose(
        float(importance_weights(old, torch.zeros(1, 2), MASK[:1, :2], cap=2.0).weights[0, 0]), 2
    )


def test_another_level_is_refused() -> None:
    with pytest.raises(ValueError, match="a level among token, sequence and a mode among truncate, mask"):
        importance_weights(OLD, OLD, MASK, cap=2.0, level="geometric")
