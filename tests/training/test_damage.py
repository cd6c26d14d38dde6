"""Checkpoints that are not what was saved, or are of others: one line before training, and nothing of them runs."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from relax_lightning.checkpoints.checksums import changed_files
from relax_lightning.checkpoints.folders import TRACKER
from relax_lightning.config import load
from relax_lightning.plan import check

SAVED = ("trainer.max_steps=2", "callbacks.checkpoint={every_n_steps: 1, keep_last: 3}")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def source(fit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    run = fit(folder, *SAVED, "trainer.max_steps=3")
    run.folder = folder
    return run


@pytest.fixture
def copy(source, tmp_path):
    """A run folder that was killed after its second iteration."""
    folder = shutil.copytree(source.folder, tmp_path / "copy")
    shutil.rmtree(folder / "checkpoints" / "iter_0000003")
    (folder / "checkpoints" / TRACKER).write_text("2\n")
    return folder


@pytest.fixture
def newest(copy):
    return copy / "checkpoints" / "iter_0000002"


def problems(folder, *keys, resume=None):
    """What `plan` and `fit` say before anything starts."""
    config = load([str(HERE / "digits.yaml")], [f"trainer.default_root_dir={folder}", *SAVED, *keys])
    found = [p for p in check(config, resume=resume) if "warmup" not in p.key]
    assert all(str(problem).count("\n") == 0 for problem in found)
    return [f"{problem.severity}: {problem}" for problem in found]


def only(folder, *keys, resume=None):
    (line,) = problems(folder, *keys, resume=resume)
    return line


def changed_manifest(folder, **changes):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in manifest.items() if value is not None}))


def unlisted(folder):
    """As an earlier version wrote it, or somebody who does not want its files to be compared."""
    changed_manifest(folder, files=None, format=None)
    return folder


FILES = (
    "actor/__0_0.distcp",
    "actor/.metadata",
    "critic/__0_0.distcp",
    "trainer/state.json",
    "trainer/state.safetensors",
)


@pytest.mark.parametrize("name", FILES)
def test_one_changed_bit_is_named_before_training(fit, copy, newest, name):
    path = newest / name
    content = path.read_bytes()
    for place in (len(content) - 1, 0, len(content) // 3, 2 * len(content) // 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        (line,) = changed_files([path.parent])
        assert line.startswith(f"{path}: wanted the checksum ") and line.endswith(
            "an older iteration beside it"
        )
    # In the midst of a tensor or a text, nothing else finds it.
    if name != "actor/.metadata":
        with pytest.raises(ValueError, match=re.escape(line)) as raised:
            fit(copy, *SAVED, "trainer.max_steps=3", ckpt_path="auto")
        assert "\n" not in str(raised.value)


def test_files_that_are_cut_missing_empty_or_too_many(copy, newest):
    assert problems(copy, resume="auto") == []
    for name in (*FILES, "critic/metadata.json"):
        path = newest / name
        content = path.read_bytes()
        for size in (0, len(content) - 1):
            path.write_bytes(content[:size])
            line = only(copy, resume="auto")
            assert (
                f"--ckpt_path: {path}: wanted {len(content):,} bytes, as manifest.json says, got {size:,};"
                in line
            )
        path.unlink()
        assert (
            f"{path}: wanted {len(content):,} bytes" in only(copy, resume=str(newest)) or "metadata" in name
        )
        path.mkdir()
        assert problems(copy, resume="auto") or "metadata" in name
        path.rmdir()
        path.write_bytes(content)
    # A pickle is read to see whose it is, so not before its checksum: this one byte would ask for 128 GiB.
    index = newest / "actor" / ".metadata"
    content = index.read_bytes()
    index.write_bytes(b"\x80\x04]r\xff\xff\xff\xff".ljust(len(content), b"."))
    assert f"--ckpt_path: {index}: wanted the checksum" in only(copy, resume="auto")
    weights = f"model.actor.warm_start={newest}"
    assert f"model.actor.warm_start: {index}: wanted the checksum" in only(copy, weights)
    index.write_bytes(content)
    (newest / "trainer").rename(copy / "trainer")
    assert f"{newest / 'trainer'}" in only(copy, resume="auto")
    (copy / "trainer").rename(newest / "trainer")
    # What a copying program leaves is hidden, and read by nobody; a file that Megatron would read is not.
    (newest / "actor" / ".__0_0.distcp.Xa81").write_bytes(b"")
    assert problems(copy, resume="auto") == []
    (newest / "actor" / "common.pt").write_bytes(b"")
    assert f"{newest / 'actor' / 'common.pt'}: wanted the files of" in only(copy, resume="auto")


@pytest.mark.parametrize(
    "changes",
    [
        {"iteration": "two"}, {"iteration": 10**12}, {"iteration": -2}, {"pair": 1}, {"run_key": "../../x"},
        {"run_key": 3}, {"versions": []}, {"iteration_offset": 1.5}, {"iteration_offset": 2**62}, {"model": 3},
        {"model": {"architecture": {"num_layers": "1"}}},
        {"files": []}, {"files": {"actor/x": 3}}, {"files": {"../x": {"bytes": 0, "xxh3_128": ""}}}, {"format": 99},
    ],
)  # fmt: skip
def test_a_manifest_of_other_types_is_named(copy, newest, changes):
    changed_manifest(newest, **changes)
    line = only(copy, resume="auto")
    assert f"--ckpt_path: {newest / 'manifest.json'}: " in line and "wanted" in line, line


def test_cut_files_without_checksums_are_named_too(fit, copy, newest):
    unlisted(newest)
    for name in ("actor/.metadata", "actor/__0_0.distcp"):
        path = newest / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        assert f"--ckpt_path: {path}" in only(copy, resume="auto")
        path.write_bytes(content)
    for name in ("actor/metadata.json", "trainer/state.json", "trainer/state.safetensors"):
        path = newest / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(ValueError, match=rf"{path.parent}.* cannot be read"):
            fit(copy, *SAVED, "trainer.max_steps=3", ckpt_path="auto")
        path.write_bytes(content)


def test_an_earlier_versions_checkpoint_goes_on_bit_for_bit(fit, recorder, source, copy, newest, caplog):
    from relax_lightning.strategies.trainer_state import read_state

    torch.save(read_state(newest / "trainer"), newest / "trainer" / "state.pt")
    for name in ("state.json", "state.safetensors"):
        (newest / "trainer" / name).unlink()
    unlisted(newest)
    run = fit(copy, *SAVED, "trainer.max_steps=3", ckpt_path="auto")
    assert recorder.differing(run.states[3], source.states[3]) == []
    assert sum("has no checksums: it is loaded unverified" in r.getMessage() for r in caplog.records) == 3


def test_checksums_can_be_left_alone(fit, copy, newest):
    path = newest / "critic" / "__0_0.distcp"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    keys = ("trainer.max_steps=3", "strategy.verify_checkpoints=false")
    assert sorted(fit(copy, *SAVED, *keys, ckpt_path="auto").metrics) == [3]


class Evil:
    """Writes a file as it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def poisoned_index(folder, mark):
    metadata = pickle.loads((folder / "actor" / ".metadata").read_bytes())
    metadata.planner_data = Evil(mark)
    (folder / "actor" / ".metadata").write_bytes(pickle.dumps(metadata))


