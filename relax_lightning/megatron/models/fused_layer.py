"""A transformer layer as compiled functions of tensors, for large packed inputs on a GPU.

One function; under tensor parallelism three, between Megatron's linear layers, which talk to the other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from relax_lightning.megatron.models.fused import MIN_ROWS, CompiledOnGpu, plain_rms_norm, plain_rotate
from relax_lightning.megatron.models.layout import SequenceLayout


class LayerWeights(NamedTuple):
    """The parameters of a layer, as Megatron lays them out; a missing one is None."""

    input_norm: Tensor
    qkv: Tensor
    """[groups * (heads of a group + 2) * head_size, hidden]: the queries of a group, then its key and value."""
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    projection: Tensor
    mlp_norm: Tensor
    gate_and_up: Tensor
    down: Tensor


def queries_keys_values(
    mixed: Tensor, weights: LayerWeights, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized and turned queries and keys, and values, of this rank's groups.

    Args:
        mixed: [tokens, rows of `weights.qkv`], what the projection gives.
        weights: The layer's.
        cos, sin: [tokens, 1, head_size] each.
        eps: Of the norms.

    Returns:
        [tokens, heads, head_size], and [tokens, groups, head_size] twice.
    """
    head_size = cos.shape[-1]
    groups = (weights.qkv.shape[0] - weights.projection.shape[1]) // (2 * head_size)
    mixed = mixed.view(mixed.shape[0], groups, -1, head_size)
    query, key, value = mixed[:, :, :-2].flatten(1, 2), mixed[:, :, -2], mixed[:, :, -1]
    if weights.query_norm is not None and weights.key_norm is not None:
        query = plain_rms_norm(query, weights.query_norm, eps)
        key = plain_rms_norm(key, weights.key_norm, eps)
    return plain_rotate(query, cos, sin), plain_rotate(key, cos, sin), value


def after_attention(x: Tensor, attended: Tensor, weights: LayerWeights, eps: float) -> Tensor:
    """What the layer gives: `x` [tokens, hidden] plus the projected attention, plus the gated MLP of that.

    Args:
        x: [tokens, hidden], the layer's input.
        attended: [tokens, heads * head_size].
        weights: The layer's.
        eps: Of the norms.
    """
    x = x + F.linear(attended, weights.projection)
    gate_and_up = F.linear(plain_rms_norm(x, weights.mlp_norm, eps), weights.gate_and_up)
    return x + F.linear(swiglu(gate_and_up), weights.down)


def swiglu(gate_and_up: Tensor) -> Tensor:
    """[..., 2 * width] -> [..., width]: the sigmoid-weighted first half times the second."""
    gate, up = gate_and_up.chunk(2, -1)
    return F.silu(gate) * up


def _add_and_norm(x: Tensor, more: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x + more
    return x, plain_rms_norm(x, weight, eps)


def _attend(
    mixed: Tensor, weights: LayerWeights, cos: Tensor, sin: Tensor, ends: Tensor, longest: int, eps: float
) -> Tensor:
    return varlen_attention(*queries_keys_values(mixed, weights, cos, sin, eps), ends, longest).flatten(1)


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> Tensor:
    """Causal attention over packed sequences, in half precision on a GPU.

    Args:
        query, key, value: [tokens, heads, head_size], [tokens, groups, head_size] twice.
        ends: [sequences + 1] int32, where each sequence begins, and the end.
        longest: Tokens of the longest sequence.

    Returns:
        [tokens, heads, head_size].
    """
    out = varlen_attn(query, key, value, ends, ends, longest, longest, window_size=(-1, 0))
    assert isinstance(out, Tensor)
    return out


def _layer(
    x: Tensor, weights: LayerWeights, cos: Tensor, sin: Tensor, ends: Tensor, longest: int, eps: float
) -> Tensor:
    mixed = F.linear(plain_rms_norm(x, weights.input_norm, eps), weights.qkv, weights.qkv_bias)
    return after_attention(x, _attend(mixed, weights, cos, sin, ends, longest, eps), weights, eps)


layer_on_gpu = CompiledOnGpu(_layer)
"""`_layer`, compiled."""
attend_on_gpu, swiglu_on_gpu, add_and_norm_on_gpu = map(CompiledOnGpu, (_attend, swiglu, _add_and_norm))
"""The parts between linear layers, compiled."""


class PackedLayer(TransformerLayer):
    """Megatron's layer, which runs in compiled functions where that pays.

    That is on a GPU, in half precision, from `MIN_ROWS` tokens up and without a cache to fill. Module by module, the
    host needs twice as long to launch a small model's kernels as the GPU to run them. Parameters, checkpoints and
    gradients are those of Megatron's layer either way.
    """

    @cached_property
    def _weights(self) -> LayerWeights:
        attention: Any = self.self_attention
        mlp: Any = self.mlp
        norms: Any = (self.input_layernorm, self.pre_mlp_layernorm)
        return LayerWeights(
            norms[0].weight,
            attention.linear_qkv.weight,
            attention.linear_qkv.bias,
            getattr(attention.q_layernorm, "weight", None),
            getattr(attention.k_layernorm, "weight", None),
            attention.linear_proj.weight,
            norms[1].weight,
            mlp.linear_fc1.weight,
            mlp.linear_fc2.weight,
        )

    def forward(self, hidden_states: Tensor, *args: Any, packed_seq_params: Any = None, **kwargs: Any) -> Any:
        """[tokens, 1, hidden] in; the same and Megatron's (empty) context out."""
        if not self._pays(hidden_states, packed_seq_params):
            return super().forward(hidden_states, *args, packed_seq_params=packed_seq_params, **kwargs)
        layout: SequenceLayout = packed_seq_params
        of_layout = (*layout.rotary, layout.cu_seqlens, layout.max_length, self.config.layernorm_epsilon)
        if not self._is_cut:
            return layer_on_gpu(hidden_states.squeeze(1), self._weights, *of_layout).unsqueeze(1), None
        return self.in_parts(
            hidden_states, lambda mixed: attend_on_gpu(mixed, self._weights, *of_layout)
        ), None

    def in_parts(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """The layer with Megatron's linear layers, which gather, cut and reduce over the tensor ranks.

        Args:
            x: [tokens, 1, hidden]; under sequence parallelism this rank's tokens.
            attend: Projected queries, keys and values of all tokens [tokens, width] -> attention [tokens, width].

        Returns:
            As `x`.
        """
        attention: Any = self.self_attention
        mlp: Any = self.mlp
        mixed, _ = attention.linear_qkv(self.input_layernorm(x))  # pyright: ignore[reportCallIssue]
        attended, _ = attention.linear_proj(attend(mixed.squeeze(1)).unsqueeze(1))
        x, normed = add_and_norm_on_gpu(x, attended, self._weights.mlp_norm, self.config.layernorm_epsilon)
        gate_and_up, _ = mlp.linear_fc1(normed)
        return x + mlp.linear_fc2(swiglu_on_gpu(gate_and_up))[0]

    @property
    def _is_cut(self) -> bool:
        return self.config.tensor_model_parallel_size > 1

    def _pays(self, x: Tensor, layout: Any) -> bool:
        return (
            x.is_cuda
            and x.dtype != torch.float32
            and len(x) >= MIN_ROWS
            and isinstance(layout, SequenceLayout)
            and layout.cache is None
            and self.config.recompute_granularity != "selective"
        )
