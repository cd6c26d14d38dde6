"""The documents as they stand: what they run runs, what they show is so, what they name exists."""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from relax_lightning.checkpoints.folders import find_latest
from relax_lightning.checkpoints.manifest import read_manifest
from relax_lightning.cli import main
from relax_lightning.config import ArchitectureConfig, OptimizerConfig, ParallelConfig, SamplingConfig
from relax_lightning.config.loader import load
from relax_lightning.config.names import FOREIGN_NAMES, known_keys
from relax_lightning.data.digits import matching_places
from relax_lightning.plan import check

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
WHOLE_EXAMPLE = EXAMPLES / "own_data.yaml"
DOCUMENTS = [REPOSITORY / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
DOCUMENTS += sorted((REPOSITORY / "docs").glob("*.md"))

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>run in|file) (?P<path>\S+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_ROOTS = "trainer|model|callbacks|strategy|data|tracking|cluster"


@dataclass(frozen=True)
class Block:
    """A fenced block: `mark` is `run in` (a folder) or `file` (a path), where the comment above it says so."""

    document: Path
    mark: str | None
    path: str | None
    kind: str
    text: str


def blocks(mark=None, kind=None):
    found = [
        Block(d, *m.group("mark", "path", "kind", "text"))
        for d in DOCUMENTS
        for m in _BLOCK.finditer(d.read_text())
    ]
    return [b for b in found if mark in (None, b.mark) and kind in (None, b.kind)]


def prose(document):
    return _BLOCK.sub("", document.read_text())


# --- what stands there ------------------------------------------------------------------------------------------


def test_file_blocks_are_the_files_as_they_are():
    shown = blocks(mark="file")
    assert {block.path for block in shown} >= {
        f"examples/{name}"
        for name in (
            "own_model.yaml",
            "own_reward.yaml",
            "my_rewards.py",
            "own_callback.yaml",
            "my_callbacks.py",
        )
    }
    for block in shown:
        assert block.text == (REPOSITORY / block.path).read_text(), (
            f"{block.document.name} shows another {block.path}"
        )


def test_relative_links_lead_somewhere():
    missing = [
        f"{document.name}: {target}"
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(document))
        if not target.startswith(("http://", "https://", "#"))
        and not (document.parent / target.partition("#")[0]).exists()
    ]
    assert missing == []


def test_keys_in_the_documents_exist():
    named = [
        (document.name, match[1])
        for document in DOCUMENTS
        for match in re.finditer(rf"`((?:{_ROOTS})(?:\.[a-z_0-9]+)+)(?:: [^`]+)?`", prose(document))
        if not match[1].endswith((".py", ".json", ".png", ".yaml"))
    ]
    assert len(named) > 40
    assert [entry for entry in named if entry[1] not in known_keys()] == []


def test_names_of_other_systems_are_answered_with_the_key_beside_them():
    rows = re.findall(
        r"^\| `([\w.]+)` \| ((?:`\w+`(?:, )?)+) \|$", (REPOSITORY / "docs/differences.md").read_text(), re.M
    )
    table = {foreign: ours for ours, names in rows for foreign in re.findall(r"`(\w+)`", names)}
    assert len(table) > 25
    assert {name: FOREIGN_NAMES.get(name) for name in table} == table


def test_yaml_in_the_documents_loads(tmp_path):
    shown = blocks(kind="yaml")
    assert len(shown) >= 5
    for number, block in enumerate(shown):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block.text)
        load([str(WHOLE_EXAMPLE), str(file)], [])


def test_every_hook_is_documented_in_order():
    source = ast.parse((REPOSITORY / "relax_lightning/ppo/callback.py").read_text())
    (definition,) = [n for n in source.body if isinstance(n, ast.ClassDef) and n.name == "PPOCallback"]
    hooks = {
        n.name: [a.arg for a in n.args.args[3:]] for n in definition.body if isinstance(n, ast.FunctionDef)
    }
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| ", (REPOSITORY / "docs/callbacks.md").read_text(), re.M)
    assert {name: re.findall(r"`(\w+): ", arguments) for name, arguments in rows} == {
        name: [a for a in arguments if (name, a) != ("should_update_actor", "")]
        for name, arguments in hooks.items()
    }


def test_files_and_functions_in_the_architecture_exist():
    text = prose(REPOSITORY / "ARCHITECTURE.md")
    sources = {str(f.relative_to(REPOSITORY / "relax_lightning")): f.read_text() for f in _SOURCES}
    files = re.findall(r"`([\w/]+\.py)(?:: (\w+))?", text)
    assert len(files) > 12
    assert [(f, n) for f, n in files if f not in sources or (n and not _defines(sources[f], n))] == []
    methods = re.findall(r"`([A-Z]\w+)\.(\w+)", text)
    assert len(methods) > 5
    for owner, method in methods:
        assert owner == "Trainer" or any(
            _defines(s, owner) and _defines(s, method) for s in sources.values()
        ), method


_SOURCES = sorted((REPOSITORY / "relax_lightning").rglob("*.py"))


def _defines(source, name):
    return re.search(rf"^\s*(?:def|class) {name}\b", source, re.M) is not None


