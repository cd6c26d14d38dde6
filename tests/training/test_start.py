"""What a start leaves of an earlier run in its folder, and who else may be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relax_lightning.checkpoints.folders import complete_iterations, complete_pairs
from relax_lightning.config import load, resolve
from relax_lightning.run.lock import run_lock

# The warm-up of the critic's rate takes more than one iteration, which the command would refuse.
SAVED = ("trainer.max_steps=2", "callbacks.checkpoint={save_last: true}")
FAILING = {
    "rollout function": ("data.rollout.function={class_path: nope.X}",),
    "reward": ("data.rollout.reward={class_path: nope.reward, num_workers: 1}",),
    "tracker": ("tracking.mlflow={uri: ./mlruns}",),
    "engine": ("data.rollout.engine={class_path: nope.Engine}",),
}


@pytest.fixture(scope="module")
def earlier(fit, tmp_path_factory):
    """The folder of a run that saved its second iteration."""
    folder = tmp_path_factory.mktemp("earlier")
    fit(folder, *SAVED, "tracking.mlflow=null")
    return folder


def left_in(folder):
    names = sorted(path.name for path in folder.iterdir())
    return names, complete_iterations(folder / "checkpoints"), (folder / "config.yaml").read_text()


@pytest.mark.parametrize("what", FAILING)
def test_a_start_that_fails_leaves_checkpoints_and_config(fit, earlier, what):
    before = left_in(earlier)
    assert before[1] == [2]
    with pytest.raises((ValueError, RuntimeError, ImportError)):
        fit(earlier, *SAVED, *FAILING[what])
    assert left_in(earlier) == before


def test_a_refused_resume_and_a_trial_leave_them_too(fit, earlier):
    before = left_in(earlier)
    with pytest.raises(ValueError, match=r"batch_size: 8 then, 4 now.*model\.actor\.warm_start"):
        fit(earlier, "trainer.max_steps=3", "data.rollout.batch_size=4", ckpt_path="auto")
    assert left_in(earlier) == before
    fit(earlier, *SAVED, "trainer.fast_dev_run=true")
    assert left_in(earlier)[1:] == before[1:] and not (earlier / "checkpoints.1").exists()


def test_its_config_serves_another_folder(earlier, tmp_path):
    config = load([str(earlier / "config.yaml")], [f"trainer.default_root_dir={tmp_path}"])
    assert (config.model.actor.save, config.model.critic.save) == (None, None)
    assert resolve(config).model.critic.save == str(tmp_path / "checkpoints")


def test_a_fresh_run_puts_them_aside_as_it_saves(fit, tmp_path, capsys):
    for number in (1, 2):
        run = fit(tmp_path, f"trainer.max_steps={number}", "callbacks.checkpoint={save_last: true}")
        assert "on_exception" not in run.events
    assert complete_iterations(tmp_path / "checkpoints") == [2]
    assert complete_iterations(tmp_path / "checkpoints.1") == [1]
    assert capsys.readouterr().out.count("The checkpoints of an earlier run are now in") == 1


def test_ranks_of_one_job_share_the_folder_and_make_way_once(command, tmp_path):
    for number in (2, 3):
        keys = ("callbacks.checkpoint={save_last: true}", "model.critic.save=" + str(tmp_path / "critics"))
        statuses, output, _ = command(tmp_path, f"trainer.max_steps={number}", *keys, ranks=2)
        assert statuses == [0, 0], output
    for name in ("checkpoints", "critics"):
        assert output.count(f"are now in {tmp_path / name}.1") == 1
    assert complete_pairs(tmp_path / "checkpoints", tmp_path / "critics") == [3]
    assert complete_pairs(tmp_path / "checkpoints.1", tmp_path / "critics.1") == [2]


def test_two_runs_in_one_folder_are_one_too_many(command, forked, earlier):
    before = left_in(earlier)[1:]
    with run_lock(earlier):
        status, output, _ = command(earlier, *SAVED)
        assert status == 1 and left_in(earlier)[1:] == before
        (line,) = [line for line in output.splitlines() if "relax-lightning:" in line]
        assert f"got {earlier}, where process {os.getpid()} on " in line
        validation = "{mine: {class_path: relax_lightning.data.digits.ReversedDigits, init_args: {size: 5}}}"
        digits = Path(__file__).parent / "digits.yaml"
        words = ["validate", "--config", str(digits), "--ckpt_path", "auto"]
        words += [f"--trainer.default_root_dir={earlier}", f"--data.rollout.validation={validation}"]
        status, output, _ = forked(words, earlier)
        assert status == 0, output
    status, output, _ = command(earlier, "trainer.max_steps=3", ckpt_path="auto")
    assert status == 0, output


def test_ctrl_c_before_training_is_one_line(command, tmp_path):
    (tmp_path / "interrupting.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    status, output, _ = command(tmp_path, *SAVED, callbacks=(("interrupting.Mine", {}),))
    assert status == 130
    assert output.splitlines()[-1] == "relax-lightning: interrupted" and "Traceback" not in output
