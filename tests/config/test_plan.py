"""Checks over a whole configuration: each finding names its key, what was wanted and what to change."""

import importlib.util
import os
from pathlib import Path

import pytest

import relax_lightning
from relax_lightning.config import Config, load
from relax_lightning.plan import check, optimizer_steps
from tests.config.checking import found, only

SCRATCH = (
    "{num_layers: 1, hidden_size: 8, num_attention_heads: 2, vocab_size: 9, max_position_embeddings: 600}"
)


def test_the_shipped_configurations_are_sound():
    files = sorted((Path(relax_lightning.__file__).parent.parent / "configs").glob("*-cpu.yaml"))
    files += sorted((Path(relax_lightning.__file__).parent.parent / "configs").glob("smollm2*.yaml"))
    assert files
    for file in files:
        assert check(load([str(file)], []), check_files=False) == [], file


def test_a_sound_configuration_has_no_problems(base):
    assert found(base) == []
    assert found(base, "data.rollout.engine.class_path=SGLangEngine", "strategy.verify_publish=true") == []
    assert (
        found([*base[:1], *base[2:]], f"model.actor.architecture={SCRATCH}", "model.actor.tokenizer=a.B")
        == []
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            ["model.global_batch_size=3"],
            "model.global_batch_size: wanted a divisor of batch_size * n_samples_per_prompt = 8, got 3; "
            "change one of the three",
        ),
        (
            ["model.global_batch_size=4", "model.micro_batch_size=3"],
            "model.micro_batch_size: wanted a divisor of the 4 samples of an optimizer step, got 3; change it",
        ),
        (
            ["model.micro_batch_size=2", "model.max_tokens_per_microbatch=100"],
            "model.micro_batch_size: wanted only one of micro_batch_size and max_tokens_per_microbatch, "
            "got 'both'; remove one",
        ),
        (
            ["callbacks.critic_only_warmup.num_steps=11"],
            "callbacks.critic_only_warmup.num_steps: wanted at most trainer.max_steps = 10, got 11; "
            "lower it or train longer",
        ),
        (
            # 10 - 4 iterations of 2 epochs * 8 / 4 steps.
            [
                "callbacks.critic_only_warmup.num_steps=4",
                "callbacks.lr_warmup.actor.num_iters=25",
                "model.algorithm.num_ppo_epochs=2",
                "model.global_batch_size=4",
            ],
            "callbacks.lr_warmup.actor.num_iters: wanted at most the actor's 24 optimizer steps "
            "(6 iterations of 4), got 25; lower it or train longer",
        ),
        (
            ["callbacks.lr_warmup.critic.num_iters=31", "model.algorithm.num_critic_epochs=3"],
            "callbacks.lr_warmup.critic.num_iters: wanted at most the critic's 30 optimizer steps "
            "(10 iterations of 3), got 31; lower it or train longer",
        ),
        (
            ["data.rollout.sampling.max_new_tokens=1000", "data.rollout.train.max_prompt_tokens=25"],
            "data.rollout.sampling.max_new_tokens: wanted prompt + response of at most 1024 tokens, the model's "
            "context, got 25 + 1000; lower it or data.rollout.train.max_prompt_tokens",
        ),
        (
            ["data.rollout.validation={mine: {path: x.jsonl, sampling: {max_new_tokens: 1025}}}"],
            "data.rollout.validation.mine.sampling.max_new_tokens: wanted prompt + response of at most 1024 "
            "tokens, the model's context, got 1 + 1025; lower it",
        ),
        (
            ["data.rollout.sampling.top_p=0.9"],
            "data.rollout.sampling.top_p: wanted top_p: 1.0 with the engine's log-probs as the ratio's base, "
            "got 0.9; sample from the whole distribution, or set model.algorithm.old_log_probs: recompute",
        ),
        (
            ["data.rollout.sampling.top_k=5"],
            "data.rollout.sampling.top_k: wanted top_k: -1 with the engine's log-probs as the ratio's base, "
            "got 5; sample from the whole distribution, or set model.algorithm.old_log_probs: recompute",
        ),
        (
            ["data.rollout.reward=dapo_math", "data.rollout.train.label_key=null"],
            "data.rollout.train.label_key: wanted a column, since the reward dapo_math compares with a label, "
            "got null; name it",
        ),
        (
            ["data.rollout.sampling.temperature=0"],
            "data.rollout.sampling.temperature: wanted a temperature above 0 for training, got 0; "
            "greedy sampling is for validation sets only",
        ),
        (
            ["model.algorithm.advantage_estimator=grpo"],
            "model.algorithm.advantage_estimator: wanted `ppo` (GAE with a critic), the only one supported, "
            "got 'grpo'; change it or leave it out",
        ),
        (
            ["data.rollout.reward=exact_mach"],
            "data.rollout.reward.name: wanted one of dapo_math, exact_match, reasoning_gym, got 'exact_mach'; "
            "did you mean `exact_match`?; a reward of your own goes to class_path",
        ),
        (
            ["data.rollout.engine.class_path=MegatronEngin"],
            "data.rollout.engine.class_path: wanted MegatronEngine, SGLangEngine or an import path, "
            "got 'MegatronEngin'; did you mean `MegatronEngine`?",
        ),
        (
            ["model.actor.parallel.tensor=2"],
            "model.actor.parallel.tensor: wanted 1 without a cluster, got 2; "
            "one process is all there is; add a cluster, or start ranks with torchrun",
        ),
        (
            ["model.critic.parallel.pipeline=2"],
            "model.critic.parallel.pipeline: wanted 1 without a cluster, got 2; "
            "one process is all there is; add a cluster, or start ranks with torchrun",
        ),
        (
            ["model.bridge=megatron_bridge"],
            "model.actor.hf_checkpoint: wanted megatron-bridge, transformer-engine, flash-linear-attention to load "
            "model_type llama, got none of them; install them where Transformer Engine runs, or use a dense Llama, "
            "Qwen2 or Qwen3",
        ),
        (
            [
                "model.actor.optimizer.lr=1e-3",
                "model.critic.optimizer.lr=1e-5",
                "model.actor.optimizer.min_lr=1e-4",
                "model.actor.optimizer.decay=linear",
            ],
            "model.critic.optimizer.min_lr: wanted at most the critic's lr, 1e-05, got 0.0001; lower it or raise lr",
        ),
        (
            ["trainer.max_steps=0"],
            "trainer.max_steps: wanted a number of iterations of at least 1 for fit, got 0; give one, for example 100",
        ),
        (
            ["data.rollout.train.path=nothing.jsonl"],
            "data.rollout.train.path: wanted a JSON Lines or Parquet file, got 'nothing.jsonl'; there is none, "
            "seen from {cwd}; change the path or make the file",
        ),
        (
            ["model.actor.hf_checkpoint=nowhere"],
            "model.actor.hf_checkpoint: wanted a Hugging Face directory, got 'nowhere'; "
            "there is none at this path; change it",
        ),
        (
            ["model.actor.hf_checkpoint=."],
            "model.actor.hf_checkpoint: wanted a directory with config.json, got '.'; "
            "give the folder that holds config.json and the weights",
        ),
        (
            ["model.actor.hf_checkpoint=null"],
            "model.actor.hf_checkpoint: wanted a model, got nothing; "
            "give a Hugging Face directory, or model.actor.architecture for a model from scratch",
        ),
        (
            ["model.actor.hf_checkpoint=null", f"model.actor.architecture={SCRATCH}"],
            "model.actor.tokenizer: wanted a tokenizer for a model from scratch, got nothing; "
            "give a folder with a tokenizer, or an import path such as my_task.Tokenizer",
        ),
        (
            [f"model.actor.architecture={SCRATCH}"],
            "model.actor.hf_checkpoint: wanted one of hf_checkpoint and architecture, got 'model'; remove it, or "
            "model.actor.architecture; a tokenizer alone goes to model.actor.tokenizer",
        ),
        (
            ["model.actor.save=x.jsonl/ckpt"],
            "model.actor.save: wanted a folder that can be written, got 'x.jsonl/ckpt'; "
            "{cwd}/x.jsonl cannot; change it",
        ),
        (
            ["trainer.default_root_dir=x.jsonl/run"],
            "trainer.default_root_dir: wanted a folder that can be written, got 'x.jsonl/run'; "
            "{cwd}/x.jsonl cannot; change it",
        ),
        (
            ["model.critic.load=old"],
            "model.critic.load: wanted a checkpoint of the actor beside the critic's, got 'old'; "
            "give model.actor.load as well, or remove this",
        ),
    ],
)
def test_an_error_in_its_words(base, tmp_path, changes, line):
    assert only(base, *changes) == line.replace("{cwd}", str(tmp_path))


