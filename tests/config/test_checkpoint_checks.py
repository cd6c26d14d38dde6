"""Checks of what a run loads, before anything is read: roots, halves of a pair, and `--ckpt_path`."""

from relax_lightning.checkpoints.folders import TRACKER
from tests.config.checking import found, only


def test_a_pair_to_load_must_agree(base, tmp_path, make_checkpoint):
    loads = ["model.actor.load=actor", "model.critic.load=critic"]
    line = only(base, *loads, severity="warning")
    assert line.startswith(
        f"model.actor.load: wanted a checkpoint, got no {TRACKER} in actor: both roles start from"
    )
    make_checkpoint("actor", 12, roles=("actor",))
    assert only(base, *loads) == (
        f"model.actor.load: wanted one iteration for actor and critic, got actor iteration 12 in actor, "
        f"critic nothing (no {TRACKER}) in critic; load a pair that was saved together, or remove both load keys"
    )
    make_checkpoint("critic", 9, roles=("critic",))
    assert "got actor iteration 12 in actor, critic iteration 9 in critic" in only(base, *loads)
    make_checkpoint("critic", 12, roles=("critic",))
    assert found(base, *loads) == []
    (tmp_path / "actor" / "iter_0000012" / "actor").rmdir()
    assert only(base, *loads) == (
        "model.actor.load: wanted the actor's half in actor/iter_0000012, got none; load a root that holds both halves"
    )
    (tmp_path / "critic" / TRACKER).write_text("twelve")
    assert "wanted an iteration or `release`, got 'twelve'" in only(base, *loads)


def test_one_root_holds_both_halves(base, tmp_path, make_checkpoint):
    make_checkpoint("root", 12)
    assert found(base, "model.actor.load=root") == []
    assert "give its parent, root, where" in only(base, "model.actor.load=root/iter_0000012")
    for role in ("actor", "critic"):
        assert "give the root, root, where" in only(base, f"model.actor.load=root/iter_0000012/{role}")
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "metadata.json").write_text("{}")
    for other in ("moved", "x.jsonl"):
        assert f"wanted a checkpoint root, got '{other}'" in only(base, f"model.actor.load={other}")
    make_checkpoint("root", 15, roles=("actor",))
    line = only(base, "model.actor.load=root")
    assert line.startswith("model.critic.load: wanted the critic's half in root/iter_0000015, got none")
    (tmp_path / "root" / TRACKER).write_text("18")
    lines = [text for _, text in found(base, "model.actor.load=root")]
    assert lines[0].startswith("model.actor.load: wanted root/iter_0000018, as ")


def test_a_plain_megatron_release_loads_weights(base, tmp_path):
    (tmp_path / "plain" / "release").mkdir(parents=True)
    (tmp_path / "plain" / TRACKER).write_text("release")
    assert found(base, "model.actor.load=plain") == []


def test_ckpt_path(base, make_checkpoint):
    assert found(base, resume="auto") == []
    assert only(base, resume="nowhere") == (
        "--ckpt_path: wanted a complete checkpoint (with manifest.json), got 'nowhere'; "
        "give `auto`, a checkpoint root or one of its iter_ folders"
    )
    make_checkpoint("root", 12)
    assert found(base, resume="root") == found(base, resume="root/iter_0000012") == []
    assert only(base, "model.actor.load=root", resume="root") == (
        "--ckpt_path: wanted only one of --ckpt_path and model.actor.load / model.critic.load, got 'root'; remove one"
    )
    make_checkpoint("half", 3, roles=("actor",))
    line = only(base, "model.actor.save=half", resume="auto")
    assert line.startswith("--ckpt_path: wanted an iteration with actor and critic under half, got none")


def test_auto_that_finds_nothing(base, tmp_path, make_checkpoint):
    validation = "data.rollout.validation={mine: {path: x.jsonl}}"
    end = "; give --ckpt_path DIR, or leave it out to evaluate the weights that the configuration begins with"
    got = "--ckpt_path: wanted a checkpoint in runs/default/checkpoints, got none"
    assert only(base, validation, resume="auto", subcommand="validate") == got + end
    assert found(base, validation, subcommand="validate") == []
    for number in (2, 10):
        make_checkpoint(f"runs/default/checkpoints.{number}", 3)
    (tmp_path / "runs" / "default" / "checkpoints.old").mkdir()
    aside = "; those of an earlier run are in runs/default/checkpoints.10"
    line = only(base, resume="auto", severity="warning")
    assert line == f"{got}: the run starts fresh{aside}"
    assert only(base, validation, resume="auto", subcommand="validate") == got + aside + end
    make_checkpoint("runs/default/checkpoints", 1)
    assert found(base, resume="auto") == found(base, validation, resume="auto", subcommand="validate") == []
