"""`plan` refuses what `fit` refuses, as far as neither torch nor a GPU is needed to tell."""

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from relax_lightning.config import load
from relax_lightning.config.architecture import read_architecture
from relax_lightning.plan import check

WHOLE = {
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 16,
}
RECIPE = str(Path(__file__).resolve().parents[2] / "configs/qwen35-9b-8xgpu-ppo.yaml")


@pytest.fixture
def refused(base):
    """What `fit` refuses, after a look that `plan` refuses the same."""

    def run(*more, **options):
        said = [
            [
                str(p)
                for p in check(load([], [*base, *more]), subcommand=name, **options)
                if p.severity == "error"
            ]
            for name in ("fit", "plan")
        ]
        assert said[0] == said[1]
        return said[0]

    return run


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"model_type": "qwen3_5"}, "model_type qwen3_5"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 2.0}}, "differs from Llama 3's"),
    ],
)
def test_models_that_cannot_be_built(refused, make_model, described, words):
    make_model("other", **described)
    (line,) = refused("model.actor.hf_checkpoint=other")
    assert line.startswith("model.actor.hf_checkpoint: ")
    assert words in line


def test_weights_beside_an_incomplete_description(refused, make_model):
    (Path(make_model("other")) / "model.safetensors").touch()
    (line,) = refused("model.actor.hf_checkpoint=other")
    assert "wanted num_hidden_layers, hidden_size, intermediate_size, num_attention_heads, vocab_size" in line


def test_packages_that_are_not_installed(refused, monkeypatch):
    find = importlib.util.find_spec
    gone = ("sglang", "ray")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in gone else find(name, *more)
    )
    (line,) = refused("data.rollout.engine.class_path=SGLangEngine")
    assert line.startswith(
        "data.rollout.engine.class_path: wanted the package sglang for SGLangEngine, got none"
    )
    assert refused("data.rollout.engine={class_path: SGLangEngine, init_args: {url: http://x}}") == []
    lines = refused(
        "cluster={resources: {actor: [1, 1], critic: [1, 1], rollout: [1, 1], advantages: [1, 0]}, accelerator: cpu}"
    )
    assert any(line.startswith("cluster: wanted the packages of the extra ray") for line in lines)


def test_more_gpus_than_there_are(refused):
    lines = refused(
        "cluster={resources: {actor: [1, 99], critic: [1, 99], rollout: [1, 99], advantages: [1, 0]}}"
    )
    assert any("all that this machine has" in line for line in lines)


def test_checkpoints_of_another_model(refused, make_model, make_checkpoint):
    make_model("whole", **WHOLE)
    model = "model.actor.hf_checkpoint=whole"
    folder = make_checkpoint("root", 3)
    ours = asdict(read_architecture("whole"))
    for architecture, wrong in ((ours, False), (ours | {"hidden_size": 16}, True)):
        manifest = {"iteration": 3, "model": {"architecture": architecture, "distributed_optimizer": False}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        for role in ("actor", "critic"):
            (folder / role / "metadata.json").write_text("{}")
        distributed = "model.actor.optimizer.distributed=false"
        for key, more, options in (
            ("--ckpt_path", (), {"resume": str(folder)}),
            ("model.actor.warm_start", ("model.actor.warm_start=root", "model.critic.warm_start=null"), {}),
            ("model.reference", ("model.reference.load=root", "model.algorithm.kl_coef=0.1"), {}),
        ):
            lines = refused(model, distributed, *more, **options)
            ours_alone = [line for line in lines if "holds another model" in line]
            assert [line.split(": ")[0] for line in ours_alone][:1] == ([key] if wrong else []), lines


def test_the_recipe_is_accepted_elsewhere_with_a_warning_and_refused_here(make_model, monkeypatch, tmp_path):
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    config = load([RECIPE], [])
    elsewhere = check(config, check_files=False, subcommand="plan")
    assert {p.severity for p in elsewhere} == {"warning"}
    (said,) = [p for p in elsewhere if p.key == "model.actor.hf_checkpoint"]
    assert "training its family is not available in this version, and fit refuses it" in said.message
    make_model(tmp_path / "Qwen3.5-9B", model_type="qwen3_5")
    for subcommand in ("plan", "fit"):
        errors = [p.key for p in check(config, subcommand=subcommand) if p.severity == "error"]
        assert "model.actor.hf_checkpoint" in errors
