from __future__ import annotations

import pytest
import torch

from relax_lightning.algorithms.aggregation import aggregate, sequence_mean_weights


def test_token_mean_divides_by_the_given_count() -> None:
    per_token = torch.tensor([[1.0, 2.0, 30.0]])
    mask = torch.tensor([[True, True, False]])
    assert aggregate(per_token, mask).item() == 1.5
    assert aggregate(per_token, mask, num_tokens=10).item() == pytest.approx(0.3)
    assert aggregate(per_token, mask, weights=torch.tensor([[3.0, 0.5, 9.0]])).item() == 2.0
    assert aggregate(per_token, torch.zeros_like(mask)).item() == 0


def test_sequence_mean_is_the_mean_over_samples_of_their_token_means() -> None:
    per_token = torch.tensor([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    # Token means 2 and 10; the sample without tokens is none of the two.
    weights = sequence_mean_weights(mask, num_tokens=4, num_samples=2)
    assert weights.dtype == torch.float32 and not weights[~mask].any()
    assert aggregate(per_token, mask, weights=weights, num_tokens=4).item() == pytest.approx(6.0)
    # The first sample alone is a micro-batch of the same step: 2 / 2 samples.
    alone = sequence_mean_weights(mask[:1], num_tokens=4, num_samples=2)
    assert aggregate(per_token[:1], mask[:1], weights=alone, num_tokens=4).item() == pytest.approx(1.0)
