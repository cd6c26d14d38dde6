"""How the tokens of one forward pass lie: packed sequences, or one new token a sequence beside a KV cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor


class KVCache:
    """Keys and values of every layer of a pipeline stage, one row a sequence.

    Args:
        layers: Numbers of the layers in the whole model, from 0.
        num_rows, num_heads, capacity, head_size: shape of the cache, one
            [rows, heads, capacity, head_size] tensor for keys and one for values a layer.
    """

    def __init__(
        self,
        layers: Iterable[int],
        num_rows: int,
        num_heads: int,
        capacity: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_rows, num_heads, capacity, head_size)
        numbers = list(layers)
        self.keys = {layer: torch.zeros(shape, dtype=dtype, device=device) for layer in numbers}
        self.values = {layer: torch.zeros(shape, dtype=dtype, device=device) for layer in numbers}

    def select(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order; `rows` [kept] int64 may repeat a row."""
        for tensors in (self.keys, self.values):
            for layer, tensor in tensors.items():
                tensors[layer] = tensor.index_select(0, rows)


@dataclass
class SequenceLayout(PackedSeqParams):
    """Packed sequences: [tokens] is the sequences of `lengths` one after another.

    Megatron passes it through its layers to our core attention untouched, because its `qkv_format` is none that
    Megatron knows; so it survives activation recomputation and pipelining.
    """

    lengths: tuple[int, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache: KVCache | None = None
    """Where prefill puts the keys and values, when a decode follows."""
    first_cache_row: int = 0
    """The cache's row of the first sequence."""
    rotary: tuple[Tensor, Tensor] = field(default=None)  # pyright: ignore[reportAssignmentType]
    """Cosine and sine of each token's rotary angles, [tokens, 1, head_size] each; the model sets them."""

    def __post_init__(self) -> None:
        self.qkv_format = "relax_lightning"
        self.max_length = max(self.lengths)

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """[sequences + 1] int32: where each sequence begins, and the end."""
        lengths = torch.tensor((0, *self.lengths), dtype=torch.int32)
        return lengths.cumsum(0, dtype=torch.int32).to(self.device)

    @cached_property
    def positions(self) -> Tensor:
        """[tokens] int64: position of each token in its own sequence."""
        return self._rows_and_positions[1]

    @cached_property
    def padded_index(self) -> Tensor:
        """[tokens] int64: where each token lies in a [sequences * max_length] padded tensor."""
        rows, positions = self._rows_and_positions
        return rows * self.max_length + positions

    @cached_property
    def sequence_index(self) -> Tensor:
        """[tokens] int64: which sequence each token belongs to."""
        return self._rows_and_positions[0]

    @property
    def last_tokens(self) -> Tensor:
        """[sequences] int64: packed position of the last token of each sequence."""
        return self.cu_seqlens[1:].long() - 1

    @cached_property
    def _rows_and_positions(self) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor(self.lengths)
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(int(lengths.sum())) - starts[rows]
        return rows.to(self.device), positions.to(self.device)

    @property
    def is_uniform(self) -> bool:
        """Whether all sequences have one length, so that padding would be a mere view."""
        return min(self.lengths) == self.max_length


@dataclass
class DecodeLayout(PackedSeqParams):
    """One new token for each row of a KV cache."""

    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """[rows] int64: position of each row's new token."""
    longest: int = 0
    """Largest position + 1: how much of the cache attention must look at."""
    cache: KVCache = field(default=None)  # pyright: ignore[reportAssignmentType]
    rotary: tuple[Tensor, Tensor] = field(default=None)  # pyright: ignore[reportAssignmentType]
    """Cosine and sine of each new token's rotary angles, [rows, 1, head_size] each; the model sets them."""

    def __post_init__(self) -> None:
        self.qkv_format = "relax_lightning"

    @cached_property
    def visible(self) -> Tensor:
        """[rows, 1, 1, longest] bool: which cached positions each row may see."""
        index = torch.arange(self.longest, device=self.positions.device)
        return (index[None] <= self.positions[:, None])[:, None, None, :]