def test_what_is_allowed(base):
    assert (
        found(base, "callbacks.lr_warmup.actor.num_iters=10", "callbacks.critic_only_warmup.num_steps=0")
        == []
    )
    assert found(base, "data.rollout.sampling.top_p=0.9", "model.algorithm.old_log_probs=recompute") == []
    assert (
        found(base, "data.rollout.validation.a={path: x.jsonl, sampling: {temperature: 0, top_p: 0.5}}") == []
    )
    assert found(base, "trainer.max_steps=-1", "trainer.fast_dev_run=true") == []
    assert found(base, "model.critic.save=elsewhere", "callbacks.lr_warmup=null") == []
    assert (
        found(base, "data.rollout.train.path=gone", "model.actor.hf_checkpoint=gone", check_files=False) == []
    )
    assert found(base, "data.rollout.reward={class_path: my.Reward}") == []


def test_a_cluster_names_the_missing_role(base):
    base = [*base, "cluster.accelerator=cpu"]
    resources = "cluster.resources={actor: [1, 8], critic: [1, 8], rollout: [1, 8], advantages: [1, 0]}"
    assert found(base, resources) == []
    without = "cluster.resources={actor: [1, 8], rollout: [1, 8]}"
    assert [text for _, text in found(base, without, "cluster.colocate=false")] == [
        "cluster.resources: wanted the role critic, got none; add critic: [1, 8]",
        "cluster.resources: wanted the role advantages, got none; add advantages: [1, 0]",
        "cluster.colocate: wanted true, got false; synchronous colocate is what is supported; leave it out",
    ]


