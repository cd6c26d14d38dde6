"""Packing samples into one forward pass, and the way back from packed tokens to [rows, response]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_lightning.megatron.models.layout import SequenceLayout
from relax_lightning.ppo.batch import Rollouts


@dataclass(frozen=True)
class Microbatch:
    """Some samples, packed. `rows` are their positions in the record they were taken from."""

    rows: tuple[int, ...]
    tokens: Tensor
    """[tokens] int64: prompt and response of each sample, one after another; the last token is fed only when asked.
    Zeros at the end fill up what sequence parallelism has to divide."""
    layout: SequenceLayout
    states: Tensor
    """[response tokens] int64: packed position of the state before each response token."""
    targets: Tensor
    """[response tokens] int64: the response tokens themselves."""
    cells: Tensor
    """[response tokens] int64: flat position of each response token in [rows, response]."""
    width: int
    """Padded response length of the record."""
    final_states: Tensor | None = None
    """[rows] int64: packed position of the state after each response, when the last token was fed."""

    def scatter(self, values: Tensor) -> Tensor:
        """[response tokens] -> [rows, response], zero elsewhere, with gradient."""
        flat = values.new_zeros(len(self.rows) * self.width).index_copy(0, self.cells, values)
        return flat.view(len(self.rows), self.width)


def pack(
    rollouts: Rollouts,
    rows: Sequence[int],
    device: torch.device,
    *,
    feed_last: bool = False,
    token_multiple: int = 1,
) -> Microbatch:
    """Pack the given samples; every one must have a response.

    Args:
        rollouts: The record.
        rows: Positions of the samples in it.
        device: Where the packed tensors go.
        feed_last: Also feed the last response token, for the value of the state after it.
        token_multiple: The number of packed tokens becomes a multiple of it.
    """
    index = torch.tensor(rows)
    prompts, responses = rollouts.prompt_lengths[index], rollouts.response_lengths[index]
    assert int(responses.min()) > 0, "samples without a response are left out before packing"
    lengths = prompts + responses - (0 if feed_last else 1)
    filling = -int(lengths.sum()) % token_multiple
    # Behind the last sequence, where no token sees them.
    fed = [*lengths.tolist()[:-1], int(lengths[-1]) + filling]
    # Row and position of each packed token, and of each response token in [rows, response].
    sequences = torch.repeat_interleave(torch.arange(len(index)), lengths)
    starts = lengths.cumsum(0) - lengths
    positions = torch.arange(len(sequences)) - starts[sequences]
    width = int(rollouts.response_tokens.shape[1])
    kept = torch.arange(width)[None] < responses[:, None]
    cell_rows, cell_positions = kept.nonzero(as_tuple=True)
    tokens = _tokens_at(rollouts, index[sequences], positions)
    return Microbatch(
        rows=tuple(rows),
        tokens=torch.cat((tokens, tokens.new_zeros(filling))).to(device),
        layout=SequenceLayout(lengths=tuple(fed), device=device),
        states=((starts + prompts - 1)[cell_rows] + cell_positions).to(device),
        targets=rollouts.response_tokens[index][kept].to(device),
        cells=(cell_rows * width + cell_positions).to(device),
        width=width,
        final_states=(starts + lengths - 1).to(device) if feed_last else None,
    )


def empty_microbatch(device: torch.device, token_multiple: int = 1) -> Microbatch:
    """A forward pass of no sample, for a replica that has none while others wait for its part of the gradients."""
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    return Microbatch(
        rows=(),
        tokens=torch.zeros(token_multiple, dtype=torch.int64, device=device),
        layout=SequenceLayout(lengths=(token_multiple,), device=device),
        states=nothing,
        targets=nothing,
        cells=nothing,
        width=1,
    )


def _tokens_at(rollouts: Rollouts, rows: Tensor, positions: Tensor) -> Tensor:
    """Tokens of prompt and response read as one sequence; `rows` and `positions` [tokens] int64."""
    prompts = rollouts.prompt_lengths[rows]
    of_prompt = rollouts.prompt_tokens[rows, positions.clamp(max=rollouts.prompt_tokens.shape[1] - 1)]
    of_response = rollouts.response_tokens[rows, (positions - prompts).clamp(min=0)]
    return torch.where(positions < prompts, of_prompt, of_response)
