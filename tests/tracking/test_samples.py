from pathlib import Path

import torch

from relax_lightning.ppo.batch import Rollouts
from relax_lightning.tracking.samples import SampleTables, sample_rows


def make_rollouts() -> Rollouts:
    one = torch.ones(1, 1, dtype=torch.int64)
    return Rollouts(
        sample_ids=one[0], prompt_tokens=one, prompt_lengths=one[0], response_tokens=one, response_lengths=one[0],
        response_mask=one.bool(), rollout_log_probs=one.float(), rewards=torch.tensor([0.5]),
        finish_reasons=("length",), prompts=("p",), responses=("r",), labels=(["a"],), temperature=1.0,
        weight_version=0,
    )  # fmt: skip


def test_few_tables_stay_however_long_the_training(tmp_path: Path) -> None:
    tables = SampleTables(tmp_path, num_samples=8, max_iterations=1000)
    logged = [k for k in range(1, 1001) if tables.write(k, make_rollouts()) is not None]

    assert logged == [1, *range(20, 1001, 20)]
    left = sorted(int(path.stem.removeprefix("iter_")) for path in (tmp_path / "samples").iterdir())
    assert left == sorted({*logged, *range(981, 1001)})


def test_no_tables_and_short_ones(tmp_path: Path) -> None:
    assert SampleTables(tmp_path, num_samples=0, max_iterations=5).write(1, make_rollouts()) is None
    assert not (tmp_path / "samples").exists()
    assert sample_rows(make_rollouts(), 8) == [
        {
            "prompt": "p",
            "response": "r",
            "label": "['a']",
            "reward": 0.5,
            "length": 1,
            "finish_reason": "length",
        }
    ]
