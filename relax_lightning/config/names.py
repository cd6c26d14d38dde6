"""Which key somebody meant: names of other systems, and the nearest of ours."""

from __future__ import annotations

import difflib
from functools import cache

from relax_lightning.config.sections import ANY_NAME, entries

_ALGORITHM, _OPTIMIZER, _ROLLOUT = "model.algorithm", "model.actor.optimizer", "data.rollout"

DERIVED_TRAINER_KEYS = {
    "devices": ("cluster.resources", "derived from the cluster"),
    "num_nodes": ("cluster.resources", "derived from the cluster"),
    "accelerator": ("cluster.accelerator", "derived from the cluster"),
    "precision": ("model.dtype", "derived from the model"),
    "strategy": ("strategy.offload", "always our own strategy"),
    "use_distributed_sampler": ("cluster.resources", "derived from the cluster"),
    "max_epochs": ("trainer.max_steps", "derived: training counts iterations"),
    "logger": ("tracking.mlflow", "derived from tracking"),
    "gradient_clip_val": ("model.actor.optimizer.clip_grad", "done by the roles' optimizers"),
    "gradient_clip_algorithm": (
        "model.actor.optimizer.clip_grad",
        "always by norm, in the roles' optimizers",
    ),
    "accumulate_grad_batches": (
        "model.micro_batch_size or model.max_tokens_per_microbatch, with model.global_batch_size",
        "done by the roles",
    ),
    "enable_checkpointing": ("callbacks.checkpoint", "done by our own callback"),
}
"""Keys of Lightning's Trainer that nobody may set, with ours and the reason."""

