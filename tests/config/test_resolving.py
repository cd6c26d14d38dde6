"""What follows from other keys is filled in, what is given stays, and the result is a configuration again."""

import pytest
import yaml
from sqlalchemy import make_url

from relax_lightning.config import Config, PromptsConfig, load, resolve, to_dict, to_yaml
from relax_lightning.config.loader import following_run_folder, mlflow_uri
from tests.config.checking import only
from tests.config.good import write


def test_resolving_fills_every_null_that_follows(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolve(
        load(
            [good],
            [
                "model.actor.load=old",
                "model.actor.optimizer.lr=1e-3",
                "model.actor.parallel.tensor=2",
                "model.critic.optimizer.weight_decay=0",
                "model.algorithm.num_ppo_epochs=3",
                "data.rollout.sampling.temperature=0.7",
                "data.rollout.validation={a: {path: y}, b: {path: y, sampling: {temperature: 0}}}",
                "trainer.default_root_dir=here",
            ],
        )
    )
    actor, critic, algorithm = config.model.actor, config.model.critic, config.model.algorithm
    assert (actor.save, critic.save) == ("here/checkpoints", "here/checkpoints")
    assert (actor.tokenizer, critic.load, critic.parallel) == ("some/model", "old", actor.parallel)
    assert (critic.optimizer.lr, critic.optimizer.weight_decay, critic.optimizer.eps) == (1e-3, 0.0, 1e-8)
    assert (algorithm.num_critic_epochs, algorithm.lambd_critic, algorithm.eps_clip_high) == (3, 1.0, 0.2)
    assert [s.sampling.temperature for s in config.data.rollout.validation.values()] == [0.7, 0.0]
    assert config.tracking.mlflow.uri == f"sqlite:///{tmp_path}/here/mlruns.db"
    assert resolve(config) == config


def test_what_is_given_is_left_alone_by_resolving(good):
    given = [
        "model.actor.save=a",
        "model.critic.save=c",
        "tracking.mlflow.uri=http://x",
        "model.algorithm.lambd_critic=0.5",
    ]
    config = resolve(load([good], given))
    assert (config.model.actor.save, config.model.critic.save) == ("a", "c")
    assert (config.tracking.mlflow.uri, config.model.algorithm.lambd_critic) == ("http://x", 0.5)
    assert resolve(load([good], ["tracking.mlflow=null"])).tracking.mlflow is None
    assert (
        resolve(load([good], ["model.algorithm.lambd_length_alpha=0.1"])).model.algorithm.lambd_critic is None
    )


def test_kl_without_a_reference_is_switched_off_with_one_warning(good):
    config = load([good], ["model.algorithm.kl_coef=0.1", "model.algorithm.use_kl_loss=true"])
    with pytest.warns(UserWarning, match="wanted model.reference, got none: KL is switched off") as caught:
        resolved = resolve(config)
    assert len(caught) == 1
    assert (resolved.model.algorithm.kl_coef, resolved.model.algorithm.use_kl_loss) == (0.0, False)
    kept = resolve(load([good], ["model.algorithm.kl_coef=0.1", "model.reference={}"]))
    assert (kept.model.algorithm.kl_coef, kept.model.reference.hf_checkpoint) == (0.1, "some/model")


def test_the_resolved_yaml_reads_back_to_the_same(good, tmp_path):
    config = resolve(
        load(
            [good],
            [
                "model.actor.optimizer.lr=1e-7",
                "data.rollout.sampling.stop=['\\${literal}', 'yes', '1e-3', '???', ' #x']",
                "data.rollout.validation.mine={path: y, n_samples_per_prompt: 4}",
                "trainer.callbacks=[{class_path: a.B, init_args: {x: [1, null]}}]",
                "cluster={}",
            ],
        )
    )
    assert config.data.rollout.sampling.stop[0] == "${literal}"
    assert load([write(tmp_path / "config.yaml", to_yaml(config))], []) == config


def test_plain_trees_hold_no_tuples_and_no_dataclasses():
    tree = to_dict(Config())
    assert tree == yaml.safe_load(yaml.safe_dump(tree))
    assert to_dict(PromptsConfig(path="x"))["path"] == "x"


def test_what_follows_the_run_folder_is_null_in_its_file(good, tmp_path):
    config = resolve(load([good], ["trainer.default_root_dir=runs/a"]))
    file = write(tmp_path / "config.yaml", to_yaml(following_run_folder(config)))
    assert resolve(load([file], [])) == config
    other = resolve(load([file], ["trainer.default_root_dir=runs/b"]))
    assert other == resolve(load([good], ["trainer.default_root_dir=runs/b"]))
    for given in ("model.actor.save=a", "model.critic.save=c", "tracking.mlflow.uri=http://x"):
        config = resolve(load([good], [given]))
        assert resolve(following_run_folder(config)) == config
        assert given.partition("=")[2] in to_yaml(following_run_folder(config))
    assert following_run_folder(resolve(load([good], ["tracking.mlflow=null"]))).tracking.mlflow is None


@pytest.mark.parametrize(
    "name",
    [
        "q?lr=1",
        "pct%41b",
        "100%",
        "a#b",
        "a&b;c",
        "a b",
        "-x",
        "a:b@c",
        "a\\b",
        "ä🧬",
        "'\"`$",
        "...",
        "x" * 255,
    ],
)
def test_the_database_lies_in_the_run_folder_whatever_its_name(tmp_path, name):
    uri = mlflow_uri(tmp_path / name)
    assert make_url(uri).database == str(tmp_path / name / "mlruns.db")
    assert uri == f"sqlite:///{tmp_path / name / 'mlruns.db'}" or {*"%?#"} & {*name}


@pytest.mark.parametrize(
    "name", ["a\nb", "a\tb", "a\rb", "a\x7fb", "a\u2028b", "x" * 256, "ä" * 128, "a/" * 2000]
)
def test_a_run_folder_that_no_disk_or_line_can_hold_is_refused(base, name):
    line = only(base, f"trainer.default_root_dir={name}")
    assert line.startswith("trainer.default_root_dir: wanted ")
    assert len(line) < 1000 and "\n" not in line
