"""What is refused, or put aside, between the checks and the building."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from relax_lightning.checkpoints.folders import TRACKER, newest_put_aside
from relax_lightning.checkpoints.put_aside import put_aside_earlier_checkpoints
from relax_lightning.checkpoints.same_model import check_same_model
from relax_lightning.config import load, resolve
from relax_lightning.lightning_cli import run
from relax_lightning.megatron.build import architecture_of
from relax_lightning.run.user_callbacks import check_callbacks

DIGITS = str(Path(__file__).parent / "digits.yaml")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"class_path": "no_such_file.Mine"},
            r"trainer\.callbacks\.0\.class_path: no_such_file .* could not be imported",
        ),
        ({"class_path": "callbacks.metrics.Metrics"}, r"callbacks\.metrics .* has no Metrics"),
        ({"class_path": "EarlyStoping"}, r"wanted an import path"),
        ({"class_path": "pathlib.Path"}, r"wanted a class of callbacks, got pathlib\.Path"),
        (
            {"class_path": "callbacks.critic_warmup.CriticOnlyWarmup", "init_args": {"steps": 3}},
            r"init_args: callbacks\.critic_warmup\.CriticOnlyWarmup does not take them: .*'steps'",
        ),
    ],
)
def test_a_users_callback_is_looked_at_before_anything_runs(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_callbacks([entry])
    check_callbacks([{"class_path": "EarlyStopping", "init_args": {"monitor": "reward/mean"}}])


NESTED = """
from lightning.pytorch import Callback

class Outer(Callback):
    def __init__(self, inner: Callback, more: list[Callback] | None = None) -> None:
        self.inner = inner
"""


def test_a_typo_in_a_callback_of_a_callback_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nested_callbacks.py").write_text(NESTED)
    monkeypatch.syspath_prepend(tmp_path)
    inner = "{class_path: callbacks.critic_warmup.CriticOnlyWarmup, init_args: {num_stps: 3}}"
    entry = f"{{class_path: nested_callbacks.Outer, init_args: {{inner: {inner}}}}}"
    config = resolve(load([DIGITS], [f"trainer.default_root_dir={tmp_path}", f"trainer.callbacks=[{entry}]"]))
    with pytest.raises(ValueError, match="num_stps") as error:
        run("fit", config, None)
    assert str(error.value) == (
        "trainer.callbacks: nested_callbacks.Outer: inner: callbacks.critic_warmup.CriticOnlyWarmup: "
        "Option 'num_stps' is not accepted; correct its class_path or init_args"
    )
    assert capsys.readouterr() == ("", "")


def test_another_model_than_the_checkpoints_is_refused_key_by_key() -> None:
    config = resolve(load([DIGITS], [])).model
    architecture = asdict(architecture_of(config))
    saved = {"model": {"architecture": architecture, "distributed_optimizer": True}}
    check_same_model(config, saved, "folder")
    other = {**architecture, "vocab_size": 99, "rope_theta": 5.0}
    with pytest.raises(
        ValueError, match=r"folder holds another model .* vocab_size 99, now 16; rope_theta 5\.0, now"
    ):
        check_same_model(config, {"model": {**saved["model"], "architecture": other}}, "folder")
    with pytest.raises(ValueError, match=r"folder: its manifest describes no model"):
        check_same_model(config, {}, "folder")


def test_a_fresh_run_puts_earlier_checkpoints_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = resolve(load([DIGITS], [f"trainer.default_root_dir={tmp_path}"]))
    put_aside_earlier_checkpoints(config)
    root = tmp_path / "checkpoints"
    for number in (1, 2):
        root.mkdir(exist_ok=True)
        (root / TRACKER).write_text("7\n")
        put_aside_earlier_checkpoints(config)
        assert (tmp_path / f"checkpoints.{number}" / TRACKER).read_text() == "7\n"
        assert list(root.iterdir()) == []
        assert f"checkpoints.{number}" in capsys.readouterr().out
    (root / TRACKER).write_text("7\n")
    loading = replace(config.model.actor, load=str(root))
    put_aside_earlier_checkpoints(replace(config, model=replace(config.model, actor=loading)))
    assert root.exists()


def test_checkpoints_in_the_run_folder_itself_leave_it_where_it_is(tmp_path: Path) -> None:
    keys = [f"trainer.default_root_dir={tmp_path / 'run'}", f"model.actor.save={tmp_path / 'run'}"]
    config = resolve(load([DIGITS], keys))
    for number in (1, 2):
        (tmp_path / "run" / "iter_0000007").mkdir(parents=True)
        (tmp_path / "run" / TRACKER).write_text("7\n")
        (tmp_path / "run" / "metrics.jsonl").write_text("")
        put_aside_earlier_checkpoints(config)
        aside = tmp_path / "run" / f"checkpoints.{number}"
        assert sorted(path.name for path in aside.iterdir()) == ["iter_0000007", TRACKER]
        assert newest_put_aside(tmp_path / "run") == aside
        assert not (tmp_path / "run" / TRACKER).exists() and (tmp_path / "run" / "metrics.jsonl").exists()
