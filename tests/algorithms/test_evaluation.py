from __future__ import annotations

from itertools import combinations

import pytest
import torch

from relax_lightning.algorithms.evaluation import majority_at_k, pass_at_k


def test_pass_at_k_is_the_share_of_all_choices_of_k() -> None:
    draw = torch.Generator().manual_seed(0)
    correct = torch.rand(20, 7, generator=draw) < torch.linspace(0, 1, 20)[:, None]
    for k in range(1, 8):
        wanted = [
            sum(any(row[list(chosen)]) for chosen in combinations(range(7), k))
            / len(list(combinations(range(7), k)))
            for row in correct
        ]
        torch.testing.assert_close(pass_at_k(correct, k=k), torch.tensor(wanted, dtype=torch.float64))


def test_pass_at_k_golden_numbers() -> None:
    # n = 4, c = 1: 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6 = .5; n = 200, c = 5, k = 10: 1 - C(195, 10) / C(200, 10).
    assert pass_at_k(torch.tensor([[True, False, False, False]]), k=2).tolist() == [0.5]
    many = (torch.arange(200) < 5)[None]
    product = 1.0
    for i in range(10):
        product *= (195 - i) / (200 - i)
    assert pass_at_k(many, k=10).item() == pytest.approx(1 - product, abs=1e-12)
    assert pass_at_k(many, k=1).item() == pytest.approx(5 / 200, abs=1e-12)
    assert pass_at_k(many, k=200).item() == pass_at_k(many, k=196).item() == 1
    assert pass_at_k(torch.zeros(3, 4, dtype=torch.bool), k=4).tolist() == [0, 0, 0]


def test_majority_counts_votes_ties_and_silence() -> None:
    answers = torch.tensor(
        [
            [3, 3, 7, -1],  # 3 has two votes, and is right
            [3, 3, 7, 7],  # a tie of a right and a wrong one: half
            [-1, -1, -1, 5],  # one voice is enough
            [-1, -1, -1, -1],  # nobody says anything: wrong
            [1, 1, 2, 2],  # no tie between 1 (wrong) and 2 (right) in the halves: (0 + 1) / 2
        ]
    )
    right = torch.tensor([3, 3, 5, 5, 2])
    correct = answers == right[:, None]
    assert majority_at_k(answers, correct, k=4).tolist() == [1.0, 0.5, 1.0, 0.0, 0.5]
    # First halves 3 3, 3 3, nothing, nothing, 1 1; second ones 7 -, 7 7, - 5, nothing, 2 2.
    assert majority_at_k(answers, correct, k=2).tolist() == [0.5, 0.5, 0.5, 0.0, 0.5]
    # Groups of three leave the last sample out.
    assert majority_at_k(answers, correct, k=3).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert majority_at_k(answers, correct, k=1).tolist() == correct.double().mean(1).tolist()


def test_wrong_arguments_are_named() -> None:
    correct = torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="k must be from 1 to the 4 samples a prompt, got 5"):
        pass_at_k(correct, k=5)
    with pytest.raises(
        ValueError, match=r"correct must be bool \[prompts, samples\], got torch.float32 \[2, 4\]"
    ):
        pass_at_k(correct.float(), k=1)
    with pytest.raises(ValueError, match="answers must have the shape of correct"):
        majority_at_k(torch.zeros(2, 3, dtype=torch.int64), correct, k=1)