_BY_TARGET = {
    f"{_ALGORITHM}.advantage_estimator": "adv_estimator",
    f"{_ALGORITHM}.gamma": "discount discount_factor",
    f"{_ALGORITHM}.lambd": "gae_lambda gae_lam lam lambda lambda_",
    f"{_ALGORITHM}.eps_clip": (
        "clip_range cliprange clip_ratio clip_eps clip_epsilon eps_clip_low clip_ratio_low clip_coef"
    ),
    f"{_ALGORITHM}.eps_clip_high": "clip_ratio_high epsilon_high",
    f"{_ALGORITHM}.eps_clip_c": "clip_ratio_c dual_clip",
    f"{_ALGORITHM}.value_clip": "clip_range_vf cliprange_value vf_clip_param cliprange_vf",
    f"{_ALGORITHM}.entropy_coef": "entropy_coeff ent_coef entropy_loss_coef",
    f"{_ALGORITHM}.kl_coef": "kl_coeff init_kl_coef kl_ctl kl_beta use_kl_in_reward",
    f"{_ALGORITHM}.kl_loss_coef": "kl_loss_coeff",
    "data.rollout.drop_equal_rewards": "filter_groups dynamic_sampling",
    "model.actor.recompute": "gradient_checkpointing enable_gradient_checkpointing",
    "tracking.mlflow": "wandb tensorboard report_to",
    f"{_ALGORITHM}.normalize_advantages": "whiten_advantages norm_adv normalize_advantage adv_norm",
    f"{_ALGORITHM}.old_log_probs": "use_rollout_logprobs use_rollout_log_probs",
    f"{_ALGORITHM}.importance_cap": "tis_imp_ratio_cap use_tis tis_clip",
    f"{_ALGORITHM}.loss_aggregation": "loss_agg_mode loss_type",
    f"{_ALGORITHM}.num_ppo_epochs": "ppo_epochs n_epochs update_epochs num_epochs",
    "model.global_batch_size": "ppo_mini_batch_size mini_batch_size minibatch_size",
    "model.micro_batch_size": "per_device_train_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu",
    "model.max_tokens_per_microbatch": "max_tokens_per_gpu ppo_max_token_len_per_gpu",
    "model.dtype": "precision torch_dtype bf16",
    "model.reference": "ref ref_model ref_load reference_model",
    "model.actor.hf_checkpoint": "model_path model_name_or_path pretrained_model_name_or_path",
    "model.actor.parallel.tensor": "tensor_model_parallel_size tensor_parallel_size tp_size",
    "model.actor.parallel.pipeline": "pipeline_model_parallel_size pp_size",
    "model.actor.parallel.context": "context_parallel_size cp_size",
    f"{_OPTIMIZER}.lr": "learning_rate actor_lr",
    f"{_OPTIMIZER}.clip_grad": "max_grad_norm grad_clip gradient_clip_val gradient_clipping",
    f"{_OPTIMIZER}.betas": "adam_beta1 adam_beta2",
    f"{_OPTIMIZER}.eps": "adam_eps adam_epsilon",
    f"{_OPTIMIZER}.decay": "lr_decay_style lr_scheduler_type",
    f"{_OPTIMIZER}.cpu_offload_fraction": "optimizer_cpu_offload optimizer_offload_fraction",
    "model.critic.optimizer.lr": "critic_lr critic_learning_rate",
    "model.critic.load": "critic_load",
    "model.critic.save": "critic_save",
    f"{_ROLLOUT}.batch_size": "train_batch_size rollout_batch_size",
    f"{_ROLLOUT}.n_samples_per_prompt": "num_generations rollout_n num_samples_per_prompt n_samples",
    f"{_ROLLOUT}.sampling.max_new_tokens": (
        "max_response_length response_length max_completion_length rollout_max_response_len max_tokens"
    ),
    f"{_ROLLOUT}.sampling.temperature": "rollout_temperature",
    f"{_ROLLOUT}.train.max_prompt_tokens": "max_prompt_length max_prompt_len",
    f"{_ROLLOUT}.train.path": "prompt_data train_files data_path",
    f"{_ROLLOUT}.validation": "val_files eval_prompt_data val_data",
    f"{_ROLLOUT}.validation.<name>.sampling.top_p": "eval_top_p",
    "trainer.val_before_training": "val_before_train eval_on_start eval_before_train",
    f"{_ROLLOUT}.function": "custom_generate_function_path rollout_function_path agent_loop multi_turn",
    f"{_ROLLOUT}.reward": "reward_model custom_reward_function rm_type reward_fn",
    f"{_ROLLOUT}.engine.init_args.mem_fraction_static": (
        "mem_fraction_static sglang_mem_fraction_static gpu_memory_utilization"
    ),
    "trainer.max_steps": "num_rollout total_epochs total_timesteps num_iterations max_iterations",
    "trainer.val_check_interval": "test_freq eval_interval eval_steps check_val_every_n_epoch",
    "trainer.default_root_dir": "output_dir run_dir exp_dir",
    "callbacks.checkpoint.every_n_steps": "save_freq save_interval save_steps",
    "callbacks.checkpoint.keep_last": "save_total_limit max_actor_ckpt_to_keep",
    "callbacks.critic_only_warmup.num_steps": "num_critic_only_steps critic_warmup critic_warmup_steps",
    "callbacks.lr_warmup.actor.num_iters": "lr_warmup_iters lr_warmup_steps warmup_steps",
    "callbacks.lr_warmup.critic.num_iters": "critic_lr_warmup_iters critic_lr_warmup_steps",
    "tracking.mlflow.experiment": "project_name wandb_project mlflow_experiment_name",
    "tracking.mlflow.run_name": "experiment_name wandb_name",
    "cluster.resources": "resource resources n_gpus_per_node num_gpus actor_num_gpus_per_node",
    "cluster.colocate": "colocate",
    "seed_everything": "seed random_seed",
}

FOREIGN_NAMES = {name: target for target, names in _BY_TARGET.items() for name in names.split()}
"""Names of other systems, and the key that is ours for them."""

