"""Folders that are linked, shared, full, or gone while a run uses them; and what is exported of its checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from relax_lightning.checkpoints.folders import TRACKER, complete_iterations, find_latest, newest_put_aside
from relax_lightning.megatron.export import export_checkpoint

SAVED = ("callbacks.checkpoint={every_n_steps: 1, keep_last: 2}",)


def test_linked_folders_are_used_where_they_are(fit, tmp_path, capsys):
    run, disk = tmp_path / "run", tmp_path / "disk" / "ck"
    disk.mkdir(parents=True)
    run.mkdir()
    root = run / "checkpoints"
    root.symlink_to(disk)
    # Under another spelling it is the same root, not one of the critic's own.
    keys = (*SAVED, f"model.critic.save={disk.parent / '..' / 'disk' / 'ck'}")
    for number in (1, 2):
        fit(run, *keys, f"trainer.max_steps={number}")
        assert root.is_symlink() and complete_iterations(disk) == list(range(1, number + 1))
    aside = disk / "checkpoints.1"
    assert f"are now in {root / 'checkpoints.1'};" in capsys.readouterr().out
    assert complete_iterations(aside) == [1] and newest_put_aside(root) == root / "checkpoints.1"
    # An iteration that was moved to another disk, by a link of its own, is put aside as it is.
    (disk / "iter_0000001").rename(tmp_path / "moved")
    (disk / "iter_0000001").symlink_to("../../moved")
    assert sorted(fit(run, *keys, "trainer.max_steps=3", ckpt_path="auto").metrics) == [3]
    assert (disk / "iter_0000001").is_symlink() and complete_iterations(disk) == [1, 2, 3]
    fit(run, *keys, "trainer.max_steps=1")
    assert (
        complete_iterations(disk / "checkpoints.2") == [1, 2, 3] and (tmp_path / "moved" / "actor").is_dir()
    )


def test_a_folder_that_goes_in_mid_run_is_an_error(command, tmp_path):
    remover = (("FolderRemover", {"hook": "on_rollout_end", "iteration": 2}),)
    keys = (f"trainer.default_root_dir={tmp_path / 'run'}", "trainer.max_steps=6", *SAVED)
    status, output, _ = command(tmp_path / "log", *keys, callbacks=remover)
    newest = tmp_path / "run" / "checkpoints" / "iter_0000002"
    assert status == 1 and "Traceback" not in output, output
    (line,) = [line for line in output.splitlines() if line.startswith("relax-lightning:")]
    assert f"{tmp_path / 'run' / 'metrics.jsonl'} was removed or moved while" in line
    # It ended after that iteration, and what was learned is kept.
    assert f"the last checkpoint is {newest};" in line
    assert find_latest(newest.parent) == (2, newest)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "samples/iter_0000001.json", "config.yaml", ".timeline.json.partial"]
)
def test_a_full_disk_is_one_line(command, tmp_path, name):
    full = tmp_path / name
    keys = ("callbacks.metrics.samples_per_table=4", "callbacks.timeline={}", "trainer.max_steps=2")
    callbacks, reason = (), "No space left on device"
    if name == "metrics.jsonl":
        # It is read first, and the device that is always full has no end.
        callbacks = (("DiskFiller", {"hook": "on_iteration_start", "iteration": 1, "limit": 1500}),)
        reason = "File too large"
    else:
        full.parent.mkdir(exist_ok=True)
        full.symlink_to("/dev/full")
    status, output, _ = command(tmp_path, *keys, callbacks=callbacks)
    assert status == 1 and "Traceback" not in output, output
    (line,) = [
        line for line in output.splitlines() if line.startswith("relax-lightning: ") and "warning" not in line
    ]
    shown = "timeline.json" if "timeline" in name else name
    assert line == f"relax-lightning: {tmp_path / shown}: {reason}; make room there"


@pytest.fixture(scope="module")
def trained(fit, tmp_path_factory):
    """A checkpoint of a model from scratch, in float32."""
    folder = tmp_path_factory.mktemp("trained")
    fit(folder, "trainer.max_steps=1", *SAVED)
    return folder / "checkpoints" / "iter_0000001"


@pytest.fixture
def checkpoint(trained, tmp_path):
    """The same with a manifest that a test may change."""
    folder = shutil.copytree(trained, tmp_path / "iter_0000001")

    def change(**model):
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["model"] |= model
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return change


STALE = ("tf_model.h5", "model.onnx", "adapter_config.json", "pytorch_model.bin.index.json", "model.gguf", "x.msgpack",
         "model-00001-of-00009.safetensors", "optimizer.pt", "id_rsa", ".secret", "modeling_x.py")  # fmt: skip


def write_json(path, **values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


def write_tokenizer(folder, eos, template):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate([*"0123456789=", "<a>", "<b>"])}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), eos_token=eos, chat_template=template
    ).save_pretrained(folder)


def test_what_is_exported_is_the_trained_model_and_nothing_else(checkpoint, process_group, tmp_path):
    base, chat = tmp_path / "base", tmp_path / "chat"
    write_json(
        base / "config.json",
        model_type="qwen3",
        torch_dtype="bfloat16",
        eos_token_id=11,
        quantization_config={},
    )
    write_json(base / "generation_config.json", eos_token_id=[11, 3], temperature=0.6)
    write_tokenizer(base, "<a>", "base")
    write_tokenizer(chat, "<b>", "chat")
    for name in STALE:
        (base / name).write_text("x")
    (base / "vocab.txt").symlink_to("/etc/hostname")
    folder = checkpoint(hf_checkpoint=str(base), tokenizer=str(chat))
    export_checkpoint(folder, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names & {*STALE, "vocab.txt"} == set()
    assert {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"} <= names
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == {"model_type": "qwen3", "torch_dtype": "float32", "eos_token_id": 12}
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": 12, "temperature": 0.6}
    template = (tmp_path / "out" / "chat_template.jinja").read_text()
    assert template == "chat"
    assert {str(t.dtype) for t in load_file(tmp_path / "out" / "model.safetensors").values()} == {
        "torch.float32"
    }
    # Without a tokenizer of its own, the base's ids stand as they are; a hub's cache is links.
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    shutil.copytree(base, blobs, symlinks=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    export_checkpoint(checkpoint(hf_checkpoint=str(snapshot), tokenizer=None), tmp_path / "out2")
    assert json.loads((tmp_path / "out2" / "generation_config.json").read_text())["eos_token_id"] == [11, 3]
    assert (tmp_path / "out2" / "tokenizer.json").is_file() and not (tmp_path / "out2" / "vocab.txt").exists()


def test_an_export_imports_nothing_of_a_manifest_unless_it_is_trusted(
    checkpoint, process_group, tmp_path, monkeypatch
):
    (tmp_path / "theirs.py").write_text("import os\nos.mkdir('was_run')\nTokenizer = dict\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = checkpoint(tokenizer="theirs.Tokenizer")
    with pytest.raises(ValueError, match=r"names the tokenizer theirs\.Tokenizer, code that .* add --trust"):
        export_checkpoint(folder, tmp_path / "out")
    assert not Path("was_run").exists() and not list(tmp_path.glob("*out*"))
    export_checkpoint(folder, tmp_path / "out", trusted=True)
    assert Path("was_run").exists()
    with pytest.raises(ValueError, match=r"the tokenizer /nowhere/tok, which is gone"):
        export_checkpoint(checkpoint(tokenizer="/nowhere/tok"), tmp_path / "out2")
    huge = json.loads((folder / "manifest.json").read_text())["model"]["architecture"] | {"num_layers": 10**9}
    with pytest.raises(ValueError, match=r"describes another model than .*actor holds"):
        export_checkpoint(checkpoint(architecture=huge), tmp_path / "out2")
    path = folder / "actor" / "__0_0.distcp"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"{path}: wanted the checksum"):
        export_checkpoint(checkpoint(architecture=huge | {"num_layers": 1}), tmp_path / "out2")


def test_a_critic_is_not_exported(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "iter_0000001")
    shutil.rmtree(folder / "actor")
    (folder / "critic").rename(folder / "actor")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": {}}))
    with pytest.raises(ValueError, match=r"wanted an actor .*, got .*actor, which holds a critic"):
        export_checkpoint(folder, tmp_path / "out")


def test_two_runs_do_not_save_in_one_root(command, tmp_path):
    from relax_lightning.run.lock import run_lock

    root = tmp_path / "shared"
    (tmp_path / "linked").symlink_to(root)
    with run_lock(tmp_path / "one", {"model.actor.save": str(root)}):
        status, output, _ = command(
            tmp_path / "two", "trainer.max_steps=2", *SAVED, f"model.actor.save={tmp_path / 'linked'}"
        )
    (line,) = [line for line in output.splitlines() if "relax-lightning:" in line]
    assert status == 1 and (
        f"model.actor.save: wanted a folder that nobody trains in, got {tmp_path / 'linked'}, where process "
        f"{os.getpid()} on "
        in line
        and f", of the run in {tmp_path / 'one'}, trains" in line
    )
    assert not (root / TRACKER).exists()
