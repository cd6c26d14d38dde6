"""Generalized advantage estimation over the trainable tokens of each sample."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_lightning.algorithms.shapes import at_least_float32, check_shapes

_BLOCK_ELEMENTS = 2**19
"""Tokens worked on at a time: few enough that the passes of one block stay in the cache."""

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


@torch.no_grad()
def compute_gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lambd: float | Tensor,
    lambd_critic: float | Tensor | None = None,
    bootstrap_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of each trainable token (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    A_t = sum over k of (gamma * lambd)^k * delta_(t+k), with delta_t = r_t + gamma * V_(t+1) - V_t, where t counts
    trainable tokens only: a masked token has no reward, value, delta or decay. Returns are advantages + values, with
    the advantages taken at `lambd_critic` (decoupled GAE: Yuan et al. 2025, arXiv:2503.01491).

    Args:
        rewards: [batch, response], one reward a token.
        values: [batch, response], the critic's output at the state before each token.
        mask: [batch, response] bool, True on trainable tokens.
        gamma: Discount in [0, 1].
        lambd: In [0, 1], one for all or [batch].
        lambd_critic: The same for the returns; None follows `lambd`.
        bootstrap_values: [batch], value of the state after the last trainable token; None means 0.

    Returns:
        Advantages and returns, both [batch, response] in float32 (float64 when an input is), without gradient, 0
        where masked.

    Raises:
        ValueError: Shapes differ or the mask is not boolean.
    """
    check_shapes(mask, rewards=rewards, values=values)
    batch, response = mask.shape
    dtype = at_least_float32(rewards, values)
    powers = _decay_powers("lambd", lambd, gamma, mask, dtype)
    critic_powers = powers
    if lambd_critic is not None:
        critic_powers = _decay_powers("lambd_critic", lambd_critic, gamma, mask, dtype)
    bootstrap = _bootstrap(bootstrap_values, mask, dtype)
    advantages = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    returns = torch.empty_like(advantages)
    rows = max(1, _BLOCK_ELEMENTS // max(1, response))
    for start in range(0, batch, rows):
        block = slice(start, start + rows)
        layout = _Layout(mask[block], dtype)
        block_values = layout.pack(values[block])
        deltas = layout.pack(rewards[block]).sub_(block_values)
        deltas[:, :-1].add_(block_values[:, 1:], alpha=gamma)
        if bootstrap is not None:
            layout.add_to_last(deltas, gamma * bootstrap[block])
        sums = _discounted_sums(deltas, [power[block] for power in powers])
        critic_sums = sums
        if critic_powers is not powers:
            critic_sums = _discounted_sums(deltas, [power[block] for power in critic_powers])
        layout.unpack(sums, out=advantages[block])
        layout.unpack(critic_sums + block_values, out=returns[block])
    return advantages, returns


class _Layout:
    """Trainable tokens moved to the left, so that the next one is the next column; right padding is left as it is."""

    def __init__(self, mask: Tensor, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._packed_mask = mask
        gaps = mask[:, 1:] > mask[:, :-1]
        # As bytes, any() takes a twentieth of the time it takes on booleans.
        self._has_gaps = bool(gaps.view(torch.uint8).any())
        if self._has_gaps:
            self._packed_mask = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
            self._origins = mask.flatten().nonzero().squeeze(1)
            self._places = self._packed_mask.flatten().nonzero().squeeze(1)
        else:
            self._bits = -mask.to(_BITS[dtype])

    def pack(self, x: Tensor) -> Tensor:
        """A copy of x [rows, response] in this layout, 0 behind the trainable tokens."""
        x = x.to(self._dtype)
        if not self._has_gaps:
            # Clears NaN as torch.where does, in a third of the time.
            return (x.view(self._bits.dtype) & self._bits).view(self._dtype)
        packed = x.new_zeros(x.numel())
        packed[self._places] = x.flatten()[self._origins]
        return packed.view(x.shape)

    def unpack(self, packed: Tensor, out: Tensor) -> None:
        """The way back, with 0 where masked."""
        if not self._has_gaps:
            out.copy_(packed)
        else:
            out.zero_().view(-1)[self._origins] = packed.flatten()[self._places]

    def add_to_last(self, packed: Tensor, x: Tensor) -> None:
        """Add x [rows] to the last trainable token of each row that has one."""
        lengths = self._packed_mask.sum(1)
        filled = lengths.nonzero().squeeze(1)
        packed[filled, lengths[filled] - 1] += x[filled]


def _decay_powers(
    name: str, lambd: float | Tensor, gamma: float, mask: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """(gamma * lambd)^(2^n) for every pass n of the sums, each [batch, 1]."""
    batch, response = mask.shape
    lambdas = torch.as_tensor(lambd, dtype=torch.float64, device=mask.device)
    if lambdas.shape not in ((), mask.shape[:1]):
        raise ValueError(f"{name} must be a number or [batch] = [{batch}], got {list(lambdas.shape)}")
    power = (gamma * lambdas).expand(batch).unsqueeze(1)
    powers: list[Tensor] = []
    # A power below the smallest normal number adds nothing that is left in a sum, and multiplying by it is slow.
    while 2 ** len(powers) < response and bool((power > torch.finfo(dtype).tiny).any()):
        powers.append(power.to(dtype))
        power = power * power
    return powers


def _bootstrap(bootstrap_values: Tensor | None, mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    if bootstrap_values is None:
        return None
    if bootstrap_values.shape != mask.shape[:1]:
        raise ValueError(
            f"bootstrap_values must be [batch] = [{mask.shape[0]}], got {list(bootstrap_values.shape)}"
        )
    return bootstrap_values.to(dtype)


def _discounted_sums(x: Tensor, powers: list[Tensor]) -> Tensor:
    """y_t = sum over k of decay^k * x_(t+k) by doubling (Hillis and Steele 1986): after pass n, k runs to 2^(n+1) - 1.

    Additions only, so no matrix-multiplication precision setting of torch can touch it, and the order of additions is
    fixed by the shape.
    """
    sums, spares = x, [torch.empty_like(x), torch.empty_like(x)]
    for n, power in enumerate(powers):
        step, out = 2**n, spares[n % 2]
        torch.addcmul(sums[:, :-step], sums[:, step:], power, out=out[:, :-step])
        out[:, -step:] = sums[:, -step:]
        sums = out
    return sums
