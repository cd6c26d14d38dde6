from __future__ import annotations

import pytest
import torch

from relax_lightning.algorithms.length_adaptive import length_adaptive_lambd


def test_lambda_grows_with_the_number_of_trainable_tokens() -> None:
    mask = torch.zeros(4, 100, dtype=torch.bool)
    mask[1, 3] = True  # 1 - 1 / (.05 * 1) < 0
    mask[2, ::2] = True  # 1 - 1 / (.05 * 50) = .6
    mask[3] = True  # 1 - 1 / (.05 * 100) = .8
    assert length_adaptive_lambd(mask, alpha=0.05).tolist() == pytest.approx([0, 0, 0.6, 0.8])
