"""A run folder is held by one process, and by none that is dead."""

import os
import signal

import pytest

from relax_lightning.run.lock import run_lock


def test_one_process_holds_a_folder_and_says_which(tmp_path):
    for folder in (tmp_path / "a", tmp_path / "a"):
        message = rf"got {folder}, where process {os.getpid()} on .* trains"
        held = (run_lock(folder), run_lock(tmp_path / "b"))
        with held[0], held[1], pytest.raises(ValueError, match=message), run_lock(folder):
            pass


def test_a_killed_process_holds_nothing(tmp_path):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with run_lock(tmp_path):
            os.write(writing, b"x")
            signal.pause()
    os.read(reading, 1)
    with pytest.raises(ValueError, match=f"where process {child} on"), run_lock(tmp_path):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with run_lock(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    message = r"trainer\.default_root_dir: .*file/run cannot be written"
    with pytest.raises(ValueError, match=message), run_lock(tmp_path / "file" / "run"):
        pass


def test_save_roots_are_held_too_by_whatever_name(tmp_path):
    run, root = tmp_path / "run", tmp_path / "root"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    # One root for both roles, and the run folder itself, are no trouble to the run that holds them.
    own = {"model.actor.save": f"{root}/../root", "model.critic.save": str(tmp_path / "link")}
    with run_lock(run, own), run_lock(tmp_path / "other", {"model.actor.save": str(tmp_path / "other")}):
        message = rf"model\.critic\.save: wanted a folder that nobody trains in, got {tmp_path}/link, where process "
        message += rf"{os.getpid()} on .*, of the run in {run}, trains; end that"
        with (
            pytest.raises(ValueError, match=message),
            run_lock(tmp_path / "more", {"model.critic.save": f"{tmp_path}/link"}),
        ):
            pass
        held = run_lock(tmp_path / "more", {"model.actor.save": str(run)})
        with pytest.raises(ValueError, match=rf"model\.actor\.save: .* got {run}, where"), held:
            pass
    with run_lock(tmp_path / "more", own):
        pass
