"""Weights between a Hugging Face directory and a Megatron model, name by name (Llama, Qwen2, Qwen3, dense)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from safetensors import SafetensorError, safe_open
from torch import Tensor

from relax_lightning.megatron.model import CriticModel, PolicyModel

_EMBEDDING = "model.embed_tokens.weight"
_TOP = {
    "embedding.word_embeddings.weight": (_EMBEDDING, 0),
    "output_layer.weight": ("lm_head.weight", 0),
    "decoder.final_layernorm.weight": ("model.norm.weight", None),
}
_LAYER = {
    "input_layernorm.weight": ("input_layernorm.weight", None),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight", None),
    "self_attention.q_layernorm.weight": ("self_attn.q_norm.weight", None),
    "self_attention.k_layernorm.weight": ("self_attn.k_norm.weight", None),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight", 1),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight", 1),
}


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}; fetch the model again") from error


class SafetensorsDirectory:
    """The tensors of a Hugging Face directory by name, read one at a time.

    Raises:
        ValueError: The directory has no safetensors, or a wanted tensor is not in them.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        index = self._directory / "model.safetensors.index.json"
        if index.is_file():
            self._files: dict[str, str] = json.loads(index.read_text())["weight_map"]
            return
        single = self._directory / "model.safetensors"
        if not single.is_file():
            raise ValueError(
                f"{self._directory} holds no model.safetensors; weights are read from safetensors only"
            )
        with _opened(single) as file:
            self._files = dict.fromkeys(file.keys(), single.name)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._files:
            raise ValueError(f"{self._directory}: tensor {name} is missing from its safetensors")
        with _opened(self._directory / self._files[name]) as file:
            return file.get_tensor(name)


@torch.no_grad()
def load_weights(model: PolicyModel, directory: str | Path) -> None:
    """Copy a Hugging Face directory's weights into `model`; a critic keeps its own fresh head.

    Raises:
        ValueError: A tensor is missing or has another shape than the configuration says.
    """
    source = SafetensorsDirectory(directory)
    for name, parameter in model.named_parameters():
        if isinstance(model, CriticModel) and name.startswith("output_layer."):
            continue
        tensor = _to_megatron(model, name, source.__getitem__)
        if tensor.shape != parameter.shape:
            raise ValueError(
                f"{directory}: tensor for {name} has shape {tuple(tensor.shape)}, the configuration wants "
                f"{tuple(parameter.shape)}"
            )
        parameter.copy_(tensor)


@torch.no_grad()
def hugging_face_tensors(model: PolicyModel) -> Iterator[tuple[str, Tensor]]:
    """This pipeline stage's weights under their Hugging Face names, whole on every tensor rank."""
    config = model.config
    for name, parameter in model.named_parameters():
        if name in _TOP:
            target, dim = _TOP[name]
            yield target, _gather(parameter, dim)
            continue
        prefix, rest = _layer_prefix(model, name)
        if rest in _LAYER:
            target, dim = _LAYER[rest]
            yield prefix + target, _gather(parameter, dim)
        elif rest.startswith("self_attention.linear_qkv."):
            kind = rest.rsplit(".", 1)[1]
            for letter, tensor in zip("qkv", _split_qkv(_gather(parameter, 0), config), strict=True):
                yield f"{prefix}self_attn.{letter}_proj.{kind}", tensor
        else:
            for part, tensor in zip(("gate", "up"), parameter.chunk(2), strict=True):
                yield f"{prefix}mlp.{part}_proj.weight", _gather(tensor, 0)


def _to_megatron(model: PolicyModel, name: str, source: Callable[[str], Tensor]) -> Tensor:
    if name in _TOP:
        target, dim = _TOP[name]
        return _shard(source(target), dim)
    prefix, rest = _layer_prefix(model, name)
    if rest in _LAYER:
        target, dim = _LAYER[rest]
        return _shard(source(prefix + target), dim)
    if rest.startswith("self_attention.linear_qkv."):
        kind = rest.rsplit(".", 1)[1]
        q, k, v = (source(f"{prefix}self_attn.{letter}_proj.{kind}") for letter in "qkv")
        return _shard(_join_qkv(q, k, v, model.config), 0)
    if rest == "mlp.linear_fc1.weight":
        return torch.cat([_shard(source(f"{prefix}mlp.{part}_proj.weight"), 0) for part in ("gate", "up")])
    raise AssertionError(f"no Hugging Face name for {name}")


def _layer_prefix(model: PolicyModel, name: str) -> tuple[str, str]:
    _, _, index, rest = name.split(".", 3)
    first: Any = model.decoder.layers[0]
    offset = first.layer_number - 1
    return f"model.layers.{int(index) + offset}.", rest


def _join_qkv(q: Tensor, k: Tensor, v: Tensor, config: object) -> Tensor:
    """Megatron keeps, for each group of query heads, its queries, its key and its value beside each other."""
    groups, heads, size = _qkv_sizes(config)
    tail = q.shape[1:]
    parts = (q.view(groups, heads * size, *tail), k.view(groups, size, *tail), v.view(groups, size, *tail))
    return torch.cat(parts, 1).reshape(-1, *tail)


def _split_qkv(joined: Tensor, config: object) -> list[Tensor]:
    groups, heads, size = _qkv_sizes(config)
    tail = joined.shape[1:]
    parts = joined.view(groups, (heads + 2) * size, *tail).split([heads * size, size, size], 1)
    return [part.reshape(-1, *tail) for part in parts]


def _qkv_sizes(config: object) -> tuple[int, int, int]:
    groups: int = config.num_query_groups  # pyright: ignore[reportAttributeAccessIssue]
    heads: int = config.num_attention_heads  # pyright: ignore[reportAttributeAccessIssue]
    return groups, heads // groups, config.kv_channels  # pyright: ignore[reportAttributeAccessIssue]


def _shard(tensor: Tensor, dim: int | None) -> Tensor:
    size = parallel_state.get_tensor_model_parallel_world_size()
    if dim is None or size == 1:
        return tensor
    return tensor.chunk(size, dim)[parallel_state.get_tensor_model_parallel_rank()].contiguous()


def _gather(tensor: Tensor, dim: int | None) -> Tensor:
    size = parallel_state.get_tensor_model_parallel_world_size()
    if dim is None or size == 1:
        return tensor.detach()
    parts = [torch.empty_like(tensor) for _ in range(size)]
    group = parallel_state.get_tensor_model_parallel_group()
    torch.distributed.all_gather(parts, tensor.detach().contiguous(), group=group)
    return torch.cat(parts, dim)
