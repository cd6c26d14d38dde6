"""From files and overrides to a checked tree: what is merged, what is refused, and in which words."""

import os
import re
from pathlib import Path

import pytest

from relax_lightning.config import ConfigurationError, load, to_yaml
from relax_lightning.config.loader import read
from tests.config.good import write

REPOSITORY = Path(__file__).resolve().parents[2]


def problems(files, *overrides):
    with pytest.raises(ConfigurationError) as error:
        load(files, list(overrides))
    assert all("\n" not in line for line in error.value.problems)
    return error.value.problems


def test_files_are_merged_in_order_and_flags_come_last(tmp_path, good):
    one = write(
        tmp_path / "one.yaml", {"trainer": {"callbacks": [{"class_path": "a.A"}, {"class_path": "b.B"}]}}
    )
    two = write(
        tmp_path / "two.yaml", "trainer: {callbacks: [{class_path: c.C}]}\nmodel: {algorithm: {gamma: 0.9}}"
    )
    config = load(
        [good, one, two],
        [
            "--model.algorithm.gamma=0.5",
            "--model.actor.optimizer.lr=1e-3",
            "trainer.callbacks.0.init_args={size: 3}",
            "tracking.mlflow.run_name=007",
            "tracking.mlflow.tags.year=2024",
            "data.rollout.sampling.stop=['a: b', '}']",
            "data.rollout.reward.timeout_seconds=5",
            "callbacks.curves=null",
        ],
    )
    assert config.trainer.callbacks == [{"class_path": "c.C", "init_args": {"size": 3}}]
    assert config.model.algorithm.gamma == 0.5
    assert config.model.actor.optimizer.lr == 1e-3
    assert (config.tracking.mlflow.run_name, config.tracking.mlflow.tags) == ("007", {"year": "2024"})
    assert config.data.rollout.sampling.stop == ["a: b", "}"]
    assert (config.data.rollout.reward.name, config.data.rollout.reward.timeout_seconds) == (
        "exact_match",
        5.0,
    )
    assert isinstance(config.data.rollout.reward.timeout_seconds, float)
    assert config.callbacks.curves is None


def test_another_class_does_not_inherit_the_arguments_of_the_one_below(tmp_path, good):
    below = write(tmp_path / "below.yaml", {"data": {"rollout": {"engine": {"init_args": {"size": 1}}}}})
    engine = load([good, below], ["data.rollout.engine.class_path=my.Engine"]).data.rollout.engine
    assert (engine.class_path, engine.init_args) == ("my.Engine", {})
    reward = load([good], ["data.rollout.reward.class_path=my.Reward"]).data.rollout.reward
    assert (reward.name, reward.class_path) == (None, "my.Reward")
    below = "data.rollout.reward={name: reasoning_gym, init_args: {task: chain_sum}}"
    assert load([good], [below, "data.rollout.reward.num_workers=1"]).data.rollout.reward.init_args != {}
    assert load([good], [below, "data.rollout.reward=exact_match"]).data.rollout.reward.init_args == {}
    back = load([good], ["data.rollout.reward={class_path: my.Reward}", "data.rollout.reward=dapo_math"])
    assert (back.data.rollout.reward.name, back.data.rollout.reward.class_path) == ("dapo_math", None)


def test_variables_and_other_keys_are_filled_in_across_files(tmp_path, good, monkeypatch):
    monkeypatch.setenv("HERE", "some/where")
    monkeypatch.setenv("SIZE", "16")
    more = write(
        tmp_path / "more.yaml",
        "trainer: {default_root_dir: '${oc.env:HERE}/run'}\n"
        "model: {actor: {save: '${trainer.default_root_dir}/ckpt', tokenizer: '${oc.env:NOT_SET,own}'}}\n"
        "data: {rollout: {batch_size: '${oc.env:SIZE}', sampling: {max_new_tokens: '${data.rollout.batch_size}'}}}",
    )
    config = load([good, more], ["data.rollout.engine.init_args.max_batch_size='${seed_everything}'"])
    assert config.model.actor.save == "some/where/run/ckpt"
    assert config.model.actor.tokenizer == "own"
    assert config.data.rollout.batch_size == 16
    assert config.data.rollout.sampling.max_new_tokens == 16
    assert config.data.rollout.engine.init_args == {"max_batch_size": 1234}


