"""The dataclasses: their keys and defaults are the published tree, their fields refuse nonsense, all is explained."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path

import pytest
import yaml

from relax_lightning import config as c
from relax_lightning.config.faults import FieldError
from relax_lightning.config.names import FOREIGN_NAMES, known_keys

SCHEMA = yaml.safe_load((Path(__file__).parent / "schema.yaml").read_text())

# Sections that are null in the tree: the keys and defaults that stand in its comments.
PROMPTS = {
    "path": None,
    "input_key": "prompt",
    "label_key": "label",
    "metadata_key": None,
    "apply_chat_template": False,
    "max_prompt_tokens": None,
}
REWARD = {"timeout_seconds": 30, "on_error": "raise", "num_workers": 2}
CLUSTER = {
    "address": None,
    "accelerator": "auto",
    "resources": {"actor": [1, 8], "critic": [1, 8], "rollout": [1, 8], "advantages": [1, 0]},
    "colocate": True,
    "max_restarts": 0,
}
ARCHITECTURE = [
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "vocab_size",
    "max_position_embeddings",
    "qk_layernorm",
    "tie_word_embeddings",
    "rope_theta",
]
ADDED = {
    "trainer": {
        "limit_val_batches",
        "fast_dev_run",
        "profiler",
        "enable_progress_bar",
        "val_before_training",
    },
    "callbacks": {"health_check"},
    "data.rollout": {"function", "on_validation_error", "shaping", "drop_equal_rewards"},
    "model.algorithm": {
        *("importance_floor", "importance_level", "importance_mode"),
        *("kl_target", "kl_horizon", "positive_nll_coef", "positive_nll_threshold"),
    },
    "model.actor": {"warm_start"},
    "model.critic": {"warm_start"},
    "model.critic.optimizer": {f.name for f in fields(c.OptimizerConfig)} - {"lr"},
}


def assert_same(ours, theirs, key):
    assert theirs.keys() - ours.keys() == set(), key
    assert ours.keys() - theirs.keys() == ADDED.get(key, set()), key
    for name, value in theirs.items():
        if isinstance(value, dict) and value and isinstance(ours[name], dict):
            assert_same(ours[name], value, f"{key}.{name}".lstrip("."))
        else:
            assert ours[name] == value and type(ours[name]) is type(value), f"{key}.{name}"


def test_keys_and_defaults_are_the_published_tree():
    assert_same(c.to_dict(c.Config()), SCHEMA, "")


def test_sections_that_are_null_by_default_have_their_published_defaults():
    prompts = c.to_dict(c.PromptsConfig(path="x"))
    assert {name: prompts[name] for name in PROMPTS} == PROMPTS | {"path": "x"}
    assert prompts.keys() - PROMPTS.keys() == {
        "class_path",
        "init_args",
        "sampling",
        "n_samples_per_prompt",
        "correct_reward",
    }
    reward = c.to_dict(c.RewardConfig(name="exact_match"))
    assert {name: reward[name] for name in REWARD} == REWARD
    assert c.to_dict(c.ClusterConfig()) == CLUSTER
    assert set(ARCHITECTURE) <= {f.name for f in fields(c.ArchitectureConfig)}
    assert [f.name for f in fields(c.ReferenceConfig)] == ["hf_checkpoint", "load"]


def test_every_key_has_a_meaning_and_every_section_is_frozen():
    sections = [value for value in vars(c).values() if isinstance(value, type) and is_dataclass(value)]
    assert len(sections) >= 29
    for section in sections:
        assert all(f.metadata["help"] for f in fields(section)), section
        assert section.__doc__
    with pytest.raises(FrozenInstanceError):
        c.Config().seed_everything = 1


def test_names_of_other_systems_lead_to_keys_that_exist():
    open_mappings = ("data.rollout.engine.init_args.",)
    for name, key in FOREIGN_NAMES.items():
        # A set of one's own has the keys of the training set.
        known = key.replace("validation.<name>", "train")
        assert known in known_keys() or key.startswith(open_mappings), (name, key)


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        (c.TrainerConfig, {"num_sanity_val_steps": 1, "val_before_training": True}),
        (c.HealthCheckConfig, {"stop_after": 0}),
        (c.HealthCheckConfig, {"ranges": {"reward/std": [None, None]}}),
        (c.HealthCheckConfig, {"ranges": {"reward/std": [2, 1]}}),
        (c.HealthCheckConfig, {"ranges": {"reward/std": 0.5}}),
        (c.RolloutFunctionConfig, {"class_path": "Calculator"}),
        (c.RolloutConfig, {"on_validation_error": "ignore"}),
        (c.AlgorithmConfig, {"gamma": 1.5}),
        (c.AlgorithmConfig, {"gamma": float("nan")}),
        (c.AlgorithmConfig, {"gamma": "high"}),
        (c.AlgorithmConfig, {"lambd": -0.1}),
        (c.AlgorithmConfig, {"lambd_critic": 2}),
        (c.AlgorithmConfig, {"lambd_length_alpha": 0}),
        (c.AlgorithmConfig, {"eps_clip": 0}),
        (c.AlgorithmConfig, {"eps_clip_high": -1}),
        (c.AlgorithmConfig, {"eps_clip_c": 1}),
        (c.AlgorithmConfig, {"value_clip": 0}),
        (c.AlgorithmConfig, {"entropy_coef": -0.1}),
        (c.AlgorithmConfig, {"kl_coef": -1}),
        (c.AlgorithmConfig, {"kl_loss_type": "k4"}),
        (c.AlgorithmConfig, {"old_log_probs": "engine"}),
        (c.AlgorithmConfig, {"importance_cap": 0}),
        (c.AlgorithmConfig, {"truncation": "drop"}),
        (c.AlgorithmConfig, {"loss_aggregation": "sum"}),
        (c.AlgorithmConfig, {"num_ppo_epochs": 0}),
        (c.AlgorithmConfig, {"num_critic_epochs": 0}),
        (c.OptimizerConfig, {"lr": 0}),
        (c.OptimizerConfig, {"betas": (0.9, 1.0)}),
        (c.OptimizerConfig, {"clip_grad": -1}),
        (c.OptimizerConfig, {"decay": "step"}),
        (c.OptimizerConfig, {"cpu_offload_fraction": 1.1}),
        (c.CriticOptimizerConfig, {"lr": -1e-3}),
        (c.ParallelConfig, {"tensor": 0}),
        (c.ParallelConfig, {"sequence": True}),
        (c.ActorConfig, {"recompute": "some"}),
        (c.CriticConfig, {"head_init": "ones"}),
        (c.ModelConfig, {"bridge": "none"}),
        (c.ModelConfig, {"dtype": "int8"}),
        (c.ModelConfig, {"global_batch_size": 0}),
        (c.ModelConfig, {"max_consecutive_nan": 0}),
        (c.SamplingConfig, {"temperature": -1}),
        (c.SamplingConfig, {"top_p": 0}),
        (c.SamplingConfig, {"top_p": 1.1}),
        (c.SamplingConfig, {"top_k": 0}),
        (c.SamplingConfig, {"max_new_tokens": 0}),
        (c.PromptsConfig, {"path": None}),
        (c.PromptsConfig, {"max_prompt_tokens": 0, "path": "x"}),
        (c.RewardConfig, {"timeout_seconds": 0, "name": "x"}),
        (c.RewardConfig, {"on_error": "skip", "name": "x"}),
        (c.RewardConfig, {"name": None}),
        (c.RolloutConfig, {"n_samples_per_prompt": 0}),
        (c.RolloutConfig, {"batch_size": 0}),
        (c.AdvantagesConfig, {"device": "cuda"}),
        (c.CheckpointConfig, {"keep_last": 0}),
        (c.CheckpointConfig, {"every_n_steps": 0}),
        (c.CriticOnlyWarmupConfig, {"num_steps": -1}),
        (c.WarmupConfig, {"num_iters": -1}),
        (c.StrategyConfig, {"offload": "sometimes"}),
        (c.ClusterConfig, {"accelerator": "tpu"}),
        (c.ClusterConfig, {"resources": {"actor": (0, 8)}}),
        (c.ClusterConfig, {"resources": {"judge": (1, 8)}}),
        (c.TrainerConfig, {"val_check_interval": 0}),
        (c.TrainerConfig, {"callbacks": [{"init_args": {}}]}),
        (c.Config, {"seed_everything": -1}),
    ],
)
def test_a_field_refuses_nonsense_with_what_was_wanted(section, wrong):
    with pytest.raises(FieldError) as error:
        section(**wrong)
    name = next(iter(wrong))
    assert [fault.field.partition(".")[0] for fault in error.value.faults] == [name]
    assert "wanted " in str(error.value)
    assert ", got " in str(error.value)
    assert ";" in str(error.value)


def test_all_faults_of_a_section_come_at_once():
    with pytest.raises(FieldError) as error:
        c.AlgorithmConfig(gamma=2, eps_clip=-1, truncation="x")
    assert [fault.field for fault in error.value.faults] == ["gamma", "eps_clip", "truncation"]


def test_an_architecture_must_divide():
    sizes = {"num_layers": 1, "num_attention_heads": 3, "vocab_size": 8}
    with pytest.raises(FieldError, match="hidden_size: wanted a multiple of num_attention_heads"):
        c.ArchitectureConfig(hidden_size=8, **sizes)
    with pytest.raises(FieldError, match="num_query_groups: wanted a divisor of num_attention_heads"):
        c.ArchitectureConfig(hidden_size=9, num_query_groups=2, **sizes)
    assert c.ArchitectureConfig(hidden_size=8, kv_channels=4, **sizes).ffn_hidden_size is None


def test_the_critics_optimizer_follows_the_actors_key_by_key():
    actor = c.OptimizerConfig(lr=1e-3, weight_decay=0.5, distributed=False)
    assert c.CriticOptimizerConfig().following(actor) == actor
    own = c.CriticOptimizerConfig(lr=1e-2, weight_decay=0.0, distributed=True).following(actor)
    assert own == c.OptimizerConfig(lr=1e-2, weight_decay=0.0, distributed=True)