def poisoned_object(folder, mark):
    path = folder / "actor" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    data = folder / "actor" / "__0_0.distcp"
    (place,) = [p for i, p in metadata.storage_data.items() if i.fqn.startswith("common_state")]
    place.offset = data.stat().st_size
    with data.open("ab") as file:
        torch.save([Evil(mark)], file)
    place.length = data.stat().st_size - place.offset
    path.write_bytes(pickle.dumps(metadata))


def poisoned_common(folder, mark):
    torch.save({"x": Evil(mark)}, folder / "actor" / "common.pt")


def poisoned_trainer(folder, mark):
    for path in (folder / "trainer").iterdir():
        path.unlink()
    torch.save({"callbacks": Evil(mark)}, folder / "trainer" / "state.pt")


@pytest.mark.parametrize("poison", [poisoned_index, poisoned_object, poisoned_common, poisoned_trainer])
def test_a_strangers_checkpoint_runs_nothing_unless_it_is_trusted(fit, copy, newest, tmp_path, poison):
    mark = tmp_path / "was_run"
    poison(unlisted(newest), mark)
    roots = [{"ckpt_path": "auto"}]
    if poison is not poisoned_trainer:
        # A plain root of Megatron's, and weights alone.
        plain = tmp_path / "plain"
        (plain / "iter_0000002").mkdir(parents=True)
        for role in ("actor", "critic"):
            shutil.copytree(newest / role, plain / "iter_0000002" / role)
        (plain / TRACKER).write_text("2")
        roots += [{"key": f"model.actor.load={plain}"}, {"key": f"model.actor.warm_start={newest}"}]
        roots += [{"key": f"model.reference={{load: {newest}}}"}]
    for number, root in enumerate(roots):
        folder = copy if "ckpt_path" in root else tmp_path / f"run{number}"
        more = (root["key"], "model.algorithm.use_kl_loss=true") if "key" in root else ()
        with pytest.raises(ValueError, match=r"strategy\.trust_checkpoints: true if you trust") as raised:
            fit(folder, *SAVED, *more, "trainer.max_steps=3", ckpt_path=root.get("ckpt_path"))
        assert "\n" not in str(raised.value) and str(newest.name) in str(raised.value) and not mark.exists()
    if poison is poisoned_index:
        assert "got posix.mkdir, which would run" in only(copy, resume="auto") and not mark.exists()
    if poison is not poisoned_object:
        # What stands in the place of an object of its own may be missed afterwards.
        with suppress(ValueError, KeyError, AttributeError, TypeError):
            fit(copy, *SAVED, "trainer.max_steps=3", "strategy.trust_checkpoints=true", ckpt_path="auto")
        assert mark.exists()


