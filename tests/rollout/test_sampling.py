"""Draws by name and inversion of the cumulative distribution, on numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relax_lightning.config import SamplingConfig
from relax_lightning.rollout.sampling import draw_tokens, sample_tokens, uniform_draws


def test_draws_depend_on_their_three_names_and_look_uniform() -> None:
    ids = np.arange(20_000)
    draws = uniform_draws(7, ids, 3)
    assert torch.equal(draws, torch.cat([uniform_draws(7, ids[:3], 3), uniform_draws(7, ids[3:], 3)]))
    assert draws.min() >= 0
    assert draws.max() < 1
    for other in (uniform_draws(8, ids, 3), uniform_draws(7, ids, 4), uniform_draws(7, ids + 1, 3)):
        assert (draws == other).sum() <= 1
        assert abs(np.corrcoef(draws, other)[0, 1]) < 5 / np.sqrt(len(ids))
    assert uniform_draws(2**70 + 5, ids[:2], 0).tolist() == uniform_draws(5, ids[:2], 0).tolist()
    # The largest gap between the empirical and the uniform distribution (Kolmogorov-Smirnov), far in the tail.
    gap = (draws.sort().values - torch.arange(len(ids)) / len(ids)).abs().max()
    assert gap < 2 / np.sqrt(len(ids))


@pytest.mark.parametrize(
    ("draw", "sampling", "token"),
    [
        # Probabilities .1 .2 .3 .4, cumulative .1 .3 .6 1.
        (0.05, {}, 0),
        (0.1, {}, 1),
        (0.29, {}, 1),
        (0.3, {}, 2),
        (0.999999, {}, 3),
        (0.05, {"temperature": 0.0}, 3),
        # The two likeliest, .3 and .4: the draw is of their sum, .7.
        (0.42, {"top_k": 2}, 2),
        (0.43, {"top_k": 2}, 3),
        # Likeliest first .4 .7 .9: the smallest set that reaches .65 is two tokens, that reaches .75 three.
        (0.0, {"top_p": 0.65}, 2),
        (0.0, {"top_p": 0.75}, 1),
        (0.0, {"top_p": 0.4}, 3),
        # At temperature .5 the probabilities are squares: 1 4 9 16 of 30.
        (0.03, {"temperature": 0.5}, 0),
        (0.04, {"temperature": 0.5}, 1),
    ],
)
def test_a_draw_lands_in_its_tokens_interval(draw: float, sampling: dict[str, float], token: int) -> None:
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    settings = SamplingConfig(**sampling)
    tokens, log_probs = sample_tokens(
        probabilities.log(), torch.tensor([draw], dtype=torch.float64), settings
    )
    assert tokens.tolist() == [token]
    exponent = 1 / (settings.temperature or 1.0)
    expected = probabilities[0] ** exponent / (probabilities[0] ** exponent).sum()
    assert log_probs.item() == pytest.approx(expected[token].log().item(), abs=1e-6)


def test_many_rows_are_drawn_as_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(700, 50_000, generator=generator)
    draws = torch.rand(700, dtype=torch.float64, generator=generator)
    some = torch.arange(0, 700, 69)
    alone = [draw_tokens(probabilities[n : n + 1], draws[n : n + 1]).item() for n in some.tolist()]
    assert draw_tokens(probabilities, draws)[some].tolist() == alone


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(5, -1)
    draws = torch.tensor([0.0, 0.25, 0.5, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert sample_tokens(logits, draws, SamplingConfig())[0].tolist() == [1, 1, 3, 3, 3]
