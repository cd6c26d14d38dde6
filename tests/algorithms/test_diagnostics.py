from __future__ import annotations

import math

import pytest
import torch

from relax_lightning.algorithms.aggregation import join_parts
from relax_lightning.algorithms.diagnostics import (
    effective_sample_fraction,
    mismatch,
    num_turns,
    ratio_diagnostics,
    repeated_fraction,
    value_bias,
)


def mask_of(*rows: str) -> torch.Tensor:
    return torch.tensor([[letter == "1" for letter in row] for row in rows])


def test_value_bias_by_third_of_the_trainable_tokens() -> None:
    # Trainable tokens 1 to 6 of the first row: two a third; the second row has one token, which is early.
    mask = mask_of("1101111", "0000100")
    returns = torch.zeros(2, 7)
    values = torch.tensor([[1.0, 3, 99, 4, 6, -1, -3], [99, 99, 99, 99, 7, 99, 99]])
    bias = value_bias(values, returns, mask)
    # Early: (1 + 3 + 7) / 3; middle: (4 + 6) / 2; late: (-1 - 3) / 2.
    assert {name: x.item() for name, x in bias.items()} == pytest.approx(
        {"early": 11 / 3, "middle": 5, "late": -2}
    )
    assert value_bias(values, values, mask) == {"early": 0, "middle": 0, "late": 0}
    junk = values.masked_fill(~mask, float("nan"))
    assert value_bias(junk, returns, mask) == bias
    assert value_bias(values, returns, torch.zeros_like(mask)) == {}


def test_repeated_fraction_counts_runs_of_four() -> None:
    # Of 1 2 1 2 1 2 1 there are four runs: 1212 2121 1212 2121; two of them are new.
    tokens = torch.tensor([[1, 2, 1, 2, 1, 2, 1], [5, 5, 5, 5, 5, 5, 5], [1, 2, 3, 4, 5, 6, 7], [5] * 7])
    mask = mask_of("1111111", "1111111", "1111111", "1110111")
    # 5 5 5 5 ...: four runs, one new. The last row has no run of four generated tokens.
    assert repeated_fraction(tokens, mask).tolist() == [0.5, 0.75, 0.0, 0.0]
    # What a tool repeats, and padding, do not count.
    gaps = mask_of("1111000", "1111000", "0000000", "1111110")
    assert repeated_fraction(tokens, gaps).tolist() == pytest.approx([0, 0, 0, 2 / 3])
    assert repeated_fraction(tokens[:, :3], mask[:, :3]).tolist() == [0, 0, 0, 0]
    draw = torch.Generator().manual_seed(1)
    long = torch.randint(0, 3, (50, 60), generator=draw)
    kept = torch.rand(50, 60, generator=draw) < 0.9
    for row, keep, found in zip(
        long.tolist(), kept.tolist(), repeated_fraction(long, kept).tolist(), strict=True
    ):
        runs = [tuple(row[i : i + 4]) for i in range(57) if all(keep[i : i + 4])]
        assert found == pytest.approx(1 - len(set(runs)) / len(runs) if runs else 0)


def test_turns_are_runs_of_trainable_tokens() -> None:
    assert num_turns(mask_of("11011", "00000", "11111", "01010")).tolist() == [2, 0, 1, 2]


def test_ratio_diagnostics_join_over_micro_batches() -> None:
    draw = torch.Generator().manual_seed(0)
    old, new = -torch.rand(6, 5, generator=draw), -torch.rand(6, 5, generator=draw)
    mask = torch.rand(6, 5, generator=draw) < 0.6
    old[~mask] = float("nan")
    count = int(mask.sum())
    whole = ratio_diagnostics(new, old, mask, num_tokens=count)
    ratio = (new - old)[mask].exp()
    assert whole["ratio_max"].item() == pytest.approx(ratio.max().item())
    ess = effective_sample_fraction(float(whole["ratio_mean"]), float(whole["ratio_square_mean"]))
    assert ess == pytest.approx((ratio.sum() ** 2 / ratio.square().sum() / count).item(), rel=1e-5)
    parts = [
        ratio_diagnostics(new[a:b], old[a:b], mask[a:b], num_tokens=count)
        for a, b in ((0, 1), (1, 4), (4, 6))
    ]
    for name, value in whole.items():
        assert join_parts(name, [float(p[name]) for p in parts]) == pytest.approx(float(value), rel=1e-5)
    # Weights 1, 1, 1, 3 in place of 4 tokens: 36 / (4 * 12) = .75; equal ratios: 1.
    assert effective_sample_fraction(6 / 4, 12 / 4) == pytest.approx(0.75)
    assert effective_sample_fraction(0.5, 0.25) == 1
    assert effective_sample_fraction(0.0, 0.0) == 0


def test_mismatch_is_that_of_the_distribution_that_drew() -> None:
    # One token, drawn with probability 1/2 by the engine, 1/4 in training: k1 = ln 2; k3 = 1/2 - 1 + ln 2.
    rollout, trainer = torch.tensor([[math.log(0.5), 0.0]]), torch.tensor([[math.log(0.25), float("nan")]])
    found = mismatch(trainer, rollout, torch.tensor([[True, False]]), num_tokens=1)
    wanted = {"log_prob_abs_diff": math.log(2), "kl_k1": math.log(2), "kl_k3": math.log(2) - 0.5}
    assert {name: x.item() for name, x in found.items()} == pytest.approx(wanted, rel=1e-5)
    same = mismatch(rollout, rollout, torch.tensor([[True, True]]), num_tokens=2)
    assert {x.item() for x in same.values()} == {0.0}
