"""Checkpoints on disk: a crash at any file-system call leaves a pair to resume from. No torch in it."""

import os
import shutil
import sys
from functools import partial

import pytest
import xxhash

from relax_lightning.checkpoints.checksums import changed_files, is_listed, refuse_misfits
from relax_lightning.checkpoints.folders import (
    complete_iterations,
    find_latest,
    is_complete,
    iteration_folder,
    read_folders,
    read_tracker,
)
from relax_lightning.checkpoints.manifest import read_manifest
from relax_lightning.strategies.pair import PairedCheckpoints

WRITING = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


class PowerCut(BaseException):
    """Nothing of ours may catch this."""


class FileSystem:
    """Counts the changing calls under a folder, and cuts the power just before the n-th of them."""

    def __init__(self):
        self.folder, self.left = None, 0
        sys.addaudithook(self._hook)

    def _hook(self, event, args):
        if self.folder is None:
            return
        # Removal works relative to an open folder, so its paths are bare names.
        is_inside = event in ("os.remove", "os.rmdir") or any(
            str(arg).startswith(str(self.folder)) for arg in args
        )
        if not is_inside:
            return
        is_write = event in WRITING or (event == "open" and isinstance(args[1], str) and args[1][0] in "wax")
        if is_write:
            self.left -= 1
            if self.left == 0:
                raise PowerCut

    def cut_at(self, number, folder, action):
        """Whether the power went before `action` was through."""
        self.folder, self.left = folder, number
        try:
            action()
        except PowerCut:
            return True
        finally:
            self.folder = None
        return False


@pytest.fixture(scope="module")
def file_system():
    return FileSystem()


class Run:
    """Saves roles that are small files which say when, and by which run, they were written."""

    def __init__(self, folder, separate, name="first"):
        self.root, self.critic_root = folder / "a", folder / ("c" if separate else "a")
        self.pair = PairedCheckpoints(self.root, self.critic_root, is_writer=True, barrier=lambda: None)
        self.name = name

    def save(self, iteration, keep_last=2):
        text = f"{self.name} {iteration}"

        def write(role, folder):
            folder.mkdir()
            (folder / "one").write_text(text)
            (folder / "two").write_text(text)

        self.pair.save(iteration, write, lambda folder: write("trainer", folder), {"run_key": self.name})
        self.pair.prune(keep_last)

    def newest(self):
        """The iteration to resume from; checks that both halves are whole and were written together."""
        found = find_latest(self.root, self.critic_root)
        if found is None:
            return None
        _, folder = found
        texts = {
            (path / name).read_text()
            for path in (*read_folders(folder, self.critic_root).values(), folder / "trainer")
            for name in ("one", "two")
        }
        assert len(texts) == 1, texts
        return texts.pop()

    def leftovers(self):
        return [p.name for root in {self.root, self.critic_root} if root.exists() for p in root.iterdir()
                if "partial" in p.name]  # fmt: skip


@pytest.mark.parametrize("separate", [False, True])
def test_saves_prune_and_commit(tmp_path, separate):
    run = Run(tmp_path, separate)
    assert run.newest() is None
    for iteration in (1, 2, 3, 5):
        run.save(iteration, keep_last=2)
        assert run.newest() == f"first {iteration}"
        assert read_tracker(run.root) == read_tracker(run.critic_root) == iteration
    assert (
        complete_iterations(run.root, ("actor",))
        == complete_iterations(run.critic_root, ("critic",))
        == [3, 5]
    )
    manifest = read_manifest(iteration_folder(run.root, 5))
    assert manifest is not None and (manifest["run_key"], manifest["iteration"]) == ("first", 5)
    assert run.leftovers() == []
    assert (iteration_folder(run.root, 5) / "critic").is_dir() is not separate


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("keep_last", [1, 2])
# The next iteration; or one that is there already, because the run was resumed from an older one.
@pytest.mark.parametrize(("resumed", "iteration"), [(False, 7), (True, 6)])
def test_a_crash_at_any_point_leaves_a_whole_pair(
    file_system, tmp_path, separate, keep_last, resumed, iteration
):
    before = Run(tmp_path / "before", separate)
    for number in (3, 6):
        before.save(number, keep_last=2)
    number, was_cut, seen = 0, True, set()
    while was_cut:
        number += 1
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", folder)
        run = Run(folder, separate, "second" if resumed else "first")
        was_cut = file_system.cut_at(number, folder, partial(run.save, iteration, keep_last))
        newest = run.newest()
        seen.add(newest)
        allowed = {"first 3", "first 6"} if resumed else {"first 6"}
        assert newest in {*allowed, f"{run.name} {iteration}"}, number
        # The next save works and cleans up, whatever the crash left.
        run.save(iteration + 1, keep_last)
        assert run.newest() == f"{run.name} {iteration + 1}" and run.leftovers() == []
        shutil.rmtree(folder)
    assert number > 20 and newest == f"{run.name} {iteration}" and len(seen) >= 2