def test_faults_of_variables_and_references_are_one_line_each(tmp_path, good, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    more = write(
        tmp_path / "more.yaml",
        "model: {actor: {hf_checkpoint: '${oc.env:NOT_SET}'}}\n"
        "trainer: {default_root_dir: '${trainer.nothing}'}\n"
        "data: {rollout: {train: {path: '${oc.env:NOT_SET}'}, batch_size: '${data.rollout.batch_size}'}}\n"
        "tracking: {mlflow: {run_name: '${oops'}}",
    )
    found = problems([good, more])
    assert len(found) == 5
    assert (
        "model.actor.hf_checkpoint: wanted the environment variable NOT_SET, got none; "
        "export NOT_SET=... or write ${oc.env:NOT_SET,DEFAULT}"
    ) in found
    text = "\n".join(found)
    assert "data.rollout.train.path: wanted the environment variable NOT_SET" in text
    assert "trainer.default_root_dir: wanted something that '${trainer.nothing}' can refer to" in text
    assert "data.rollout.batch_size: wanted" in text
    assert "tracking.mlflow.run_name: wanted ${key} or ${oc.env:NAME}, got '${oops'" in text


def test_missing_variables_are_kept_as_placeholders_when_asked(tmp_path, good, monkeypatch):
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR", "SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HERE", "/here")
    more = write(
        tmp_path / "more.yaml",
        "trainer: {default_root_dir: '${oc.env:EXP_DIR}/run'}\n"
        "model: {actor: {hf_checkpoint: '${oc.env:MODEL_DIR}/Qwen3.5-9B', save: '${trainer.default_root_dir}/actor',"
        " tokenizer: '${oc.env:MODEL_DIR,/models}/own', load: '${oc.env:HERE}/${oc.env:EXP_DIR}-${oc.env:DATA_DIR}'}}\n"
        "data: {rollout: {validation: {a: {path: '${oc.env:HERE,${oc.env:DATA_DIR}}/x'}}, sampling:"
        " {stop: ['${oc.env:DATA_DIR,${oc.env:EXP_DIR}/b}', '\\${oc.env:EXP_DIR}']}}}",
    )
    config, problems = read([good, more], [], keep_missing_variables=True)
    assert problems.found == []
    assert config.trainer.default_root_dir == "${EXP_DIR}/run"
    actor = config.model.actor
    assert (actor.hf_checkpoint, actor.save) == ("${MODEL_DIR}/Qwen3.5-9B", "${EXP_DIR}/run/actor")
    assert (actor.tokenizer, actor.load) == ("/models/own", "/here/${EXP_DIR}-${DATA_DIR}")
    assert config.data.rollout.validation["a"].path == "/here/x"
    assert config.data.rollout.sampling.stop == ["${EXP_DIR}/b", "${oc.env:EXP_DIR}"]
    assert {"MODEL_DIR", "DATA_DIR", "EXP_DIR"}.isdisjoint(os.environ)
    assert load([write(tmp_path / "printed.yaml", to_yaml(config))], []) == config

    more = write(
        tmp_path / "more.yaml", "data: {rollout: {batch_size: '${oc.env:SIZE}', shuffle: '${oops.x}'}}"
    )
    _, problems = read([good, more], [], keep_missing_variables=True)
    assert [key for key, _ in problems.found] == ["data.rollout.shuffle", "data.rollout.batch_size"]
    assert problems.found[1][1].startswith("wanted a whole number or null, got '${SIZE}'")
    _, problems = read([good, more], [])
    assert "wanted the environment variable SIZE, got none" in problems.lines()[0]


def test_the_reference_recipe_loads_with_its_three_variables(monkeypatch):
    recipe = str(REPOSITORY / "configs/qwen35-9b-8xgpu-ppo.yaml")
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert len(read([recipe], [])[1].found) == 6
    kept, problems = read([recipe], [], keep_missing_variables=True)
    assert problems.found == []
    assert kept.model.actor.hf_checkpoint == "${MODEL_DIR}/Qwen3.5-9B"
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.setenv(name, f"/{name}")
    config, problems = read([recipe], [])
    assert problems.found == []
    algorithm, rollout = config.model.algorithm, config.data.rollout
    assert (algorithm.gamma, algorithm.lambd, algorithm.value_clip) == (1.0, 0.95, 0.5)
    assert (algorithm.eps_clip, algorithm.eps_clip_high) == (0.2, 0.2)
    assert (algorithm.entropy_coef, algorithm.kl_coef, algorithm.old_log_probs) == (0.0, 0.0, "rollout")
    assert (config.model.actor.optimizer.lr, config.model.critic.optimizer.lr) == (1e-6, 1e-5)
    assert config.model.actor.optimizer.cpu_offload_fraction == 1.0
    assert config.callbacks.critic_only_warmup.num_steps == config.callbacks.lr_warmup.critic.num_iters == 5
    assert rollout.train.path == "/DATA_DIR/dapo-math-17k/dapo-math-17k.jsonl"
    assert rollout.validation["aime"].path == "/DATA_DIR/aime-2024/aime-2024.jsonl"
    assert (config.trainer.val_check_interval, rollout.reward.name) == (20, "dapo_math")
    assert rollout.engine.class_path == "SGLangEngine"
    assert config.cluster.resources == {
        "actor": (1, 8),
        "critic": (1, 8),
        "rollout": (1, 8),
        "advantages": (1, 0),
    }
    assert config.model.critic.save == "/EXP_DIR/qwen35-9b-8xgpu-ppo/critic"


def test_files_that_cannot_be_read(tmp_path):
    broken = write(tmp_path / "broken.yaml", "model: {\nx: [1")
    twice = write(tmp_path / "twice.yaml", "model: {}\nmodel: {}\n")
    a_list = write(tmp_path / "list.yaml", "- 1\n")
    found = problems([str(tmp_path / "absent.yaml"), broken, twice, a_list, str(tmp_path)], "a={")
    assert [line.partition(": ")[2].partition(",")[0] for line in found[:1]] == ["wanted a YAML file"]
    assert re.search(r"broken.yaml: wanted YAML, got line \d+, column \d+: .*; correct the file", found[1])
    assert "line 2, column 1: the key model twice" in found[2]
    assert "list.yaml: wanted a mapping of keys, got list" in found[3]
    assert "wanted a readable YAML file" in found[4]
    assert found[5].startswith("a: wanted YAML, got '{'")


def test_anchors_and_merge_keys_of_yaml(tmp_path, good):
    more = write(
        tmp_path / "more.yaml",
        "data: {rollout: {validation: {a: &a {path: y, label_key: z}, b: &b {<<: *a, path: w}, c: {<<: *b, path: v}}}}",
    )
    sets = load([good, more], []).data.rollout.validation
    assert [(s.path, s.label_key) for s in sets.values()] == [("y", "z"), ("w", "z"), ("v", "z")]


def test_an_empty_file_and_empty_sections_mean_the_defaults(tmp_path, good):
    empty = write(tmp_path / "empty.yaml", "")
    commented = write(tmp_path / "commented.yaml", "model:\n  critic:\n    optimizer:\ncallbacks:\n")
    assert load([empty, good, commented], []) == load([good], [])


def test_required_keys_are_named():
    found = problems([])
    assert [line.partition(":")[0] for line in found] == [
        "data.rollout.train",
        "data.rollout.batch_size",
        "data.rollout.reward",
    ]
    assert all("wanted a value, got nothing; add " in line for line in found)


def test_all_faults_come_at_once_each_with_key_value_wanted_and_change(good):
    found = problems(
        [good],
        "model.algorithm.gama=0.9",
        "model.algorithm.lambd=high",
        "model.algorithm.eps_clip=true",
        "model.algorithm.value_clip=-1",
        "model.algorithm.num_ppo_epochs=1.5",
        "data.rollout.sampling.max_new_tokens=1e3",
        "data.rollout.sampling.temperature='1.0'",
        "data.rollout.sampling.stop=text",
        "data.rollout.shuffle=1",
        "model.actor.load=[a]",
        "model.actor.optimizer.betas=[0.9]",
        "model.actor.architecture={num_layers: 2, hidden_size: 8}",
        "trainer=3",
        "cluster.resources.actor=[1, x]",
    )
    assert set(found) == {
        "model.algorithm.gama: wanted a known key, got 'gama' with the value 0.9; "
        "did you mean `model.algorithm.gamma`?",
        "model.algorithm.lambd: wanted a number, got 'high'; change it, or leave it out for the default, 1.0",
        "model.algorithm.eps_clip: wanted a number, got true; change it, or leave it out for the default, 0.2",
        "model.algorithm.value_clip: wanted a number above 0, got -1.0; "
        "change it, or leave it out for the default, 0.2",
        "model.algorithm.num_ppo_epochs: wanted a whole number, got 1.5; "
        "change it, or leave it out for the default, 1",
        "data.rollout.sampling.max_new_tokens: wanted a whole number, got 1000.0; write 1000",
        "data.rollout.sampling.temperature: wanted a number, got '1.0'; remove the quotes",
        "data.rollout.sampling.stop: wanted a list, got 'text'; change it",
        "data.rollout.shuffle: wanted true or false, got 1; change it, or leave it out for the default, true",
        "model.actor.load: wanted text or null, got ['a']; change it, or leave it out for the default, null",
        "model.actor.optimizer.betas: wanted a list of 2 values, each a number, got [0.9]; "
        "change it, or leave it out for the default, [0.9, 0.98]",
        "model.actor.architecture.num_attention_heads: wanted a value, got nothing; add it: number of query heads",
        "model.actor.architecture.vocab_size: wanted a value, got nothing; "
        "add it: rows of the embedding; at least the tokenizer's size",
        "trainer: wanted a mapping with the keys max_steps, default_root_dir, val_check_interval, "
        "num_sanity_val_steps, val_before_training, log_every_n_steps, callbacks, limit_val_batches, "
        "fast_dev_run, profiler, "
        "enable_progress_bar, got 3; change it",
        "cluster.resources.actor.1: wanted a whole number, got 'x'; change it",
    }


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("model.algorithm.kl_coeff", "model.algorithm.kl_coef"),
        ("model.algorithm.clip_range", "model.algorithm.eps_clip"),
        ("model.algorithm.eps_clip_low", "model.algorithm.eps_clip"),
        ("model.algorithm.gae_lambda", "model.algorithm.lambd"),
        ("model.algorithm.ppo_epochs", "model.algorithm.num_ppo_epochs"),
        ("model.actor.learning_rate", "model.actor.optimizer.lr"),
        ("model.critic.learning_rate", "model.critic.optimizer.lr"),
        ("data.rollout.max_response_length", "data.rollout.sampling.max_new_tokens"),
        ("data.train_batch_size", "data.rollout.batch_size"),
        ("critic-lr", "model.critic.optimizer.lr"),
        ("num-critic-only-steps", "callbacks.critic_only_warmup.num_steps"),
        ("gamma", "model.algorithm.gamma"),
        ("model.lr", "model.actor.optimizer.lr"),
        ("data.rollout.samplng", "data.rollout.sampling"),
        ("callbacks.checkpoint.keep_lst", "callbacks.checkpoint.keep_last"),
        ("data.rollout.engine.mem_fraction_static", "data.rollout.engine.init_args.mem_fraction_static"),
        ("data.rollout.validation.mine.max_prompt_token", "data.rollout.validation.mine.max_prompt_tokens"),
        ("trainer.limit_train_batches", "trainer.limit_val_batches"),
    ],
)
def test_an_unknown_key_is_answered_with_ours(good, key, ours):
    found = problems([good], "data.rollout.validation.mine.path=y.jsonl", f"{key}=1")
    assert [
        line for line in found if line.startswith(f"{key}: ") and f"did you mean `{ours}`?" in line
    ] == found


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("devices", "cluster.resources"),
        ("num_nodes", "cluster.resources"),
        ("accelerator", "cluster.accelerator"),
        ("precision", "model.dtype"),
        ("strategy", "strategy.offload"),
        ("use_distributed_sampler", "cluster.resources"),
        ("max_epochs", "trainer.max_steps"),
        ("logger", "tracking.mlflow"),
        ("gradient_clip_val", "model.actor.optimizer.clip_grad"),
        ("accumulate_grad_batches", "model.micro_batch_size or model.max_tokens_per_microbatch"),
    ],
)
def test_trainer_keys_that_are_derived_name_ours(good, key, ours):
    (line,) = problems([good], f"trainer.{key}=1")
    assert line.startswith(f"trainer.{key}: wanted nothing, got 1; this is ")
    assert f": use {ours}" in line


