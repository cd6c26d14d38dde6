from __future__ import annotations

import pytest
import torch

from relax_lightning.algorithms.reward_shaping import RunningMoments, has_equal_rewards, overlong_penalty


def test_the_penalty_falls_in_a_line_over_the_buffer() -> None:
    lengths = torch.tensor([0, 12, 16, 17, 18, 20, 25])
    expected = [0, 0, 0, -0.25, -0.5, -1, -1]
    assert overlong_penalty(lengths, max_tokens=20, buffer_tokens=4).tolist() == expected


def test_groups_of_equal_rewards() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    assert has_equal_rewards(rewards, group_size=2).tolist() == [True, True, False, False, True, True]
    assert has_equal_rewards(rewards, group_size=3).tolist() == [False] * 6
    # .1 three times has a spread of 1e-9 when it is computed; equal is equal.
    assert has_equal_rewards(torch.full((3,), 0.1), group_size=3).all()
    with pytest.raises(ValueError, match="whole groups of 4 samples, got 6"):
        has_equal_rewards(rewards, group_size=4)


def test_moments_of_parts_are_those_of_the_whole() -> None:
    draw = torch.Generator().manual_seed(0)
    x = 1e6 + torch.randn(1000, generator=draw, dtype=torch.float64)
    moments = RunningMoments()
    for part in x.split([1, 0, 499, 7, 493]):
        moments.update(part)
    assert moments.count == 1000
    assert moments.mean == pytest.approx(float(x.mean()), rel=1e-12)
    assert moments.std == pytest.approx(float(x.std()), rel=1e-6)
    torch.testing.assert_close(moments.normalize(x), ((x - x.mean()) / x.std()).float(), atol=1e-5, rtol=1e-5)
    again = RunningMoments()
    again.load_state_dict(moments.state_dict())
    assert torch.equal(again.normalize(x), moments.normalize(x))


def test_without_spread_rewards_are_only_shifted() -> None:
    moments = RunningMoments()
    moments.update(torch.tensor([2.0]))
    assert moments.std == 0 and moments.normalize(torch.tensor([2.0, 3.0])).tolist() == [0, 1]
    moments.update(torch.tensor([2.0, 2.0]))
    assert moments.normalize(torch.tensor([2.0])).tolist() == [0]
