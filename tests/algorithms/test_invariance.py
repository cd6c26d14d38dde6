"""What must not matter to any piece of the arithmetic: order of samples, padding and what stands in it, precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from relax_lightning.algorithms.gae import compute_gae
from relax_lightning.algorithms.importance import importance_metrics, importance_sums, importance_weights
from relax_lightning.algorithms.kl import estimate_kl
from relax_lightning.algorithms.length_adaptive import length_adaptive_lambd
from relax_lightning.algorithms.losses import policy_loss, positive_nll, value_loss
from relax_lightning.algorithms.statistics import explained_variance, whiten
from relax_lightning.algorithms.token_rewards import token_rewards

BATCH, RESPONSE = 24, 90
PER_TOKEN: dict[str, Callable[..., Tensor]] = {
    "gae": lambda x, y, z, r, m: compute_gae(x, y, m, gamma=0.99, lambd=0.9)[0],
    "decoupled": lambda x, y, z, r, m: compute_gae(x, y, m, gamma=1.0, lambd=0.9, lambd_critic=1.0)[1],
    "bootstrapped": lambda x, y, z, r, m: compute_gae(x, y, m, gamma=1, lambd=0.9, bootstrap_values=r)[0],
    "length-adaptive": lambda x, y, z, r, m: compute_gae(
        x, y, m, gamma=1.0, lambd=length_adaptive_lambd(m, alpha=0.2)
    )[0],
    "whitened": lambda x, y, z, r, m: whiten(x, m),
    "k1": lambda x, y, z, r, m: estimate_kl(x, y, m, estimator="k1"),
    "k2": lambda x, y, z, r, m: estimate_kl(x, y, m, estimator="k2"),
    "k3": lambda x, y, z, r, m: estimate_kl(x, y, m, estimator="k3"),
    "rewards": lambda x, y, z, r, m: token_rewards(r, m, kl=x, kl_coef=0.1),
    "truncated, token": lambda x, y, z, r, m: importance_weights(x, y, m, cap=2.0).weights,
    "masked, token": lambda x, y, z, r, m: importance_weights(x, y, m, cap=2.0, mode="mask").weights,
    "truncated, sequence": lambda x, y, z, r, m: (
        importance_weights(x, y, m, cap=2.0, level="sequence").weights
    ),
    "masked, sequence": lambda x, y, z, r, m: (
        importance_weights(x, y, m, cap=2.0, floor=0.5, level="sequence", mode="mask").weights
    ),
}
SCALARS: dict[str, Callable[..., Tensor]] = {
    "policy": lambda x, y, z, r, m: policy_loss(x, y, z, m, eps_clip=0.2)[0],
    "clip-higher, dual clip": lambda x, y, z, r, m: policy_loss(
        x, y, z, m, eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=1.5
    )[0],
    "clipped share": lambda x, y, z, r, m: policy_loss(x, y, z, m, eps_clip=0.2)[1]["pg_clipfrac"],
    "value": lambda x, y, z, r, m: value_loss(x, y, z, m, value_clip=0.2)[0],
    "value, not clipped": lambda x, y, z, r, m: value_loss(x, y, z, m, value_clip=None)[0],
    "positive_nll": lambda x, y, z, r, m: positive_nll(x, r, m, threshold=0.0),
    "explained variance": lambda x, y, z, r, m: explained_variance(x, y, m),
    "effective samples": lambda x, y, z, r, m: torch.tensor(
        importance_metrics(importance_sums(importance_weights(x, y, m, cap=2.0), m), mode="truncate")[
            "importance/effective_sample_fraction"
        ]
    ),
}
ALL = [*PER_TOKEN, *SCALARS]


@pytest.fixture(scope="module")
def inputs() -> tuple[Tensor, ...]:
    """Three tensors of tokens that lie near each other, one of samples, and a mask with holes, in float64."""
    draw = torch.Generator().manual_seed(0)
    x, near, z = torch.randn(3, BATCH, RESPONSE, generator=draw, dtype=torch.float64)
    mask = torch.rand(BATCH, RESPONSE, generator=draw) < 0.8
    mask &= torch.arange(RESPONSE) < torch.randint(0, RESPONSE + 1, (BATCH, 1), generator=draw)
    mask[3] = False
    rewards = torch.randn(BATCH, generator=draw, dtype=torch.float64)
    return x, x + 0.1 * near, z, rewards, mask


def run(name: str, *inputs: Tensor) -> Tensor:
    return (PER_TOKEN | SCALARS)[name](*inputs)


@pytest.mark.parametrize("name", ALL)
def test_order_of_samples(name: str, inputs: tuple[Tensor, ...]) -> None:
    order = torch.randperm(BATCH, generator=torch.Generator().manual_seed(1))
    expected = run(name, *inputs)
    expected = expected[order] if name in PER_TOKEN else expected
    torch.testing.assert_close(run(name, *(t[order] for t in inputs)), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -1e30])
def test_padding_and_what_stands_in_it(name: str, junk: float, inputs: tuple[Tensor, ...]) -> None:
    *tokens, rewards, mask = inputs
    dirty = [torch.nn.functional.pad(torch.where(mask, t, junk), (0, 33), value=junk) for t in tokens]
    padded = run(name, *dirty, rewards, torch.nn.functional.pad(mask, (0, 33)))
    if name in PER_TOKEN:
        assert not padded[:, RESPONSE:].any()
        padded = padded[:, :RESPONSE]
    torch.testing.assert_close(padded, run(name, *inputs), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_precision(name: str, inputs: tuple[Tensor, ...]) -> None:
    exact = run(name, *inputs)
    *tokens, rewards, mask = (t.float() if t.is_floating_point() else t for t in inputs)
    single = run(name, *tokens, rewards, mask)
    torch.testing.assert_close(single.double(), exact.double(), atol=1e-5, rtol=1e-5)
    # Numbers of lower precision are computed with in float32, so nothing is rounded on the way.
    half = [t.bfloat16() for t in tokens]
    low = run(name, *half, rewards, mask)
    assert low.dtype in (torch.float32, torch.float64)
    torch.testing.assert_close(low, run(name, *(t.float() for t in half), rewards, mask))
