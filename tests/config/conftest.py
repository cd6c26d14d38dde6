"""Folders that look like models and checkpoints to code that only reads names and small files."""

import json
from pathlib import Path

import pytest

from relax_lightning.checkpoints.folders import TRACKER, iteration_folder
from relax_lightning.checkpoints.manifest import MANIFEST
from tests.config.good import GOOD, write


@pytest.fixture
def good(tmp_path):
    """The file of a configuration in which nothing is wrong."""
    return write(tmp_path / "good.yaml", GOOD)


@pytest.fixture
def make_model():
    """Write a Hugging Face directory without weights."""

    def make(folder, **described):
        Path(folder).mkdir(parents=True)
        described = {"model_type": "llama", "max_position_embeddings": 1024} | described
        (Path(folder) / "config.json").write_text(json.dumps(described))
        return str(folder)

    return make


@pytest.fixture
def make_checkpoint():
    """Write a committed iteration with the halves of the given roles; `commit=False` leaves the tracker."""

    def make(root, iteration, roles=("actor", "critic"), commit=True):
        folder = iteration_folder(root, iteration)
        for role in roles:
            (folder / role).mkdir(parents=True)
        (folder / MANIFEST).write_text(json.dumps({"iteration": iteration}))
        if commit:
            (Path(root) / TRACKER).write_text(f"{iteration}\n")
        return folder

    return make


@pytest.fixture
def base(tmp_path, make_model, monkeypatch):
    """Overrides in which nothing is wrong, in a folder with a model and prompts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"prompt": "1"}\n' * 16)
    make_model(tmp_path / "model")
    return [
        "trainer.max_steps=10",
        "model.actor.hf_checkpoint=model",
        "data.rollout.train.path=x.jsonl",
        "data.rollout.batch_size=4",
        "data.rollout.n_samples_per_prompt=2",
        "data.rollout.reward=exact_match",
    ]
