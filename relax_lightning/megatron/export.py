"""A checkpoint's actor as a Hugging Face directory that transformers and SGLang load."""

from __future__ import annotations

import json
import logging
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

from relax_lightning.checkpoints.checksums import changed_files, is_listed
from relax_lightning.checkpoints.folders import is_same_folder
from relax_lightning.checkpoints.manifest import read_manifest
from relax_lightning.checkpoints.megatron_metadata import refuse_other_role, tensor_shapes
from relax_lightning.config import ArchitectureConfig, ParallelConfig
from relax_lightning.config.architecture import described_model, hugging_face_config
from relax_lightning.megatron.checkpoint import load_model_weights
from relax_lightning.megatron.groups import groups_of, initialize_groups
from relax_lightning.megatron.hugging_face import hugging_face_tensors
from relax_lightning.megatron.models.model import build_model, transformer_config
from relax_lightning.plan.tokens import end_tokens_of
from relax_lightning.run.import_path import import_object

log = logging.getLogger("relax_lightning")

_OF_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "chat_template.json",
)
_OF_MODEL = ("generation_config.json", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "USE_POLICY.md")
_IDS = ("eos_token_id", "bos_token_id", "pad_token_id")
_OURS = ("relax_lightning.data.digits.digit_tokenizer",)
"""Tokenizers by import path that come with this package."""


def export_checkpoint(checkpoint: Path, directory: Path, *, trusted: bool = False) -> None:
    """Write the actor of an `iter_N` folder as a Hugging Face directory, whole or not at all.

    Args:
        checkpoint: The folder; its manifest says what the model is.
        directory: Created; must be new or empty.
        trusted: Run the code that the checkpoint names: a tokenizer of the user's own, pickled objects.

    Raises:
        ValueError: The checkpoint says nothing of its model or is not what was saved, the model it started from is
            gone, or it names code and is not trusted.
    """
    model = (read_manifest(checkpoint) or {}).get("model")
    if model is None:
        raise ValueError(f"{checkpoint}: its manifest describes no model; give a checkpoint that fit saved")
    actor = checkpoint / "actor"
    architecture = ArchitectureConfig(**model["architecture"])
    refuse_other_role(actor, "actor", trusted=trusted)
    _refuse_other_size(actor, architecture, trusted=trusted)
    if changed := changed_files([actor]):
        raise ValueError(changed[0])
    if not is_listed(actor):
        log.warning("%s has no checksums: it is read unverified", actor)
    tokenizer = _Tokenizer(model, trusted=trusted)
    config = _config(model, architecture, tokenizer)
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = _read_tensors(actor, architecture, model["dtype"], trusted=trusted)
    save_torch_state_dict(tensors, partial)
    if model["hf_checkpoint"] is not None:
        _copy(Path(model["hf_checkpoint"]), partial, _OF_MODEL)
        _correct_generation(partial / "generation_config.json", tokenizer)
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.write(partial)
    if directory.exists():
        directory.rmdir()
    partial.rename(directory)


def _refuse_other_size(folder: Path, architecture: ArchitectureConfig, *, trusted: bool) -> None:
    """Before a model is built as the manifest says, which may say anything."""
    shapes = tensor_shapes(folder, trusted=trusted)
    layers = shapes.get("decoder.layers.mlp.linear_fc2.weight", ())[:1]
    rows, width = (*shapes["embedding.word_embeddings.weight"], 0)[:2]
    said = ((architecture.num_layers,), architecture.hidden_size)
    if (layers, width) != said or architecture.vocab_size > rows:
        raise ValueError(
            f"{folder.parent}: its manifest describes another model than {folder} holds; use another checkpoint"
        )


def _read_tensors(
    folder: Path, architecture: ArchitectureConfig, dtype: str, *, trusted: bool
) -> dict[str, torch.Tensor]:
    cpu, parallel = torch.device("cpu"), ParallelConfig()
    initialize_groups(parallel, cpu, seed=0)
    config = transformer_config(architecture, parallel, getattr(torch, dtype), recompute=None)
    config.use_cpu_initialization = True
    built = build_model(architecture, config, groups_of(parallel), cpu)
    load_model_weights(built, folder, trusted=trusted)
    return {name: tensor.clone() for name, tensor in hugging_face_tensors(built)}


