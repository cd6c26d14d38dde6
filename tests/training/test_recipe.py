"""The reference recipe in small: its file, with another model, tiny data and one process by overrides alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relax_lightning.config.loader import load, resolve
from relax_lightning.lightning_cli import run
from relax_lightning.plan import check
from tests.conftest import REPOSITORY

RECIPE = REPOSITORY / "configs" / "qwen35-9b-8xgpu-ppo.yaml"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
SMALLER = [
    "cluster=null",
    "model.actor.parallel={tensor: 1, sequence: false}",
    "model.global_batch_size=8",
    "data.rollout.engine={class_path: MegatronEngine, init_args: {}}",
    "data.rollout.batch_size=4",
    "data.rollout.n_samples_per_prompt=2",
    "data.rollout.train.max_prompt_tokens=16",
    "data.rollout.sampling.max_new_tokens=6",
    "data.rollout.validation.aime.sampling.max_new_tokens=6",
    "data.rollout.validation.aime.n_samples_per_prompt=2",
    "trainer.val_check_interval=3",
    "trainer.max_steps=7",
    "callbacks.checkpoint.every_n_steps=6",
]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Path]) -> Path:
    """The three folders as the recipe wants them: a tiny Qwen3 and a few problems in the data's own form."""
    from relax_lightning.data.digits import digit_tokenizer

    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "MODEL_DIR").mkdir()
    model = tmp_path / "MODEL_DIR" / "Qwen3.5-9B"
    model.symlink_to(tiny_model("qwen3"))
    tokenizer: Any = digit_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    draw = random.Random(0)
    for name, size in {"dapo-math-17k": 20, "aime-2024": 6}.items():
        path = tmp_path / "DATA_DIR" / name / f"{name}.jsonl"
        path.parent.mkdir(parents=True)
        rows = [
            {
                "prompt": [{"role": "user", "content": f"{draw.randint(10, 99)}"}],
                "label": f"{draw.randint(0, 9)}",
            }
            for _ in range(size)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_recipe_runs_in_small(folders: Path) -> None:
    config = load([str(RECIPE)], SMALLER)
    assert [str(p) for p in check(config) if p.severity == "error"] == []
    assert run("fit", resolve(config), None) == 0
    folder = folders / "EXP_DIR" / "qwen35-9b-8xgpu-ppo"
    points: dict[int, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "metrics" in entry:
            points.setdefault(entry["step"], {}).update(entry["metrics"])
    # Five iterations of the critic alone, its rate rising by a fifth of 1e-5 with each of its steps.
    assert [step for step, metrics in sorted(points.items()) if "actor/pg_loss" in metrics] == [6, 7]
    rates = [metrics["critic/lr"] for _, metrics in sorted(points.items())]
    assert rates == pytest.approx([2e-6, 4e-6, 6e-6, 8e-6, 1e-5, 1e-5, 1e-5], rel=1e-9)
    assert [metrics["actor/lr"] for _, metrics in sorted(points.items())[5:]] == [1e-6, 1e-6]
    # DAPO's rule: a right answer is worth 1, any other -1.
    assert all(-1 <= metrics["reward/mean"] <= 1 for metrics in points.values())
    assert [step for step, metrics in sorted(points.items()) if "val/aime/reward_mean" in metrics] == [3, 6]
    for role in ("actor", "critic"):
        kept = sorted(path.name for path in (folder / role).glob("iter_*"))
        assert kept == ["iter_0000006", "iter_0000007"]