def test_a_cluster_needs_the_packages_of_its_extra(base, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    resources = "cluster.resources={actor: [1, 1], critic: [1, 1], rollout: [1, 1], advantages: [1, 0]}"
    assert found(base, resources, "cluster.accelerator=cpu") == [
        (
            "error",
            "cluster: wanted the packages of the extra ray for it, ray cannot be found; "
            "pip install 'relax-lightning[ray]'",
        )
    ]


def test_the_model_must_be_supported(base, make_model, tmp_path):
    make_model(tmp_path / "other", model_type="mamba")
    line = only(base, "model.actor.hf_checkpoint=other", "model.bridge=builtin")
    assert line == (
        "model.actor.hf_checkpoint: wanted a model_type among llama, qwen2, qwen3 in other/config.json, "
        "got 'mamba'; use another model, or model.bridge: auto"
    )
    line = only(base, "model.actor.hf_checkpoint=other")
    assert "flash-linear-attention to load model_type mamba, got none of them" in line
    (tmp_path / "other" / "config.json").write_text("{")
    assert "wanted JSON in other/config.json, got " in only(base, "model.actor.hf_checkpoint=other")


def test_the_context_of_a_model_from_scratch(base):
    scratch = [
        "model.actor.hf_checkpoint=null",
        f"model.actor.architecture={SCRATCH}",
        "model.actor.tokenizer=a.B",
    ]
    line = only(base, *scratch, "data.rollout.train.max_prompt_tokens=100")
    assert "at most 600 tokens, the model's context, got 100 + 512" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_save_root_without_permission(base, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "wanted a folder that can be written" in only(base, "model.actor.save=closed/ckpt")


def test_warnings(base):
    line = only(base, "model.algorithm.kl_coef=0.1", severity="warning")
    assert line == (
        "model.algorithm: wanted model.reference, got none: KL is switched off (kl_coef = 0.0, use_kl_loss = false); "
        "give model.reference or remove the KL keys"
    )
    line = only(base, "trainer.val_check_interval=5", severity="warning")
    assert line.startswith("trainer.val_check_interval: wanted sets of prompts in data.rollout.validation")


def test_validate_needs_a_set_and_no_steps(base):
    line = only(base, "trainer.max_steps=-1", subcommand="validate")
    assert line.startswith("data.rollout.validation: wanted a set of prompts for validate, got none; add one")
    more = ["trainer.max_steps=-1", "data.rollout.validation.a.path=x.jsonl"]
    assert found(base, *more, subcommand="validate") == []


def test_optimizer_steps_of_an_iteration(base):
    config = load([], [*base, "model.global_batch_size=4", "model.algorithm.num_ppo_epochs=3"])
    assert (optimizer_steps(config, "actor"), optimizer_steps(config, "critic")) == (6, 6)
    config = load([], [*base, "model.algorithm.num_critic_epochs=2"])
    assert (optimizer_steps(config, "actor"), optimizer_steps(config, "critic")) == (1, 2)
    assert optimizer_steps(Config(), "actor") is None


def test_a_critic_root_that_is_the_actors(base):
    line = only(base, "model.critic.save=runs/default/checkpoints", severity="warning")
    assert line == (
        "model.critic.save: wanted another root than the actor's, or nothing, got 'runs/default/checkpoints'; "
        "one root holds both halves of a checkpoint: leave it out"
    )
    assert only(base, "model.actor.save=here", "model.critic.save=./here", severity="warning")


def test_settings_that_do_nothing_together(base):
    line = only(base, "model.algorithm.importance_cap=2.0", severity="warning")
    assert line.startswith("model.algorithm.importance_cap: wanted old log-probs of the trainer")
    assert "old_log_probs: recompute, or leave importance_cap out" in line
    line = only(
        base, "model.algorithm.lambd=0.9", "model.algorithm.lambd_length_alpha=0.1", severity="warning"
    )
    assert line == (
        "model.algorithm.lambd: wanted one of lambd and lambd_length_alpha, got 0.9; the second wins; remove one"
    )


def test_what_the_first_lines_of_a_file_say(base, tmp_path):
    assert only(base, "data.rollout.train.input_key=question") == (
        "data.rollout.train.input_key: wanted a column of x.jsonl: prompt, got 'question'; correct the key"
    )
    assert only(base, "data.rollout.batch_size=17") == (
        "data.rollout.train.path: wanted at least the 17 prompts of an iteration, got 16; lower batch_size or add some"
    )


def test_an_empty_set_of_prompts(base, tmp_path):
    (tmp_path / "none.jsonl").write_text("\n \n")
    assert only(base, "data.rollout.validation.mine.path=none.jsonl") == (
        "data.rollout.validation.mine.path: wanted at least one prompt, got none; none.jsonl is empty; "
        "give another file"
    )


def test_problems_come_all_at_once(base):
    assert (
        len(
            found(
                base,
                "model.global_batch_size=3",
                "data.rollout.drop_equal_rewards=true",
                "data.rollout.n_samples_per_prompt=1",
                "model.actor.hf_checkpoint=x",
            )
        )
        == 3
    )
