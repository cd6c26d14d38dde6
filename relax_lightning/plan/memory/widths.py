"""The sizes that one rank sees: elements of a dtype, and a model's widths cut over tensor ranks."""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.faults import fault
from relax_lightning.config.model import ArchitectureConfig, ParallelConfig

FP32 = 4
"""Bytes of an element of gradients, of the optimizer's main weights, and of Adam's moments."""

_ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}


def element_bytes(dtype: str) -> int:
    """Bytes of one element of `bfloat16` or `float32`.

    Raises:
        ValueError: Another dtype.
    """
    if dtype not in _ELEMENT_BYTES:
        raise ValueError(f"dtype: {fault(' or '.join(_ELEMENT_BYTES), dtype, 'change it')}")
    return _ELEMENT_BYTES[dtype]


def resolved_dtype(dtype: str, *, on_gpu: bool) -> str:
    """`model.dtype` with `auto` resolved: bfloat16 on a GPU, float32 on a CPU."""
    if dtype == "auto":
        return "bfloat16" if on_gpu else "float32"
    return dtype


def cut(what: str, size: int, ranks: int, key: str) -> int:
    """`size` divided over `ranks`.

    Raises:
        ValueError: It does not divide.
    """
    if size % ranks:
        raise ValueError(f"parallel.{key}: {fault(f'a divisor of {what} ({size})', ranks, 'change it')}")
    return size // ranks


def round_up(size: int, multiple: int) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Widths:
    """One tensor rank's part of a layer, in elements."""

    hidden: int
    """Of the residual stream, which every rank holds whole."""
    heads: int
    groups: int
    """Key/value heads. Where ranks outnumber them, ranks share one."""
    head: int
    qkv_rows: int
    """Of the weight that queries, keys and values come from; it is cut evenly also where ranks share a group."""
    ffn: int
    vocabulary: int

    @property
    def query(self) -> int:
        """Of the queries."""
        return self.heads * self.head

    @property
    def key(self) -> int:
        """Of the keys, and again of the values."""
        return self.groups * self.head

    @property
    def qkv(self) -> int:
        """Of what the projection gives: queries, keys and values."""
        return self.query + 2 * self.key

    @staticmethod
    def of(a: ArchitectureConfig, parallel: ParallelConfig) -> Widths:
        """The widths of a complete architecture.

        Raises:
            ValueError: Heads or feed-forward width do not divide over the tensor ranks.
        """
        ranks, groups = parallel.tensor, a.num_query_groups
        assert groups and a.kv_channels and a.ffn_hidden_size, "complete() fills what is null"
        if ranks % groups:
            cut("num_query_groups", groups, ranks, "tensor")
        return Widths(
            hidden=a.hidden_size,
            heads=cut("num_attention_heads", a.num_attention_heads, ranks, "tensor"),
            groups=max(1, groups // ranks),
            head=a.kv_channels,
            qkv_rows=(a.num_attention_heads + 2 * groups) * a.kv_channels // ranks,
            ffn=cut("ffn_hidden_size", a.ffn_hidden_size, ranks, "tensor"),
            vocabulary=padded_vocabulary(a.vocab_size, ranks) // ranks,
        )


def padded_vocabulary(vocab_size: int, tensor: int) -> int:
    """Rows of the embedding over all tensor ranks: the least number that Megatron can cut evenly.

    `VocabUtility.vocab_range_from_global_vocab_size` (core/tensor_parallel/utils.py) wants a multiple of the ranks. One
    rank pads nothing, as in `megatron/model.py: build_model`.
    """
    return round_up(vocab_size, tensor)
