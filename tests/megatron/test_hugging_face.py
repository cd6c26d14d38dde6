"""Our models against transformers', for every family that the converter knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from relax_lightning.config import OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import hugging_face_config, read_architecture
from relax_lightning.megatron.hugging_face import hugging_face_tensors, load_weights
from relax_lightning.megatron.models.layout import SequenceLayout
from relax_lightning.megatron.models.model import PolicyModel
from relax_lightning.megatron.role import Actor, Critic
from tests.conftest import KINDS, actor_of
from tests.megatron.judge import assert_rounded, judge_of, logits_of, nudge

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("process_group")


@torch.no_grad()
def packed_logits(actor: Actor, sequences: list[torch.Tensor]) -> list[torch.Tensor]:
    layout = SequenceLayout(lengths=tuple(len(s) for s in sequences))
    logits = actor.model.logits(actor.model(torch.cat(sequences), layout))
    return list(logits.split(layout.lengths))


@torch.no_grad()
def exact_logits(judge: PolicyModel, sequence: torch.Tensor) -> torch.Tensor:
    return logits_of(judge, sequence)


def assert_same_logits(directory: Path, vocabulary: int) -> None:
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    sequences = [torch.randint(0, vocabulary, (n,), generator=draw) for n in (17, 1, 40, 5)]
    actor = actor_of(directory)
    judge = judge_of(actor)
    exact = [exact_logits(judge, sequence) for sequence in sequences]
    for sequence, ours in zip(sequences, exact, strict=True):
        theirs = reference(sequence[None]).logits[0].detach()
        largest = float(theirs.abs().max())
        assert largest > 0.5
        # Their norms and rotary angles are float32 whatever the dtype: 8e-7 of the largest logit.
        torch.testing.assert_close(ours, theirs, atol=4e-6 * largest, rtol=0)
    nudge(judge)
    nudged = [exact_logits(judge, sequence) for sequence in sequences]
    assert_rounded(*(torch.cat(logits) for logits in (packed_logits(actor, sequences), exact, nudged)))
    exported, original = dict(hugging_face_tensors(actor.model)), load_file(directory / "model.safetensors")
    assert exported.keys() == original.keys() - {"lm_head.weight"} | (exported.keys() & {"lm_head.weight"})
    assert all(torch.equal(exported[name], original[name].float()) for name in exported)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_and_export_is_bit_equal(
    kind: str, tiny_model: Callable[[str], Path]
) -> None:
    assert_same_logits(tiny_model(kind), 96)


def test_smollm2_equals_transformers(smollm2: Path) -> None:
    assert_same_logits(smollm2, 49152)


@pytest.mark.parametrize("kind", KINDS)
def test_written_config_reads_back(kind: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    architecture = read_architecture(tiny_model(kind))
    written = hugging_face_config(architecture, "float32", {"eos_token_id": 1})
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert read_architecture(tmp_path) == architecture


def test_critic_has_the_trunk_of_the_policy_and_a_fresh_head(tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model("qwen3")
    actor = actor_of(directory)
    made: dict[str, Critic] = {
        head: Critic(
            "critic",
            read_architecture(directory),
            ParallelConfig(),
            OptimizerConfig(),
            num_steps=10,
            dtype=torch.float32,
            device=CPU,
            weights=str(directory),
            head_init=head,
        )
        for head in ("zero", "normal")
    }
    policy = dict(actor.model.named_parameters())
    for head, critic in made.items():
        trunk = {n: p for n, p in critic.model.named_parameters() if not n.startswith("output_layer")}
        assert trunk.keys() == {n for n in policy if not n.startswith("output_layer")}
        assert all(torch.equal(p, policy[n]) for n, p in trunk.items())
        weight: Any = critic.model.output_layer.weight
        assert weight.shape == (1, 64)
        assert bool((weight == 0).all()) == (head == "zero")
        assert torch.equal(critic.model.output_layer.bias, torch.zeros(1))


def test_what_cannot_be_loaded_is_named(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    directory = tiny_model("llama")
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")

    def write(changed: dict[str, Any], weights: dict[str, torch.Tensor] | None = None) -> Path:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        save_file(tensors if weights is None else weights, tmp_path / "model.safetensors")
        return tmp_path

    for changed, message in (
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported are llama, qwen2, qwen3"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn' is not supported"),
    ):
        with pytest.raises(ValueError, match=message):
            read_architecture(write(changed))
    missing = {name: t for name, t in tensors.items() if name != "model.norm.weight"}
    with pytest.raises(ValueError, match=r"tensor model\.norm\.weight is missing"):
        load_weights(actor_of(directory).model, write({}, missing))
    narrow = {**tensors, "model.norm.weight": torch.ones(63)}
    with pytest.raises(
        ValueError, match=r"decoder\.final_layernorm\.weight has shape \(63,\), .* wants \(64,\)"
    ):
        load_weights(actor_of(directory).model, write({}, narrow))
    # Rows that fill up a multiple of the tensor ranks would hide one too few.
    short = {**tensors, "lm_head.weight": tensors["lm_head.weight"][:95]}
    with pytest.raises(
        ValueError, match=r"lm_head\.weight has 95 rows, the configuration's vocab_size is 96"
    ):
        load_weights(actor_of(directory).model, write({}, short))