def _config(model: dict[str, Any], architecture: ArchitectureConfig, tokenizer: _Tokenizer) -> dict[str, Any]:
    """The `config.json`: the original's, as far as it is still true."""
    if model["hf_checkpoint"] is None:
        return hugging_face_config(architecture, model["dtype"], tokenizer.ids_and_ends())
    config = described_model(model["hf_checkpoint"])
    if not config:
        raise ValueError(
            f"the checkpoint started from {model['hf_checkpoint']}, which is gone; put it back: its config.json is "
            "needed"
        )
    _say_dtype(config, model["dtype"])
    return config if tokenizer.is_of_model else config | tokenizer.other_ids(config)


def _correct_generation(path: Path, tokenizer: _Tokenizer) -> None:
    if path.is_file() and not tokenizer.is_of_model:
        described = json.loads(path.read_text())
        path.write_text(json.dumps(described | tokenizer.other_ids(described), indent=2) + "\n")


def _say_dtype(config: dict[str, Any], dtype: str) -> None:
    """The dtype of the weights as they are written; they are not quantized."""
    config.pop("quantization_config", None)
    names = [name for name in ("dtype", "torch_dtype") if name in config]
    config |= dict.fromkeys(names or ["torch_dtype"], dtype)


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    """Copy what is known to belong to a model, and nothing that a link brings in from elsewhere."""
    # A snapshot of the hub's cache is links to the blobs beside it.
    inside = source.resolve().parent.parent if source.parent.name == "snapshots" else source.resolve()
    for path in (source / name for name in names):
        if path.is_file() and path.resolve().is_relative_to(inside):
            shutil.copyfile(path, target / path.name)


class _Tokenizer:
    """The tokenizer that trained, by the manifest."""

    def __init__(self, model: dict[str, Any], *, trusted: bool) -> None:
        base, named = model["hf_checkpoint"], model["tokenizer"]
        self._source: str = named or base
        self._folder = Path(self._source) if Path(self._source).is_dir() else None
        self.is_of_model = (
            self._folder is not None and base is not None and is_same_folder(base, self._source)
        )
        """Whether it is the one that the model started with."""
        if self._folder is None and (base is None or named is not None):
            self._refuse_code(trusted=trusted)

    def _refuse_code(self, *, trusted: bool) -> None:
        if "/" in self._source:
            raise ValueError(
                f"the checkpoint was trained with the tokenizer {self._source}, which is gone; put it back"
            )
        if not trusted and self._source not in _OURS:
            raise ValueError(
                f"the checkpoint names the tokenizer {self._source}, code that would be imported and run; if you trust "
                "its writer, add --trust"
            )

    @cached_property
    def _loaded(self) -> Any:
        if self._folder is None:
            return import_object("CHECKPOINT", self._source)()
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self._folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            # A file that was cut or written over may fail in any way.
            reason = f"{type(error).__name__}: {' '.join(str(error).split()):.400}"
            raise ValueError(
                f"tokenizer {self._folder}: no tokenizer could be read from it ({reason})"
            ) from error

    def ids(self) -> dict[str, Any]:
        """The special ids of a tokenizer, by the names of `config.json`."""
        return {name: getattr(self._loaded, name, None) for name in _IDS}

    def ids_and_ends(self) -> dict[str, Any]:
        """The special ids, and as ends all tokens that its folder says end a response."""
        ids = self.ids()
        more = end_tokens_of(self._folder) if self._folder is not None else []
        if more:
            own = [] if ids["eos_token_id"] is None else _listed(ids["eos_token_id"])
            ids["eos_token_id"] = list(dict.fromkeys([*own, *more]))
        return ids

    def other_ids(self, described: dict[str, Any]) -> dict[str, Any]:
        """Those of its ids that a description of the model has differently."""
        return {
            name: number
            for name, number in self.ids().items()
            if number is not None and number not in _listed(described.get(name))
        }

    def write(self, target: Path) -> None:
        """Write its files."""
        if self._folder is not None:
            _copy(self._folder, target, _OF_TOKENIZER)
        elif hasattr(self._loaded, "save_pretrained"):
            self._loaded.save_pretrained(target)


def _listed(number: Any) -> list[Any]:
    return number if isinstance(number, list) else [number]