def test_trainer_keys_of_lightning_that_are_accepted(good):
    config = load(
        [good],
        [
            "trainer.limit_val_batches=0.5",
            "trainer.fast_dev_run=true",
            "trainer.profiler=simple",
            "trainer.enable_progress_bar=false",
        ],
    )
    trainer = config.trainer
    assert (trainer.limit_val_batches, trainer.fast_dev_run) == (0.5, True)
    assert (trainer.profiler, trainer.enable_progress_bar) == ("simple", False)


def test_users_own_classes_are_checked_for_their_shape_only(good):
    mine = "{class_path: not.there.Mine, init_args: {anything: [1, {a: b}]}}"
    config = load(
        [good], [f"trainer.callbacks=[{mine}]", f"data.rollout.reward={mine}", f"data.rollout.engine={mine}"]
    )
    assert config.trainer.callbacks[0]["init_args"] == {"anything": [1, {"a": "b"}]}
    assert config.data.rollout.engine.class_path == "not.there.Mine"
    (line,) = problems([good], "trainer.callbacks=[{class_path: a.A, size: 3}]")
    assert line.startswith("trainer.callbacks.0: wanted {class_path: TEXT, init_args: MAPPING}, got ")
    (line,) = problems([good], "data.rollout.train={path: x, class_path: a.B}")
    assert line.startswith("data.rollout.train.path: wanted one of path and class_path, got both")
    (line,) = problems([good], "data.rollout.engine.init_args=3")
    assert line.startswith("data.rollout.engine.init_args: wanted a mapping, got 3")


def test_names_of_validation_sets_are_those_of_metrics(good):
    (line,) = problems([good], "data.rollout.validation={a@b: {path: y}, a-1_b.c: {path: y}}")
    assert line == (
        "data.rollout.validation.a@b: wanted a name of letters, digits, _, . and -, got 'a@b'; rename the set"
    )


def test_keys_of_validation_sets_are_refused_in_the_training_set(good):
    found = problems(
        [good],
        "data.rollout.train.sampling={temperature: 0}",
        "data.rollout.train.n_samples_per_prompt=2",
        "data.rollout.train.correct_reward=0.5",
    )
    assert [line.partition(":")[0] for line in found] == [
        "data.rollout.train.sampling",
        "data.rollout.train.n_samples_per_prompt",
        "data.rollout.train.correct_reward",
    ]
