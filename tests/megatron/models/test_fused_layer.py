"""The layer in one piece computes what Megatron's modules compute one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from relax_lightning.config import ArchitectureConfig, OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import complete
from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.models.fused_layer import after_attention, queries_keys_values
from relax_lightning.megatron.models.layers import padded_attention
from relax_lightning.megatron.models.layout import SequenceLayout
from relax_lightning.megatron.role import Actor


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(("qk_layernorm", "qkv_bias"), [(True, False), (False, True)])
def test_layer_in_one_piece_or_in_parts_equals_the_modules(qk_layernorm: bool, qkv_bias: bool) -> None:
    architecture = ArchitectureConfig(
        num_layers=1,
        hidden_size=64,
        ffn_hidden_size=96,
        num_attention_heads=6,
        num_query_groups=2,
        kv_channels=16,
        vocab_size=96,
        max_position_embeddings=64,
        qk_layernorm=qk_layernorm,
        qkv_bias=qkv_bias,
    )
    cpu, torch_dtype = torch.device("cpu"), torch.float32
    actor = Actor(
        "actor",
        complete(architecture),
        ParallelConfig(),
        OptimizerConfig(),
        num_steps=1,
        dtype=torch_dtype,
        device=cpu,
    )
    layer: Any = actor.model.decoder.layers[0]
    for parameter in layer.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    layout = SequenceLayout(lengths=(5, 9, 3))
    x = torch.randn(17, 1, 64)
    with cuda_stand_in():
        layout.rotary = actor.model._rotary(layout.positions)
        wanted = layer(x, attention_mask=None, packed_seq_params=layout)[0].squeeze(1)
    weights, eps = layer._weights, layer.config.layernorm_epsilon

    def attend(mixed: torch.Tensor) -> torch.Tensor:
        heads = queries_keys_values(mixed, weights, *layout.rotary, eps)
        return padded_attention(*heads, layout, scale=16**-0.5).flatten(1)

    mixed = torch.nn.functional.rms_norm(x.squeeze(1), weights.input_norm.shape, weights.input_norm, eps)
    attended = attend(torch.nn.functional.linear(mixed, weights.qkv, weights.qkv_bias))
    whole = after_attention(x.squeeze(1), attended, weights, eps)
    with cuda_stand_in():
        parts = layer.in_parts(x, attend).squeeze(1)
    parameters = list(layer.parameters())
    exact = torch.autograd.grad(wanted.square().sum(), parameters, retain_graph=True)
    for got in (whole, parts):
        assert torch.allclose(got, wanted, rtol=0, atol=1e-6)
        gradients = torch.autograd.grad(got.square().sum(), parameters, retain_graph=True)
        for ours, theirs in zip(gradients, exact, strict=True):
            assert (ours - theirs).norm() <= 1e-5 * theirs.norm()
