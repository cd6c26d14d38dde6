"""The parameters that one rank holds, in the order in which Megatron names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from relax_lightning.config.model import ParallelConfig
from relax_lightning.plan.memory.architectures import Architecture, HybridArchitecture, trunk_of
from relax_lightning.plan.memory.widths import Widths, cut

RoleName = Literal["actor", "critic"]


@dataclass(frozen=True)
class Parameter:
    """One tensor of a rank: the end of its name, and its number of elements."""

    name: str
    size: int
    has_own_bucket: bool = False
    """The copies of a tied embedding on the first and last pipeline stage."""


def parameters(
    architecture: Architecture, parallel: ParallelConfig, role: RoleName, stage: int | None = None
) -> int:
    """Number of parameters of a rank.

    Args:
        architecture: The trunk.
        parallel: How it is cut.
        role: The critic has a value head (one weight a hidden channel, one bias) in the place of the output layer, and
            never ties it to the embedding.
        stage: Pipeline stage, from 0; None: the largest.

    Raises:
        ValueError: Heads, feed-forward width or layers do not divide over the ranks.
    """
    stages = range(parallel.pipeline) if stage is None else [stage]
    return max(sum(p.size for p in stage_parameters(architecture, parallel, role, s)) for s in stages)


def stage_parameters(
    architecture: Architecture, parallel: ParallelConfig, role: RoleName, stage: int
) -> list[Parameter]:
    """Every parameter of a rank of a pipeline stage, in the order of `named_parameters()`.

    Shapes: Megatron-Core's `GPTModel` with the layers of `megatron/layers.py`. Layers are cut evenly over the stages
    (core/transformer/transformer_block.py: get_num_layers_to_build).

    Raises:
        ValueError: As for `parameters`.
    """
    a, widths = trunk_of(architecture), Widths.of(trunk_of(architecture), parallel)
    num_layers = cut("num_layers", a.num_layers, parallel.pipeline, "pipeline")
    is_first, is_last = stage == 0, stage == parallel.pipeline - 1
    embedding = widths.vocabulary * a.hidden_size
    is_tied = a.tie_word_embeddings and role == "actor"
    found: list[Parameter] = []
    if is_first:
        found.append(Parameter("word_embeddings.weight", embedding, is_tied and not is_last))
    for layer in range(stage * num_layers, (stage + 1) * num_layers):
        found += _layer(architecture, widths, parallel, layer)
    if is_last:
        found.append(Parameter("final_layernorm.weight", a.hidden_size))
        if role == "critic":
            found += [Parameter("output_layer.weight", a.hidden_size), Parameter("output_layer.bias", 1)]
        elif not is_tied or not is_first:
            found.append(Parameter("output_layer.weight", embedding, is_tied))
    return found


def _layer(
    architecture: Architecture, widths: Widths, parallel: ParallelConfig, layer: int
) -> Iterator[Parameter]:
    hidden = widths.hidden
    yield Parameter("input_layernorm.weight", hidden)
    if isinstance(architecture, HybridArchitecture):
        if architecture.is_full_attention(layer):
            yield from _attention(widths, gated=True, bias=False, norms=True)
        else:
            yield from _delta_net(architecture, parallel.tensor)
    else:
        yield from _attention(
            widths, gated=False, bias=architecture.qkv_bias, norms=architecture.qk_layernorm
        )
    yield Parameter("pre_mlp_layernorm.weight", hidden)
    yield Parameter("linear_fc1.weight", 2 * widths.ffn * hidden)
    yield Parameter("linear_fc2.weight", widths.ffn * hidden)


def _attention(widths: Widths, *, gated: bool, bias: bool, norms: bool) -> Iterator[Parameter]:
    qkv = widths.qkv_rows + (widths.query if gated else 0)
    yield Parameter("linear_proj.weight", widths.query * widths.hidden)
    yield Parameter("linear_qkv.weight", qkv * widths.hidden)
    if bias:
        yield Parameter("linear_qkv.bias", qkv)
    if norms:
        yield Parameter("q_layernorm.weight", widths.head)
        yield Parameter("k_layernorm.weight", widths.head)


def _delta_net(a: HybridArchitecture, ranks: int) -> Iterator[Parameter]:
    """Queries, keys, values, output gate, decay and update gates from one projection (Yang et al. 2025, section 3)."""
    keys = cut("linear key heads", a.linear_num_key_heads, ranks, "tensor") * a.linear_key_head_dim
    heads = cut("linear value heads", a.linear_num_value_heads, ranks, "tensor")
    values = heads * a.linear_value_head_dim
    hidden = a.trunk.hidden_size
    yield Parameter("dt_bias", heads)
    yield Parameter("A_log", heads)
    yield Parameter("in_proj.weight", (2 * keys + 2 * values + 2 * heads) * hidden)
    yield Parameter("conv1d.weight", (2 * keys + values) * a.linear_conv_kernel_dim)
    yield Parameter("out_norm.weight", a.linear_value_head_dim)
    yield Parameter("out_proj.weight", values * hidden)
