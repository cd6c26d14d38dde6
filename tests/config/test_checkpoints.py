"""Reading a checkpoint root: the tracker is the only commit point, and both halves must be there."""

import pytest

from relax_lightning.checkpoints.folders import (
    TRACKER,
    committed_folder,
    complete_iterations,
    find_latest,
    iteration_folder,
    iteration_of,
    read_tracker,
)
from relax_lightning.checkpoints.manifest import read_manifest


def test_names_of_folders(tmp_path):
    assert iteration_folder("root", 12).as_posix() == "root/iter_0000012"
    assert iteration_of("root/iter_0000012") == 12
    assert iteration_of(iteration_folder("root", 12345678)) == 12345678
    others = ("release", ".iter_0000012.partial", "iter_12x", "iter_12", "iter_00000012", "iter_000001\u0663")
    assert [iteration_of(name) for name in others] == [None] * 6


def test_the_tracker(tmp_path):
    assert read_tracker(tmp_path) is None
    assert read_tracker(tmp_path / "absent") is None
    assert committed_folder(tmp_path) is None
    (tmp_path / TRACKER).write_text("12")
    assert read_tracker(tmp_path) == 12
    assert committed_folder(tmp_path) == tmp_path / "iter_0000012"
    (tmp_path / TRACKER).write_text("release\n")
    assert read_tracker(tmp_path) == "release"
    assert committed_folder(tmp_path) == tmp_path / "release"
    for text in ("-3", "1_0", "9" * 5000, "", "12 13", "\u0663"):
        (tmp_path / TRACKER).write_text(text)
        with pytest.raises(ValueError, match="wanted an iteration or `release`, got "):
            read_tracker(tmp_path)
    (tmp_path / TRACKER).unlink()
    (tmp_path / TRACKER).mkdir()
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_tracker(tmp_path)
    (tmp_path / TRACKER).rmdir()
    (tmp_path / TRACKER).symlink_to(TRACKER)
    with pytest.raises(ValueError, match="cannot be read: Too many levels of symbolic links"):
        read_tracker(tmp_path)
    (tmp_path / TRACKER).unlink()
    (tmp_path / TRACKER).write_text("newest")
    with pytest.raises(ValueError, match="wanted an iteration or `release`, got 'newest'; write"):
        read_tracker(tmp_path)


def test_the_manifest(tmp_path, make_checkpoint):
    folder = make_checkpoint(tmp_path, 3)
    assert read_manifest(folder) == {"iteration": 3}
    assert read_manifest(tmp_path) is None
    (folder / "manifest.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"manifest\.json: wanted a JSON mapping, got list"):
        read_manifest(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json: wanted a JSON mapping, got Expecting"):
        read_manifest(folder)


def test_the_latest_of_one_root(tmp_path, make_checkpoint):
    assert find_latest(tmp_path / "absent") is None
    assert find_latest(tmp_path) is None
    make_checkpoint(tmp_path, 3)
    make_checkpoint(tmp_path, 6)
    assert find_latest(tmp_path) == (6, iteration_folder(tmp_path, 6))
    assert find_latest(tmp_path, tmp_path) == (6, iteration_folder(tmp_path, 6))
    # Renamed, and killed before the tracker moved: not committed.
    make_checkpoint(tmp_path, 9, commit=False)
    (tmp_path / ".iter_0000012.partial").mkdir()
    assert complete_iterations(tmp_path) == [3, 6]
    assert find_latest(tmp_path) == (6, iteration_folder(tmp_path, 6))


def test_an_iteration_without_both_halves_does_not_count(tmp_path, make_checkpoint):
    make_checkpoint(tmp_path, 3)
    make_checkpoint(tmp_path, 6, roles=("actor",))
    assert find_latest(tmp_path) == (3, iteration_folder(tmp_path, 3))


def test_the_latest_of_two_roots_is_the_newest_in_both(tmp_path, make_checkpoint):
    actor, critic = tmp_path / "actor", tmp_path / "critic"
    # The critic commits first: killed in between, it is one ahead.
    make_checkpoint(critic, 3, roles=("critic",))
    assert find_latest(actor, critic) is None
    make_checkpoint(actor, 3, roles=("actor",))
    make_checkpoint(critic, 6, roles=("critic",))
    assert find_latest(actor, critic) == (3, iteration_folder(actor, 3))


def test_a_tracker_without_a_complete_pair_is_an_error_not_a_fresh_start(tmp_path, make_checkpoint):
    actor, critic = tmp_path / "actor", tmp_path / "critic"
    make_checkpoint(actor, 6, roles=("actor",))
    make_checkpoint(critic, 3, roles=("critic",))
    with pytest.raises(
        ValueError, match=r"wanted an iteration with actor and critic under .*, got none"
    ) as error:
        find_latest(actor, critic)
    assert str(actor) in str(error.value)
    assert str(critic) in str(error.value)