REFERENCE_FLAGS = {
    "--hf-checkpoint": "model.actor.hf_checkpoint",
    "--load": "model.actor.load",
    "--save": "model.actor.save",
    "--lr": f"{_OPTIMIZER}.lr",
    "--min-lr": f"{_OPTIMIZER}.min_lr",
    "--weight-decay": f"{_OPTIMIZER}.weight_decay",
    "--clip-grad": f"{_OPTIMIZER}.clip_grad",
    "--use-distributed-optimizer": f"{_OPTIMIZER}.distributed",
    "--critic-load": "model.critic.load",
    "--critic-save": "model.critic.save",
    "--critic-lr": "model.critic.optimizer.lr",
    "--critic-lr-warmup-iters": "callbacks.lr_warmup.critic.num_iters",
    "--num-critic-only-steps": "callbacks.critic_only_warmup.num_steps",
    "--advantage-estimator": f"{_ALGORITHM}.advantage_estimator",
    "--gamma": f"{_ALGORITHM}.gamma",
    "--lambd": f"{_ALGORITHM}.lambd",
    "--eps-clip": f"{_ALGORITHM}.eps_clip",
    "--eps-clip-high": f"{_ALGORITHM}.eps_clip_high",
    "--value-clip": f"{_ALGORITHM}.value_clip",
    "--entropy-coef": f"{_ALGORITHM}.entropy_coef",
    "--kl-coef": f"{_ALGORITHM}.kl_coef",
    "--use-kl-loss": f"{_ALGORITHM}.use_kl_loss",
    "--kl-loss-coef": f"{_ALGORITHM}.kl_loss_coef",
    "--normalize-advantages": f"{_ALGORITHM}.normalize_advantages",
    "--use-rollout-logprobs": f"{_ALGORITHM}.old_log_probs",
    "--calculate-per-token-loss": f"{_ALGORITHM}.loss_aggregation",
    "--global-batch-size": "model.global_batch_size",
    "--micro-batch-size": "model.micro_batch_size",
    "--max-tokens-per-gpu": "model.max_tokens_per_microbatch",
    "--sequence-parallel": "model.actor.parallel.sequence",
    "--recompute-granularity": "model.actor.recompute",
    "--rollout-batch-size": f"{_ROLLOUT}.batch_size",
    "--n-samples-per-prompt": f"{_ROLLOUT}.n_samples_per_prompt",
    "--input-key": f"{_ROLLOUT}.train.input_key",
    "--rollout-shuffle": f"{_ROLLOUT}.shuffle",
    "--rollout-top-p": f"{_ROLLOUT}.sampling.top_p",
    "--rollout-num-gpus-per-engine": f"{_ROLLOUT}.engine.init_args.tensor_parallel_size",
    "--sglang-*": f"{_ROLLOUT}.engine.init_args",
    "--sglang-mem-fraction-static": f"{_ROLLOUT}.engine.init_args.mem_fraction_static",
    "--resource": "cluster.resources",
    "--colocate": "cluster.colocate",
}
"""Flags of the system whose published description this project follows, and the key that replaces each."""


@cache
def known_keys() -> tuple[str, ...]:
    """Every key of the tree, dotted, sections included; open mappings end at their own key."""
    return tuple(key for key in entries() if ANY_NAME not in key)


def meant(key: str, siblings: list[str]) -> str | None:
    """The key that an unknown `key` most likely stands for, or None.

    Args:
        key: dotted, as it was written.
        siblings: names that are known where the unknown one stood.
    """
    parent, _, name = key.rpartition(".")
    name = name.replace("-", "_")
    if name in siblings:
        return _join(parent, name)
    if name in FOREIGN_NAMES:
        return _for_role(key, FOREIGN_NAMES[name])
    elsewhere = [known for known in known_keys() if known.rpartition(".")[2] == name]
    if elsewhere:
        return max(elsewhere, key=lambda known: (_shared(known, key), -known.count(".")))
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return _join(parent, near[0])
    return _nearest_anywhere(name)


def _nearest_anywhere(name: str) -> str | None:
    by_name = {known.rpartition(".")[2]: known for known in reversed(known_keys())}
    near = difflib.get_close_matches(name, [*by_name, *FOREIGN_NAMES], n=1, cutoff=0.75)
    return (by_name.get(near[0]) or FOREIGN_NAMES[near[0]]) if near else None


def _for_role(key: str, target: str) -> str:
    for_critic = target.replace("model.actor.", "model.critic.")
    return for_critic if key.startswith("model.critic.") and for_critic in known_keys() else target


def _shared(one: str, other: str) -> int:
    pairs = zip(one.split("."), other.split("."), strict=False)
    return sum(a == b for a, b in pairs)


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
