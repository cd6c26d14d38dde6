"""The JSON Schema is held against the loader: key by key, what one of the two refuses the other refuses too."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from relax_lightning.config import Config, load, resolve, to_dict
from relax_lightning.config.building import Problems, build
from relax_lightning.config.reading import with_full_reward
from relax_lightning.config.schema import json_schema
from relax_lightning.config.sections import entries, union_members
from relax_lightning.config.yaml_text import parse_yaml

REPOSITORY = Path(__file__).resolve().parents[2]

PROBES = [
    None,
    True,
    0,
    1,
    3,
    -1,
    0.5,
    2.5,
    "word",
    "0.5",
    "auto",
    "",
    [],
    [1],
    ["a"],
    {},
    {"x": 1},
    {"x": "a"},
]

# Here the loader weighs two values against each other, or has a rule of its own.
LESS_STRICT = {
    "trainer.limit_val_batches",
    "model.actor.architecture",
    "model.actor.architecture.kv_channels",
    "model.actor.architecture.num_query_groups",
    "model.actor.parallel.sequence",
    "model.critic.parallel.sequence",
    "data.rollout.train",
    "data.rollout.train.path",
    "data.rollout.validation.<name>.path",
    "data.rollout.sampling.top_k",
    "data.rollout.train.sampling.top_k",
    "data.rollout.validation.<name>.sampling.top_k",
    "data.rollout.reward",
    "data.rollout.reward.name",
    "data.rollout.engine.init_args",
    "data.rollout.train.class_path",
    "data.rollout.validation.<name>.class_path",
    "data.rollout.reward.class_path",
    "data.rollout.function",
    "data.rollout.function.class_path",
    "callbacks.health_check.ranges",
    "trainer.fast_dev_run",
}


@pytest.fixture(scope="module")
def schema():
    made = json.loads(json.dumps(json_schema()))
    Draft202012Validator.check_schema(made)
    return Draft202012Validator(made)


def nested(key, value):
    parent, _, name = key.rpartition(".")
    tree = {name: value}
    if parent == "model.actor.architecture":
        sizes = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
        tree = dict.fromkeys(sizes, 1) | tree
    for name in reversed(parent.replace("<name>", "mine").split(".") if parent else []):
        tree = {name: tree}
    return tree


def loader_refuses(key, value):
    problems = Problems()
    build(Config, with_full_reward(nested(key, value)), "", problems)
    return problems.concern(key.replace("<name>", "mine"))


def test_every_shipped_configuration_is_valid(schema, monkeypatch):
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.setenv(name, f"/{name}")
    shipped = [file for folder in ("configs", "examples") for file in (REPOSITORY / folder).glob("*.yaml")]
    assert {file.name for file in shipped} >= {"digits-cpu.yaml", "smollm2-chain-sum.yaml", "own_model.yaml"}
    for file in shipped:
        assert schema.is_valid(parse_yaml(file.read_text())), file
    for file in (REPOSITORY / "configs").glob("*.yaml"):
        assert schema.is_valid(to_dict(resolve(load([str(file)], [])))), file
    assert schema.is_valid(to_dict(Config()))
    assert schema.is_valid(None)


def test_schema_and_loader_agree_key_by_key(schema):
    by_loader_alone, num_by_both = set(), 0
    for key in entries():
        for value in PROBES:
            by_loader, by_schema = loader_refuses(key, value), not schema.is_valid(nested(key, value))
            assert by_loader or not by_schema, f"the schema alone refuses {key}: {value!r}"
            num_by_both += by_schema
            by_loader_alone |= {key} if by_loader and not by_schema else set()
    assert by_loader_alone == LESS_STRICT
    assert num_by_both > 1000


def test_no_number_may_be_one_that_is_none():
    numbers = [key for key, entry in entries().items() if float in union_members(entry.kind)]
    assert len(numbers) > 35
    for key in numbers:
        for value in (float("nan"), float("inf")):
            assert loader_refuses(key, value), f"{key}: {value}"


def test_an_interpolation_may_stand_for_any_value(schema):
    for key in entries():
        for text in ("${seed_everything}", "${oc.env:SIZE,8}"):
            assert schema.is_valid(nested(key, text)), key
    assert not schema.is_valid("${seed_everything}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"modle": {}},
        {"model": {"algorithm": {"gama": 1}}},
        {"data": {"rollout": {"validation": {"mine": {"path": "x", "pth": "y"}}}}},
        {"callbacks": {"curves": {"dpi": 100}}},
        {"model": {"algorithm": {"gamma": "high"}}},
        {"model": {"algorithm": {"gamma": 1.1}}},
        {"model": {"algorithm": {"truncation": "drop"}}},
        {"model": {"actor": {"optimizer": {"betas": [0.9]}}}},
        {"model": {"actor": {"hf_checkpoint": 3}}},
        {"data": {"rollout": {"sampling": {"stop": "text"}}}},
        {"data": {"rollout": {"sampling": {"stop_token_ids": ["a"]}}}},
        {"cluster": {"resources": {"actor": [1, 2, 3]}}},
        {"tracking": {"mlflow": {"tags": {"a": 1}}}},
        {"trainer": {"fast_dev_run": "yes"}},
    ],
)
def test_what_is_wrong_is_not_valid(schema, wrong):
    assert not schema.is_valid(wrong)
    problems = Problems()
    build(Config, wrong, "", problems)
    assert problems.found


def test_open_mappings_take_anything(schema):
    anything = {"any": [1, {"thing": None}]}
    for key in ("train", "reward", "engine"):
        assert schema.is_valid({"data": {"rollout": {key: {"class_path": "a.B", "init_args": anything}}}})


def test_what_an_editor_shows():
    made = json_schema()["$defs"]
    shown = made["AlgorithmConfig"]["properties"]["eps_clip"]
    assert (shown["default"], shown["exclusiveMinimum"]) == (0.2, 0)
    assert shown["description"].startswith("lower margin of the probability ratio")
    words = made["ActorConfig"]["properties"]["recompute"]["anyOf"][0]
    assert words == {"enum": ["selective", "full", None]}
    assert made["StrategyConfig"]["properties"]["offload"]["anyOf"][0]["enum"] == ["auto", "always", "never"]
    assert made["OptimizerConfig"]["properties"]["betas"]["default"] == [0.9, 0.98]
    assert "default" not in made["RolloutConfig"]["properties"]["batch_size"]
    assert made["ModelConfig"]["properties"]["reference"]["default"] is None
