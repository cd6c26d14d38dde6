"""What several samples of one prompt say together: pass@k and maj@k."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def pass_at_k(correct: Tensor, *, k: int) -> Tensor:
    """Probability that at least one of k samples of a prompt is right, estimated from n >= k samples without bias.

    1 - C(n - c, k) / C(n, k) with c right samples of n, as the product of 1 - k / i for i from n - c + 1 to n (Chen et
    al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, equation 1 and figure 3).

    Args:
        correct: [prompts, samples] bool.
        k: From 1 to the number of samples.

    Returns:
        [prompts] float64.

    Raises:
        ValueError: `correct` has another shape or type, or k is out of range.
    """
    _check(correct, k)
    num_samples = correct.shape[1]
    numbers = torch.arange(1, num_samples + 1, dtype=torch.float64, device=correct.device)
    counted = numbers > num_samples - correct.sum(1, keepdim=True)
    return 1 - torch.where(counted, 1 - k / numbers, 1.0).prod(1)


@torch.no_grad()
def majority_at_k(answers: Tensor, correct: Tensor, *, k: int) -> Tensor:
    """Probability that the most frequent answer of k samples is right (self-consistency).

    Wang et al. 2022, arXiv:2203.11171, section 2. The n samples are cut into n // k groups in their order and averaged,
    which has no bias since samples of a prompt are exchangeable. Of answers with equally many votes each is taken with
    the same probability; samples without an answer do not vote, and a group without any vote is wrong.

    Args:
        answers: [prompts, samples] int64: equal numbers within a prompt are equal answers; below 0: no answer.
        correct: [prompts, samples] bool.
        k: From 1 to the number of samples.

    Returns:
        [prompts] float64.

    Raises:
        ValueError: The shapes differ, `correct` is not bool, or k is out of range.
    """
    _check(correct, k)
    if answers.shape != correct.shape:
        raise ValueError(
            f"answers must have the shape of correct, {list(correct.shape)}, got {list(answers.shape)}"
        )
    num_groups = correct.shape[1] // k
    grouped = answers[:, : num_groups * k].reshape(-1, num_groups, k)
    right = correct[:, : num_groups * k].reshape(-1, num_groups, k).double()
    is_vote = grouped >= 0
    votes = ((grouped[..., None] == grouped[..., None, :]) & is_vote[..., None, :]).sum(-1) * is_vote
    # Every sample of a winning answer counts the same, so answers with equally many votes do too.
    wins = (votes == votes.amax(-1, keepdim=True)) & is_vote
    return ((wins * right).sum(-1) / wins.sum(-1).clamp(min=1)).mean(1)


def _check(correct: Tensor, k: int) -> None:
    if correct.dim() != 2 or correct.dtype != torch.bool:
        raise ValueError(
            f"correct must be bool [prompts, samples], got {correct.dtype} {list(correct.shape)}"
        )
    if not 1 <= k <= correct.shape[1]:
        raise ValueError(f"k must be from 1 to the {correct.shape[1]} samples a prompt, got {k}")
