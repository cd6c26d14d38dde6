"""Our layer spec for Megatron's GPT layers without Transformer Engine: RMSNorm and one core attention for all uses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from relax_lightning.megatron.models.fused import head_rms_norm, rms_norm, rotate
from relax_lightning.megatron.models.fused_layer import PackedLayer, varlen_attention
from relax_lightning.megatron.models.layout import DecodeLayout, SequenceLayout


class RMSNorm(torch.nn.RMSNorm):
    """Torch's RMSNorm, one kernel on a GPU, with the mark that gradient reduction under sequence parallelism needs."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] normalized."""
        norm = rms_norm if x.dim() == 3 else head_rms_norm
        return norm(x, self.weight, self.eps)


class CoreAttention(torch.nn.Module):
    """Causal grouped-query attention over packed sequences, or over a KV cache for decoding.

    The layout that comes as `packed_seq_params` decides: `SequenceLayout` (training, log-probs, values, prefill) or
    `DecodeLayout`. Keys and values are never repeated for the query heads that share them, except where the CPU
    kernel needs it. Rotary angles are applied here, from the layout, so that they are looked up once a forward.
    """

    def __init__(self, config: TransformerConfig, layer_number: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self._layer = layer_number - 1
        assert config.kv_channels is not None
        self._scale = 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Attend; `query` [tokens, 1, heads, head_size], `key` and `value` [tokens, 1, kv_heads, head_size].

        Returns:
            [tokens, 1, heads * head_size].
        """
        layout = packed_seq_params
        cos, sin = layout.rotary
        q, k, v = rotate(query.squeeze(1), cos, sin), rotate(key.squeeze(1), cos, sin), value.squeeze(1)
        if isinstance(layout, DecodeLayout):
            out = self._decode(q, k, v, layout)
        elif q.is_cuda and q.dtype != torch.float32:  # the flash kernel knows half precision only
            out = varlen_attention(q, k, v, layout.cu_seqlens, layout.max_length)
        else:
            out = padded_attention(q, k, v, layout, self._scale)
        if isinstance(layout, SequenceLayout) and layout.cache is not None:
            self._fill(k, v, layout)
        return out.reshape(out.shape[0], 1, -1)

    def _fill(self, k: Tensor, v: Tensor, layout: SequenceLayout) -> None:
        assert layout.cache is not None
        rows = layout.sequence_index + layout.first_cache_row
        layout.cache.keys[self._layer][rows, :, layout.positions] = k
        layout.cache.values[self._layer][rows, :, layout.positions] = v

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, layout: DecodeLayout) -> Tensor:
        keys, values = layout.cache.keys[self._layer], layout.cache.values[self._layer]
        rows = torch.arange(q.shape[0], device=q.device)
        keys[rows, :, layout.positions] = k
        values[rows, :, layout.positions] = v
        # The query heads of one group become its query length, so keys and values need no repeat.
        grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[-1])
        out = F.scaled_dot_product_attention(
            grouped,
            keys[:, :, : layout.longest],
            values[:, :, : layout.longest],
            attn_mask=layout.visible,
            scale=self._scale,
        )
        return out.reshape(q.shape[0], -1)


def padded_attention(q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, scale: float) -> Tensor:
    """Right padding under a causal mask: a real token never sees a padded one, and padded outputs are dropped."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    q, k, v = (_pad(x, layout).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2).flatten(0, 1)
    return out if layout.is_uniform else out.index_select(0, layout.padded_index)


def _pad(x: Tensor, layout: SequenceLayout) -> Tensor:
    """[tokens, heads, head_size] -> [sequences, max_length, heads, head_size]."""
    shape = (len(layout.lengths), layout.max_length, *x.shape[1:])
    if layout.is_uniform:
        return x.view(shape)
    padded = x.new_zeros((shape[0] * shape[1], *x.shape[1:]))
    return padded.index_copy(0, layout.padded_index, x).view(shape)


def block_spec(config: TransformerConfig, stage: int) -> TransformerBlockSubmodules:
    """The layers of a pipeline stage: Megatron's local ones with our norm and core attention."""
    layer = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    assert isinstance(layer, ModuleSpec)
    layer.module = PackedLayer
    parts: Any = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention: Any = parts.self_attention.submodules
    attention.core_attention = CoreAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    num_layers = get_num_layers_to_build(config, pp_rank=stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)
