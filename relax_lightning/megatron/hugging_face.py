"""Weights between a Hugging Face directory and a Megatron model, name by name (Llama, Qwen2, Qwen3, dense)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from relax_lightning.megatron.groups import ModelGroups
from relax_lightning.megatron.models.model import CriticModel, PolicyModel

_FINAL_NORM = "decoder.final_layernorm.weight"
_EMBEDDING = "embedding.word_embeddings.weight"
_OUTPUT = "output_layer.weight"
_OF_VOCABULARY = {_EMBEDDING: "model.embed_tokens.weight", _OUTPUT: "lm_head.weight"}
_GATE_AND_UP = "mlp.linear_fc1.weight"
_QKV = {f"self_attention.linear_qkv.{kind}": kind for kind in ("weight", "bias")}
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


def hugging_face_tensors(model: PolicyModel) -> Iterator[tuple[str, Tensor]]:
    """The whole model's weights under their Hugging Face names, each whole, on every rank.

    All ranks of the model take all of them, one after another: tensor ranks gather, and stages broadcast theirs.
    """
    groups = model.groups
    if groups.num_stages == 1:
        yield from _stage_tensors(model, partial(_gather, groups))
        return
    own = _stage_tensors(model, partial(_gather, groups))
    described = [(name, tuple(t.shape)) for name, t in _stage_tensors(model, partial(_described, groups))]
    by_stage = dict(groups.peers.gather((groups.stage, described)))
    parameter = next(model.parameters())
    for stage, names in sorted(by_stage.items()):
        for name, shape in names:
            if stage == groups.stage:
                tensor = next(own)[1].contiguous()
            else:
                tensor = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
            dist.broadcast(tensor, group=groups.collection.pp, group_src=stage)
            yield name, tensor


@torch.no_grad()
def _stage_tensors(
    model: PolicyModel, gather: Callable[[Tensor, int | None], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """What this stage holds; `gather` makes a tensor whole that is cut in a dimension."""
    config = model.config
    for name, parameter in model.named_parameters():
        if _is_of_head(model, name):
            continue
        if name in _OF_VOCABULARY:
            yield _OF_VOCABULARY[name], gather(parameter, 0)[: model.num_rows]
            continue
        if name == _FINAL_NORM:
            yield "model.norm.weight", gather(parameter, None)
            continue
        prefix, rest = _layer_prefix(model, name)
        if rest in _LAYER:
            target, dim = _LAYER[rest]
            yield prefix + target, gather(parameter, dim)
        elif (kind := _QKV.get(rest)) is not None:
            for letter, tensor in zip("qkv", _split_qkv(gather(parameter, 0), config), strict=True):
                yield f"{prefix}self_attn.{letter}_proj.{kind}", tensor
        elif rest == _GATE_AND_UP:
            for part, tensor in zip(("gate", "up"), parameter.chunk(2), strict=True):
                yield f"{prefix}mlp.{part}_proj.weight", gather(tensor, 0)
        else:
            raise AssertionError(f"no Hugging Face name for {name}")


def _is_of_head(model: PolicyModel, name: str) -> bool:
    """Whether no trunk's tensor is meant: a value head, or the last stage's copy of a tied embedding."""
    tied = model.share_embeddings_and_output_weights
    return name.startswith("output_layer.") and (isinstance(model, CriticModel) or tied)


def _to_megatron(model: PolicyModel, name: str, source: Callable[[str], Tensor]) -> Tensor:
    groups = model.groups
    if name in _OF_VOCABULARY:
        tied = name == _OUTPUT and model.share_embeddings_and_output_weights
        original = _OF_VOCABULARY[_EMBEDDING if tied else name]
        whole = source(original)
        if len(whole) != model.num_rows:  # which padding for the tensor ranks would hide
            raise ValueError(
                f"{original} has {len(whole)} rows, the configuration's vocab_size is {model.num_rows}; correct it, or "
                "use another copy of the model"
            )
        return _shard(groups, F.pad(whole, (0, 0, 0, -len(whole) % groups.tensor_size)), 0)
    if name == _FINAL_NORM:
        return source("model.norm.weight")
    prefix, rest = _layer_prefix(model, name)
    if rest in _LAYER:
        target, dim = _LAYER[rest]
        return _shard(groups, source(prefix + target), dim)
    if (kind := _QKV.get(rest)) is not None:
        q, k, v = (source(f"{prefix}self_attn.{letter}_proj.{kind}") for letter in "qkv")
        return _shard(groups, _join_qkv(q, k, v, model.config), 0)
    if rest == _GATE_AND_UP:
        parts = (source(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up"))
        return torch.cat([_shard(groups, part, 0) for part in parts])
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


def _shard(groups: ModelGroups, tensor: Tensor, dim: int | None) -> Tensor:
    if dim is None or groups.tensor_size == 1:
        return tensor
    return tensor.chunk(groups.tensor_size, dim)[groups.tensor_rank].contiguous()


def _gather(groups: ModelGroups, tensor: Tensor, dim: int | None) -> Tensor:
    if dim is None or groups.tensor_size == 1:
        return tensor.detach()
    parts = [torch.empty_like(tensor) for _ in range(groups.tensor_size)]
    dist.all_gather(parts, tensor.detach().contiguous(), group=groups.collection.tp)
    return torch.cat(parts, dim)


def _described(groups: ModelGroups, tensor: Tensor, dim: int | None) -> Tensor:
    """What `_gather` would give, without contents."""
    shape = list(tensor.shape)
    if dim is not None:
        shape[dim] *= groups.tensor_size
    return torch.empty(shape, device="meta")
