"""Where an architecture is known from, and that nothing of it needs torch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relax_lightning.config import ActorConfig, ArchitectureConfig, Config, ModelConfig
from relax_lightning.config.architecture import complete, hugging_face_config
from relax_lightning.plan.memory import PUBLISHED, HybridArchitecture, Known, architecture_of

TINY = ArchitectureConfig(num_layers=2, hidden_size=64, num_attention_heads=4, vocab_size=99)
QWEN35_TEXT = {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


def known(check_files: bool = True, **actor: object) -> Known | None:
    return architecture_of(Config(model=ModelConfig(actor=ActorConfig(**actor))), check_files)  # pyright: ignore[reportArgumentType]


def test_an_architecture_in_the_configuration_is_completed() -> None:
    found = known(architecture=TINY)
    assert found == (complete(TINY), "model.actor.architecture")
    assert isinstance(found.architecture, ArchitectureConfig)
    assert (found.architecture.ffn_hidden_size, found.architecture.kv_channels) == (256, 16)


def test_a_directory_speaks_before_its_name(tmp_path: Path) -> None:
    directory = tmp_path / "Qwen3-8B"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(hugging_face_config(complete(TINY), "float32", {})))
    assert known(hf_checkpoint=str(directory)) == (complete(TINY), str(directory / "config.json"))
    by_name = known(check_files=False, hf_checkpoint=str(directory))
    assert by_name == (
        PUBLISHED["Qwen/Qwen3-8B"],
        "https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json",
    )


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("${MODEL_DIR}/Qwen3.5-9B", "Qwen/Qwen3.5-9B"),
        ("/models/Qwen3-0.6B-Base/", "Qwen/Qwen3-0.6B"),
        ("elsewhere/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("qwen2.5-14b-instruct", "Qwen/Qwen2.5-14B"),
    ],
)
def test_published_names_are_known_without_files(name: str, published: str) -> None:
    found = known(hf_checkpoint=name)
    assert found is not None
    assert found.architecture is PUBLISHED[published]
    assert found.source == f"https://huggingface.co/{published}/blob/main/config.json"


@pytest.mark.parametrize(
    "name", ["Qwen3-8B-FP8", "DeepSeek-R1-Distill-Qwen-7B", "Qwen3-4B-Instruct-2507", "Qwen3", "mine", "/"]
)
def test_nothing_is_guessed(name: str) -> None:
    assert known(hf_checkpoint=name) is None
    assert known() is None


def test_a_hybrid_model_is_read_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen3_5", "text_config": QWEN35_TEXT, "vision_config": {}}))
    found = known(hf_checkpoint=str(tmp_path))
    assert found is not None
    hybrid = found.architecture
    assert isinstance(hybrid, HybridArchitecture)
    assert "flash-linear-attention" in hybrid.needs
    assert [n for n in range(8) if hybrid.is_full_attention(n)] == [3, 7]
    assert (hybrid.trunk.hidden_size, hybrid.trunk.tie_word_embeddings) == (64, False)


@pytest.mark.parametrize(
    "described",
    [
        "{",
        "[]",
        json.dumps({"model_type": "gpt2"}),
        json.dumps({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}}),
        json.dumps(QWEN35_TEXT | {"layer_types": ["full_attention"] * 8}),
    ],
)
def test_what_cannot_be_read_is_unknown(described: str, tmp_path: Path) -> None:
    directory = tmp_path / "Qwen3-8B"
    directory.mkdir()
    (directory / "config.json").write_text(described)
    assert known(hf_checkpoint=str(directory)) is None


def test_memory_is_worked_out_without_torch() -> None:
    code = (
        "import sys, relax_lightning.plan.memory as m; from relax_lightning.config import *; "
        "a = m.PUBLISHED['Qwen/Qwen3-8B']; p = ParallelConfig(); "
        "m.role_memory(a, p, OptimizerConfig(), 'bfloat16', 'actor', 64); "
        "m.activations(a, p, 8192, 'bfloat16', None, 'actor'); "
        "print(sorted({'torch', 'lightning', 'ray', 'transformers', 'megatron'} & set(sys.modules)))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert time.monotonic() - start < 5
