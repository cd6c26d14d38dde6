"""Folders that look like models and checkpoints to code that only reads names and small files."""

import json
from pathlib import Path

import pytest

from relax_lightning.config.checkpoints import MANIFEST, TRACKER, iteration_folder


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
