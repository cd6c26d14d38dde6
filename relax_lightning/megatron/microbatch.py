"""Packing samples into one forward pass, and the way back from packed tokens to [rows, response]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_lightning.batch import Rollouts
from relax_lightning.megatron.layout import SequenceLayout


@dataclass(frozen=True)
class Microbatch:
    """Some samples, packed. `rows` are their positions in the record they were taken from."""

    rows: tuple[int, ...]
    tokens: Tensor
    """[tokens] int64: prompt and response of each sample, one after another; the last token is fed only when asked."""
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
    rollouts: Rollouts, rows: Sequence[int], device: torch.device, *, feed_last: bool = False
) -> Microbatch:
    """Pack the given samples; every one must have a response.

    Args:
        rollouts: The record.
        rows: Positions of the samples in it.
        device: Where the packed tensors go.
        feed_last: Also feed the last response token, for the value of the state after it.
    """
    prompts = rollouts.prompt_lengths[list(rows)].tolist()
    responses = rollouts.response_lengths[list(rows)].tolist()
    assert min(responses) > 0, "samples without a response are left out before packing"
    tail = 0 if feed_last else 1
    lengths = tuple(p + r - tail for p, r in zip(prompts, responses, strict=True))
    tokens, states, targets, cells, final, start = [], [], [], [], [], 0
    width = int(rollouts.response_tokens.shape[1])
    for index, (row, p, r) in enumerate(zip(rows, prompts, responses, strict=True)):
        response = rollouts.response_tokens[row, :r]
        tokens += [rollouts.prompt_tokens[row, :p], response[: r - tail]]
        targets.append(response)
        states.append(torch.arange(start + p - 1, start + p - 1 + r))
        cells.append(torch.arange(index * width, index * width + r))
        final.append(start + p + r - 1)
        start += lengths[index]
    return Microbatch(
        rows=tuple(rows),
        tokens=torch.cat(tokens).to(device),
        layout=SequenceLayout(lengths=lengths, device=device),
        states=torch.cat(states).to(device),
        targets=torch.cat(targets).to(device),
        cells=torch.cat(cells).to(device),
        width=width,
        final_states=torch.tensor(final, device=device) if feed_last else None,
    )
