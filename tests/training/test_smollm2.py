"""The job on a real language model, small enough for a CPU: the file as it stands, smaller by overrides alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_lightning.checkpoints.folders import iteration_folder
from relax_lightning.megatron.export import export_checkpoint
from tests.conftest import REPOSITORY

SMALLER = [
    "model.algorithm.num_ppo_epochs=1",
    "callbacks.lr_warmup.critic.num_iters=2",
    "callbacks.critic_only_warmup.num_steps=1",
    "data.rollout.batch_size=4",
    "data.rollout.n_samples_per_prompt=2",
    "data.rollout.sampling.max_new_tokens=16",
    "data.rollout.train.init_args.size=64",
    "trainer.limit_val_batches=0",
    "tracking.mlflow=null",
]


@pytest.fixture
def fit(forked: Callable[..., Any], smollm2: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that trains by the command until an iteration, and gives the run folder.

    In a process of its own: two models of this size would stay in the memory of all later tests.
    """

    def fit(max_steps: int, *more: str) -> Path:
        folder = tmp_path / "run"
        keys = [*SMALLER, f"trainer.max_steps={max_steps}", f"trainer.default_root_dir={folder}"]
        words = ["fit", "--config", str(REPOSITORY / "configs" / "smollm2-chain-sum.yaml")]
        words += [f"--{key}" for key in [*keys, f"model.actor.hf_checkpoint={smollm2}"]]
        status, output, _ = forked([*words, *more], folder)
        assert status == 0, output[-3000:]
        return folder

    return fit


def metrics_by_step(folder: Path) -> dict[int, dict[str, float]]:
    points: dict[int, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "metrics" in entry:
            points.setdefault(entry["step"], {}).update(entry["metrics"])
    return points


@pytest.mark.slow
def test_two_iterations_a_resume_and_an_export(
    fit: Callable[..., Path], smollm2: Path, tmp_path: Path
) -> None:
    folder = fit(2)
    assert sorted(metrics_by_step(folder)) == [1, 2]
    # Its checkpoint is of four gigabytes: one is enough.
    fit(3, "--ckpt_path", "auto", "--callbacks.checkpoint", "null")
    found = metrics_by_step(folder)
    assert sorted(found) == [1, 2, 3]
    assert all(math.isfinite(value) for metrics in found.values() for value in metrics.values())
    # One iteration of the critic alone; engine and trainer agree on the actor that it leaves and on the updated one.
    assert [("actor/pg_loss" in found[step]) for step in (1, 2, 3)] == [False, True, True]
    assert all(found[step]["mismatch/log_prob_abs_diff"] < 1e-5 for step in (2, 3))
    assert 0 < found[1]["response/length_mean"] <= 16
    export_checkpoint(iteration_folder(folder / "checkpoints", 2), tmp_path / "exported")
    assert_loads_and_has_moved(tmp_path / "exported", smollm2)


def assert_loads_and_has_moved(exported: Path, original: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(exported)
    trained: Any = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    untrained: Any = AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32)
    question = [{"role": "user", "content": "What is 3 + 4?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ours, theirs = trained(**prompt).logits, untrained(**prompt).logits
    # A few small steps: the model is another one, and still much the same.
    assert 0 < (ours - theirs).abs().max() < 2
    assert torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1] > 0.99
    before, after = dict(untrained.named_parameters()), dict(trained.named_parameters())
    assert before.keys() == after.keys()
    name = "model.layers.0.mlp.up_proj.weight"
    difference = (before[name] - after[name]).abs().max()
    assert 0 < difference < 1e-3
