"""A checkpoint's actor as a Hugging Face directory that transformers and SGLang load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

from relax_lightning.config import ArchitectureConfig, ParallelConfig
from relax_lightning.config.architecture import hugging_face_config
from relax_lightning.config.manifest import read_manifest
from relax_lightning.import_path import import_object
from relax_lightning.megatron.checkpoint import load_model_weights
from relax_lightning.megatron.groups import groups_of, initialize_groups
from relax_lightning.megatron.hugging_face import hugging_face_tensors
from relax_lightning.megatron.model import build_model, transformer_config

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


def export_checkpoint(checkpoint: Path, directory: Path) -> None:
    """Write the actor of an `iter_N` folder as a Hugging Face directory, whole or not at all.

    Args:
        checkpoint: The folder; its manifest says what the model is.
        directory: Created; must be new or empty.

    Raises:
        ValueError: The checkpoint says nothing of its model, or the model it started from is gone.
    """
    model = (read_manifest(checkpoint) or {}).get("model")
    if model is None:
        raise ValueError(f"{checkpoint}: its manifest describes no model; give a checkpoint that fit saved")
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = _read_tensors(checkpoint / "actor", ArchitectureConfig(**model["architecture"]), model["dtype"])
    save_torch_state_dict(tensors, partial)
    if model["hf_checkpoint"] is not None:
        _copy_companions(Path(model["hf_checkpoint"]), partial)
    else:
        _write_companions(model, partial)
    if directory.exists():
        directory.rmdir()
    partial.rename(directory)


def _read_tensors(folder: Path, architecture: ArchitectureConfig, dtype: str) -> dict[str, torch.Tensor]:
    cpu, parallel = torch.device("cpu"), ParallelConfig()
    initialize_groups(parallel, cpu, seed=0)
    config = transformer_config(architecture, parallel, getattr(torch, dtype), recompute=None)
    config.use_cpu_initialization = True
    built = build_model(architecture, config, groups_of(parallel), cpu)
    load_model_weights(built, folder)
    return {name: tensor.clone() for name, tensor in hugging_face_tensors(built)}


def _copy_companions(source: Path, target: Path) -> None:
    """Everything of the original directory that is not weights: configuration, tokenizer, chat template."""
    if not (source / "config.json").is_file():
        raise ValueError(
            f"the checkpoint started from {source}, which is gone; put it back: its config.json is needed"
        )
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copy(path, target / path.name)


def _write_companions(model: dict[str, Any], target: Path) -> None:
    source = model["tokenizer"]
    if Path(source).is_dir():
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=True)
    else:
        tokenizer = import_object("model.actor.tokenizer", source)()
    special = {
        name: getattr(tokenizer, name, None) for name in ("eos_token_id", "bos_token_id", "pad_token_id")
    }
    config = hugging_face_config(ArchitectureConfig(**model["architecture"]), model["dtype"], special)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(target)