def test_keep_last_counts_whole_pairs(tmp_path, file_system):
    run = Run(tmp_path, separate=True)
    for iteration in (1, 2):
        run.save(iteration)
    # The critic's half of 3 is committed, the actor's is not; then the run goes on from 2 and saves at 4.
    cut = 0
    while complete_iterations(run.critic_root, ("critic",))[-1] != 3:
        cut += 1
        assert file_system.cut_at(cut, tmp_path, lambda: run.save(3))
    assert complete_iterations(run.root, ("actor",)) == [1, 2]
    run.save(4)
    assert find_latest(run.root, run.critic_root) == (4, iteration_folder(run.root, 4))
    shutil.rmtree(iteration_folder(run.root, 4))
    assert find_latest(run.root, run.critic_root) == (2, iteration_folder(run.root, 2))


def test_a_missing_half_is_one_clear_error(tmp_path):
    run = Run(tmp_path, separate=False)
    run.save(1)
    folder = iteration_folder(run.root, 1)
    shutil.rmtree(folder / "critic")
    assert not is_complete(folder)
    with pytest.raises(
        ValueError,
        match=r"iter_0000001 has no complete critic: wanted .*critic and .*manifest\.json; .*that holds both",
    ):
        read_folders(folder, None)
    with pytest.raises(
        ValueError, match=r"wanted an iteration with actor and critic under .*, got none, although"
    ):
        find_latest(run.root)


def test_halves_of_different_saves_are_no_pair(tmp_path):
    run = Run(tmp_path, separate=True)
    run.save(1)
    other = Run(tmp_path / "other", separate=True, name="other")
    other.save(1)
    shutil.rmtree(iteration_folder(run.critic_root, 1))
    shutil.copytree(iteration_folder(other.critic_root, 1), iteration_folder(run.critic_root, 1))
    with pytest.raises(ValueError, match="not saved together"):
        read_folders(iteration_folder(run.root, 1), run.critic_root)


def test_what_cannot_be_removed_stays_with_a_warning(tmp_path, caplog):
    run = Run(tmp_path, separate=False)
    run.save(1, keep_last=9)
    run.save(2, keep_last=9)
    elsewhere = tmp_path / "elsewhere"
    iteration_folder(run.root, 1).rename(elsewhere)
    iteration_folder(run.root, 1).symlink_to(elsewhere)
    # As root may remove anything, a user of no rights does it, in a process of their own.
    stubborn = iteration_folder(run.root, 2) / "actor"
    stubborn.chmod(0o555)
    tmp_path.chmod(0o777)
    for path in (run.root, iteration_folder(run.root, 2)):
        path.chmod(0o777)
    for path in (parent for parent in tmp_path.parents if parent.name.startswith(("pytest-", "popen-"))):
        path.chmod(path.stat().st_mode | 0o111)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            for iteration in (3, 4):
                run.save(iteration, keep_last=1)
            lines = [r.getMessage() for r in caplog.records]
            print(lines, flush=True)
            starts = (
                "iter_0000001 stays, for it cannot be removed: it is a link",
                "iter_0000002 stays, for it cannot",
            )
            status = (
                sum(all(f"{run.root}/{start}" not in line for line in lines) for start in starts)
                + len(lines)
                - 2
            )
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    stubborn.chmod(0o755)
    assert complete_iterations(run.root) == [1, 4] and (elsewhere / "actor" / "one").is_file()
    # It is no checkpoint any more, and goes with the next save.
    run.save(5, keep_last=1)
    assert complete_iterations(run.root) == [1, 5] and not iteration_folder(run.root, 2).exists()


def test_a_broken_manifest_of_an_old_half_ends_no_training(tmp_path, caplog):
    run = Run(tmp_path, separate=True)
    run.save(1)
    (iteration_folder(run.critic_root, 1) / "manifest.json").write_text("{")
    run.save(2)
    assert "old checkpoints were not removed: " in caplog.text and read_tracker(run.root) == 2


def test_one_root_by_two_names_is_one_root(tmp_path):
    run = Run(tmp_path, separate=False)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    run.pair = PairedCheckpoints(tmp_path / "a", tmp_path / "link", is_writer=True, barrier=lambda: None)
    run.save(1)
    assert find_latest(tmp_path / "link", tmp_path / "a") == (1, iteration_folder(tmp_path / "link", 1))


def test_checksums_are_of_every_file_and_find_a_changed_one(tmp_path):
    run = Run(tmp_path, separate=True)
    run.save(1)
    parts = [*read_folders(iteration_folder(run.root, 1), run.critic_root).values()]
    parts.append(iteration_folder(run.root, 1) / "trainer")
    files = [read_manifest(folder)["files"] for folder in {part.parent for part in parts}]
    assert sorted(name for of in files for name in of) == [
        f"{p}/{n}" for p in ("actor", "critic", "trainer") for n in ("one", "two")
    ]
    right = xxhash.xxh3_128_hexdigest(b"first 1")
    assert all(kept == {"bytes": 7, "xxh3_128": right} for of in files for kept in of.values())
    assert changed_files(parts) == [] and all(is_listed(part) for part in parts)
    (parts[1] / "two").write_text("firsT 1")
    # Whichever process has the file in its share.
    for of in (1, 2, 3):
        (line,) = [line for number in range(of) for line in changed_files(parts, (number, of))]
        assert line.startswith(f"{parts[1] / 'two'}: wanted the checksum {right}, as manifest")
    refuse_misfits(parts[1])