def test_make_targets_in_the_documents_exist():
    targets = re.findall(r"^([a-z0-9]+):", (REPOSITORY / "Makefile").read_text(), re.M)
    named = {
        t
        for d in DOCUMENTS
        for t in re.findall(r"(?:^|`|PYTHON=\S+ |ARGS=\"[^\"]*\" )make ([a-z0-9]+)", d.read_text(), re.M)
    }
    assert named >= {"fit", "test", "ui", "smollm2"}
    assert named <= set(targets)


@pytest.mark.parametrize(
    "file",
    sorted([*(REPOSITORY / "configs").glob("*.yaml"), *EXAMPLES.rglob("own_*.yaml")]),
    ids=lambda p: p.name,
)
def test_shipped_configurations_pass_the_checks(file, monkeypatch):
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.setenv(name, f"/{name}")
    below = [] if file == WHOLE_EXAMPLE or file.parent != EXAMPLES else [str(WHOLE_EXAMPLE)]
    found = check(load([*below, str(file)], []), check_files=False)
    assert [p for p in found if "not available in this version" not in p.message] == []


def test_the_faults_that_the_readme_shows_are_printed(capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    (block,) = [
        b for b in blocks() if b.document.name == "README.md" and b.text.startswith("$ relax-lightning")
    ]
    command, expected = block.text.split("\n", 1)
    assert main(command.removeprefix("$ relax-lightning ").split()) == 1
    assert capsys.readouterr().err == expected


# --- what runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """The blocks to run, in order, in a copy of examples/: the folder, and what each block printed."""
    folder = tmp_path_factory.mktemp("tour") / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "PATH": path,
        "OMP_NUM_THREADS": "1",
    }
    printed = []
    for block in blocks(mark="run in"):
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        assert block.path == "examples"
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        printed.append(done.stdout)
    assert len(printed) == 2
    return folder, *printed


def test_own_data_and_reward_are_used(tour):
    folder, *_ = tour
    rows = json.loads((folder / "runs/examples/samples/iter_0000001.json").read_text())
    asked = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert {(row["prompt"], row["label"]) for row in rows} <= {(a["question"], a["answer"]) for a in asked}

    spec = importlib.util.spec_from_file_location("my_rewards", folder / "my_rewards.py")
    my_rewards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(my_rewards)
    reward = my_rewards.ShortAndRight(length_penalty=0.1)
    expected = [reward(r["prompt"], r["response"], r["label"], {"weight": 1.0}) for r in rows]
    assert [row["reward"] for row in rows] == pytest.approx(expected)
    assert expected != pytest.approx(
        [matching_places(r["prompt"], r["response"], r["label"], {}) for r in rows]
    )


def test_own_callback_speaks_and_keeps_its_state(tour):
    _, first, resumed = tour
    best = [
        [float(x) for x in re.findall(r"best response: .*\(best reward (-?[\d.]+)\)", out)]
        for out in (first, resumed)
    ]
    assert [len(b) for b in best] == [2, 2]
    assert best[0] + best[1] == sorted(best[0] + best[1])
    assert re.findall(r"^iteration (\d/\d)", first, re.M) == ["1/2", "2/2"]
    assert re.findall(r"^iteration (\d/\d)", resumed, re.M) == ["3/4", "4/4"]


def test_the_run_folder_holds_what_the_readme_lists(tour):
    folder, *_ = tour
    section = (REPOSITORY / "README.md").read_text().partition("## The run folder")[2].partition("##")[0]
    listed = {
        name for row in re.findall(r"^\| (`.*?`) \|", section, re.M) for name in re.findall(r"`([^`]+)`", row)
    }
    there = {
        p.name + "/" * p.is_dir() for p in (folder / "runs/examples").iterdir() if not p.name.startswith(".")
    }
    assert listed - there == {"failed_rewards/", "metrics.lost.jsonl", "validate.jsonl"}
    assert there - listed == set()


def test_the_exported_model_answers_as_the_checkpoint_does(tour, process_group):
    import torch
    from transformers import AutoTokenizer

    from relax_lightning.megatron.role import Actor
    from relax_lightning.rollout.embedded import MegatronEngine

    folder, _, printed = tour
    iteration, checkpoint = find_latest(folder / "runs/examples/checkpoints")
    assert iteration == 4
    answers = dict(re.findall(r"^(\d+=) (\[.*\])$", printed, re.M))

    architecture = ArchitectureConfig(**read_manifest(checkpoint)["model"]["architecture"])
    shape = {"num_steps": 1, "dtype": torch.float32, "device": torch.device("cpu")}
    actor = Actor("actor", architecture, ParallelConfig(), OptimizerConfig(), **shape)
    actor.load(checkpoint / "actor", weights_only=True)
    engine, tokenizer = MegatronEngine(), AutoTokenizer.from_pretrained(folder / "runs/exported")
    engine.attach(actor, tokenizer)
    greedy = SamplingConfig(temperature=0.0, max_new_tokens=6)
    generations = engine.generate([tokenizer.encode(p) for p in answers], [0, 1], greedy, seed=0)
    assert list(answers) == ["305=", "42="]
    assert [json.loads(a) for a in answers.values()] == [list(g.token_ids) for g in generations]
