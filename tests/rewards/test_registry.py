from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relax_lightning.rewards.registry import load_reward

MINE = """
class Length:
    def __init__(self, target):
        self.target = target
    def __call__(self, prompt, response, label, metadata):
        return -abs(len(response) - self.target)

class Needs:
    def __init__(self):
        raise OSError("no such file")

def score(prompt, response, label, metadata):
    return 1.0

def narrow(prompt, response):
    return 1.0

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registry_rewards.py").write_text(MINE)
    (tmp_path / "registry_broken.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("mine")
def test_bring_your_own() -> None:
    assert load_reward(None, "registry_rewards.score", {})("", "", None, {}) == 1.0
    assert load_reward(None, "registry_rewards.Length", {"target": 5})("", "abc", None, {}) == -2


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "class_path", "init_args", "message"),
    [
        ("exact_mach", None, {}, "did you mean 'exact_match'"),
        ("mine", None, {}, "must be one of dapo_math, exact_match, reasoning_gym, got 'mine'"),
        (None, "score", {}, "wanted an import path like my_module.score, got 'score'"),
        (
            None,
            "no_such.score",
            {},
            r"no_such \(of no_such.score\) could not be imported: ModuleNotFoundError",
        ),
        (None, "registry_broken.score", {}, "ModuleNotFoundError: No module named 'no_such_module'"),
        (None, "registry_rewards.Lenght", {}, "has no Lenght"),
        (None, "registry_rewards.Length", {}, r"Length\(\*\*\{\}\) failed: TypeError"),
        (None, "registry_rewards.Needs", {}, "failed: OSError: no such file"),
        (None, "registry_rewards.score", {"target": 5}, "no class, so it takes no init_args"),
        (None, "registry_rewards.narrow", {}, r"must take \(prompt, response, label, metadata\)"),
        (None, "registry_rewards.number", {}, "must be a function or a class with __call__, got int"),
    ],
)
def test_what_cannot_be_a_reward_is_refused(name, class_path, init_args, message) -> None:
    with pytest.raises(ValueError, match=message):
        load_reward(name, class_path, init_args)


def test_a_worker_imports_only_what_its_reward_needs() -> None:
    program = (
        "import sys; from relax_lightning.rewards import worker; from relax_lightning.rewards.registry import "
        "load_reward; load_reward('dapo_math', None, {}); print('torch' in sys.modules, 'reasoning_gym' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