def test_a_role_is_told_from_the_other(fit, newest, tmp_path):
    bare = tmp_path / "bare"
    for role in ("actor", "critic"):
        shutil.copytree(newest / role, bare / role)
    run = tmp_path / "run"
    kl = "model.algorithm.use_kl_loss=true"
    for place in (newest, bare):
        actor, critic = place / "actor", place / "critic"
        line = only(run, f"model.actor.warm_start={critic}", f"model.critic.warm_start={critic}")
        assert line.startswith(
            f"error: model.actor.warm_start: wanted an actor (with an output for every token), got {critic}"
        )
        line = only(run, f"model.actor.warm_start={actor}")
        assert line.startswith(
            f"error: model.critic.warm_start: wanted a critic (with a value head), got {actor}, which holds an actor"
        )
        lines = problems(run, f"model.reference={{load: {critic}}}", kl)
        assert [
            f"got {critic}, which holds a critic" in line for line in lines if line.startswith("error")
        ] == [True]
        assert problems(run, f"model.actor.warm_start={place}") == []
    # A plain root of an actor alone, and roles that were put into each other's place.
    for swapped in (False, True):
        root = tmp_path / f"root{swapped}"
        (root / "iter_0000002").mkdir(parents=True)
        if swapped:
            shutil.copytree(newest / "critic", root / "iter_0000002" / "actor")
            shutil.copytree(newest / "actor", root / "iter_0000002" / "critic")
        else:
            shutil.copytree(newest / "actor", root / "iter_0000002", dirs_exist_ok=True)
        (root / TRACKER).write_text("2")
        lines = problems(run, f"model.actor.load={root}")
        assert [line.split(": ")[1] for line in lines] == ["model.actor.load", "model.critic.load"][
            not swapped :
        ]
        assert "which holds" in lines[0]


def test_another_architecture_without_a_manifest_is_one_line(fit, newest, tmp_path):
    shutil.copytree(newest / "actor", tmp_path / "bare" / "actor")
    shutil.copytree(newest / "critic", tmp_path / "bare" / "critic")
    keys = (f"model.actor.warm_start={tmp_path / 'bare'}", "model.actor.architecture.vocab_size=20")
    with pytest.raises(
        ValueError, match=r"embedding.word_embeddings.weight is \[16, 32\], here \[20, 32\]"
    ) as raised:
        fit(tmp_path / "run", *SAVED, *keys)
    assert "\n" not in str(raised.value)


def test_what_auto_passes_over_is_said(copy, newest):
    shutil.copytree(newest, newest.with_name("iter_0000003"))
    (newest.parent / TRACKER).write_text("3\n")
    third = newest.with_name("iter_0000003")
    changed_manifest(third, iteration=3)
    assert problems(copy, resume="auto") == []
    for name in ("critic", "manifest.json"):
        aside = third / name
        aside.rename(third / "aside")
        reason = name.removesuffix(".json")
        assert only(copy, resume="auto") == (
            f"warning: --ckpt_path: {third} is newer, but it has no {reason}: the run resumes from iteration 2"
        )
        (third / "aside").rename(aside)
    shutil.rmtree(third)
    assert f"{third} is newer, but it has no manifest" in only(copy, resume="auto")


def test_callbacks_keep_plain_state_and_others_are_refused_at_start(fit, recorder, tmp_path):
    with pytest.raises(
        ValueError, match=r"state_dict of the callback OddState .* got a pathlib.PosixPath at seen.1;"
    ):
        fit(tmp_path / "odd", *SAVED, callbacks=(("OddState", {}),))
    assert not (tmp_path / "odd" / "checkpoints").exists()
    for ckpt_path in (None, "auto"):
        steps = "trainer.max_steps=1" if ckpt_path is None else "trainer.max_steps=2"
        fit(tmp_path / "rich", *SAVED, steps, callbacks=(("RichState", {}),), ckpt_path=ckpt_path)
    loaded, held = recorder.RichState.loaded, recorder.RichState.held()
    assert loaded.keys() == held.keys()
    for name in held:
        assert type(loaded[name]) is type(held[name])
        pairs = [loaded[name], held[name]]
        if hasattr(held[name], "dtype"):
            assert loaded[name].dtype == held[name].dtype and loaded[name].shape == held[name].shape
            pairs = [value.tolist() for value in pairs]
        assert pairs[0] == pairs[1]
