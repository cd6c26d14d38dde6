from __future__ import annotations

import pytest
import torch

from relax_lightning.algorithms.token_rewards import token_rewards

MASK = torch.tensor([[True, False, True, False], [True, True, True, True], [False, False, False, False]])


def test_the_reward_stands_at_the_last_trainable_token() -> None:
    expected = torch.tensor([[0.0, 0, 2, 0], [0, 0, 0, -1], [0, 0, 0, 0]])
    assert torch.equal(token_rewards(torch.tensor([2.0, -1.0, 5.0]), MASK), expected)


def test_the_kl_penalty_falls_on_every_trainable_token() -> None:
    kl = torch.where(MASK, 0.5, float("nan"))
    expected = torch.tensor([[-0.05, 0, 1.95, 0], [-0.05, -0.05, -0.05, -1.05], [0, 0, 0, 0]])
    torch.testing.assert_close(token_rewards(torch.tensor([2.0, -1, 5]), MASK, kl=kl, kl_coef=0.1), expected)


def test_one_reward_a_sample_is_wanted() -> None:
    with pytest.raises(ValueError, match=r"rewards must be \[batch\] = \[3\], got \[2\]"):
        token_rewards(torch.zeros(2), MASK)
