"""The table: every flag of the reference that is known here, and what becomes of it.

The flags are those of Relax and slime (`relax/utils/arguments.py`, `slime/utils/arguments.py`), of Megatron-LM
(`megatron/training/arguments.py`) and of SGLang's ServerArgs behind the prefix `--sglang-`.
"""

from __future__ import annotations

from relax_lightning.config.names import REFERENCE_FLAGS
from relax_lightning.migrate import checkpoint_rules, cluster_rules, data_rules, training_rules
from relax_lightning.migrate.rules import (
    Rule,
    all_values,
    always,
    expected,
    left_out,
    not_translated,
    one_of,
    text_value,
    text_values,
    to,
    with_value,
)
from relax_lightning.migrate.sglang_rules import sglang

_ALGORITHM, _OPTIMIZER, _PARALLEL = "model.algorithm", "model.actor.optimizer", "model.actor.parallel"
_ROLLOUT, _SAMPLING, _MLFLOW = "data.rollout", "data.rollout.sampling", "tracking.mlflow"
_RECOMPUTE = ("model.actor.recompute", "model.critic.recompute")

_KEYS = {
    **{flag: key for flag, key in REFERENCE_FLAGS.items() if not flag.endswith("*")},
    "--eps-clip-c": f"{_ALGORITHM}.eps_clip_c",
    "--adam-eps": f"{_OPTIMIZER}.eps",
    "--lr-warmup-iters": "callbacks.lr_warmup.actor.num_iters",
    "--num-rollout": "trainer.max_steps",
    "--tensor-model-parallel-size": f"{_PARALLEL}.tensor",
    "--pipeline-model-parallel-size": f"{_PARALLEL}.pipeline",
    "--context-parallel-size": f"{_PARALLEL}.context",
    "--seed": "seed_everything",
    "--save-interval": "callbacks.checkpoint.every_n_steps",
    "--max-actor-ckpt-to-keep": "callbacks.checkpoint.keep_last",
    "--rollout-max-prompt-len": f"{_ROLLOUT}.train.max_prompt_tokens",
    "--reward-num-workers": f"{_ROLLOUT}.reward.num_workers",
    "--rollout-temperature": f"{_SAMPLING}.temperature",
    "--rollout-top-k": f"{_SAMPLING}.top_k",
    "--rollout-max-response-len": f"{_SAMPLING}.max_new_tokens",
    "--eval-interval": "trainer.val_check_interval",
    "--max-global-restart": "cluster.max_restarts",
}
"""Flags with one number or word that is the same under a key of ours."""

_LEFT_OUT = {
    "their PPO has no reference model; here it is model.reference": "--ref-load",
    "switched off in their PPO, as here without model.reference": "--use-kl-loss",
    "rewards are not normalized here, nor in their PPO": "--disable-rewards-normalization",
    "of GRPO; no effect on PPO": "--disable-grpo-std-normalization",
    "the metric mismatch/log_prob_abs_diff is always there": "--get-mismatch-metrics",
    "Adam's state is float32 here": "--use-precision-aware-optimizer",
    "micro-batches are packed by tokens unless model.micro_batch_size is given": "--use-dynamic-batch-size",
    "model.max_tokens_per_microbatch holds for every forward": "--log-probs-max-tokens-per-gpu",
    "which rank learns from which sample does not change the loss here": "--balance-data",
    "full recomputation takes every layer by itself here": "--recompute-method --recompute-num-layers",
    "model.bridge: auto chooses the reader": "--megatron-to-hf-mode",
    "`relax-lightning export` writes a Hugging Face directory": "--save-hf --save-hf-*",
    "callbacks.checkpoint.keep_last does it": "--rotate-ckpt",
    "the checkpoint knows its iteration": "--start-rollout-id",
    "seed_everything is the seed of prompts and samples too": "--rollout-seed",
    "a reward is one number here": "--reward-key --eval-reward-key",
    "data.rollout.reward.num_workers bounds it": "--reward-max-concurrency",
    "a response is always decoded without special tokens": "--rollout-skip-special-tokens",
    "no limit on prompt and response together": "--eval-max-context-len",
    "training begins without one unless trainer.val_before_training": "--skip-eval-before-train",
    "pass@k of every set with several samples a prompt is val/<set>/pass_at_<k>": "--log-passrate",
    "strategy.offload: auto moves what has to leave, no more": """
        --offload --offload-train --offload-rollout --no-offload*
    """,
    "cluster.max_restarts says how often a lost worker is replaced": "--use-health-check --use-fault-tolerance",
    "a lost engine ends the run; cluster.max_restarts": "--rollout-health-check-*",
    "cluster.resources says it; critic and rollout share the actor's GPUs": """
        --rollout-num-gpus --critic-num-nodes --critic-num-gpus-per-node --num-gpus-per-node
    """,
    "timeline.json of the run folder": "--timeline-dump-dir",
    "timeline.json of the run folder shows where the time goes": "--sglang-profile*",
    "MLflow and the run folder keep the record": """
        --wandb-* --use-wandb* --disable-wandb-* --use-tensorboard* --no-use-tensorboard* --tensorboard-*
        --use-clearml* --use-metrics-service* --no-use-metrics-service* --log-*
    """,
    "samples/ of the run folder holds prompts, responses and rewards": """
        --save-debug-* --dump-details* --rollout-result-dir*
    """,
    "the engine takes all prompts of an iteration at once": "--sglang-server-concurrency*",
    "there is no router here": "--sglang-router-* --slime-router-* --use-slime-router* --router-*",
    "always so here": "--accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32",
    "how fast, not what: decided here": """
        --attention-backend --no-rope-fusion --no-masked-softmax-fusion --no-bias-swiglu-fusion --qkv-format
        --overlap-grad-reduce --overlap-param-gather --cross-entropy-loss-fusion --log-probs-chunk-size
        --recompute-loss-function --disable-weights-backuper --train-memory-margin-bytes --selective-offload
        --warm-hf-checkpoint-page-cache --update-weight-buffer-size --num-data-storage-units --per-rank-fetch
        --distributed-backend --distributed-timeout-minutes --use-streaming-dataset --streaming-buffer-size
        --train-env-vars --no-gradient-accumulation-fusion --use-flash-attn
        --overlap-cpu-optimizer-d2h-h2d --use-torch-optimizer-for-cpu-offload --async-save
    """,
    "read from the config.json of hf_checkpoint": """
        --num-layers --hidden-size --ffn-hidden-size --num-attention-heads --group-query-attention
        --num-query-groups --kv-channels --vocab-size --padded-vocab-size --make-vocab-size-divisible-by
        --max-position-embeddings --seq-length --swiglu --normalization --norm-epsilon --layernorm-epsilon
        --apply-layernorm-1p --disable-bias-linear --add-qkv-bias --qk-layernorm --position-embedding-type
        --use-rotary-position-embeddings --rotary-base --rotary-percent --rope-type --use-rope-scaling
        --rope-scaling-factor --untie-embeddings-and-output-weights --attention-output-gate
        --use-gated-attention --spec --model-name --tokenizer-type --tokenizer-model
    """,
}
"""What needs no key, and the flags of which that is true; a star stands for all names that begin so."""

_NO_EXPERTS = "mixtures of experts are not supported"

_NOT_TRANSLATED = {
    "raise callbacks.critic_only_warmup.num_steps to trainer.max_steps - 1": "--critic-train-only",
    "the KL estimators are k1, k2 and k3": "--use-unbiased-kl",
    "the reference model stays as it is": "--ref-update-interval",
    "whole samples are not masked by their ratio": "--use-opsm",
    "Adam's moments are kept": "--reset-optimizer-states",
    "give callbacks.lr_warmup.actor.num_iters, in optimizer steps": "--lr-warmup-fraction",
    "a warm-up begins at lr / num_iters": "--lr-warmup-init",
    "give trainer.max_steps: epochs * prompts / data.rollout.batch_size": "--num-epoch",
    "model.dtype is bfloat16 or float32": "--fp16",
    "name the iteration: fit --ckpt_path ROOT/iter_...": "--ckpt-step",
    "weights alone come from hf_checkpoint": "--finetune",
    "a checkpoint is resumed whole": "--no-load-optim --no-load-rng",
    "a checkpoint is saved whole": "--no-save-optim",
    "it takes (prompt, response, label, metadata): data.rollout.reward.class_path": "--custom-rm-path",
    "give data.rollout.validation: one entry a set": "--eval-config",
    "engines are started here; see data.rollout.engine": "--rollout-external",
    "give data.rollout.engine.init_args": "--sglang-config*",
    "synchronous colocate is what is supported": "--fully-async --hybrid",
    "an iteration learns from all the samples it generates, and from no others": """
        --over-sampling-batch-size --dynamic-sampling-filter-path --partial-rollout --buffer-filter-path
        --use-dynamic-global-batch-size --rollout-sample-filter-path
    """,
    "code of your own takes another form here: see docs/callbacks.md and the README": """
        --custom-generate-function-path --rollout-function-path --eval-function-path --data-source-path
        --custom-reward-post-process-path --custom-loss-function-path --custom-tis-function-path
        --custom-pg-loss-reducer-function-path --custom-config-path --rollout-data-postprocess-path
    """,
    "a reward sees one sample": "--group-rm",
    "prompts are text": "--multimodal-keys",
    "prompts have no tools": "--tool-key",
    "all weights are trained": "--lora-*",
    _NO_EXPERTS: "--moe-* --num-experts* --expert-*",
    "heads for several tokens ahead are not trained": "--mtp-* --enable-mtp-*",
    "there is no distillation": "--opd-*",
    "write the reward model as a class, data.rollout.reward.class_path": "--genrm-*",
    "write the turns as a rollout function: docs/rollout_functions.md": "--agent* --use-agentic-*",
}
"""The same for what has no counterpart."""

_IMPORTANCE = with_value(f"{_ALGORITHM}.importance_cap", "--use-tis", "--tis-clip", otherwise=2.0)
_OFFLOADED = with_value(
    f"{_OPTIMIZER}.cpu_offload_fraction",
    "--optimizer-cpu-offload",
    "--optimizer-offload-fraction",
    otherwise=1.0,
)
_NEWEST = "rollouts are always of the newest weights"
_ONE = expected("1", because="1 is all there is here", otherwise=_NO_EXPERTS)
_NO_DROPOUT = expected("0", "0.0", because="always so here", otherwise="models have no dropout here")

_RULES: dict[str, Rule] = {
    # The algorithm
    "--normalize-advantages": to(f"{_ALGORITHM}.normalize_advantages", read=always(True)),
    "--use-rollout-logprobs": to(f"{_ALGORITHM}.old_log_probs", read=always("rollout")),
    "--calculate-per-token-loss": to(f"{_ALGORITHM}.loss_aggregation", read=always("token_mean")),
    "--kl-coef": training_rules.kl_coef,
    "--kl-loss-type": to(f"{_ALGORITHM}.kl_loss_type", read=one_of("k1", "k2", "k3", low_var_kl="k3")),
    "--use-tis": _IMPORTANCE,
    "--tis-clip": _IMPORTANCE,
    "--tis-clip-low": expected(
        "0", "0.0", because="no lower bound here", otherwise="there is an upper cap only"
    ),
    "--loss-type": expected(
        "policy_loss", because="always PPO's", otherwise="only PPO's losses are supported"
    ),
    # The optimizers
    "--optimizer": expected("adam", because="always Adam", otherwise="Adam is the only optimizer"),
    "--lr-decay-style": to(f"{_OPTIMIZER}.decay", read=one_of("constant", "linear", "cosine")),
    "--lr-decay-iters": training_rules.decay_iters,
    "--weight-decay-incr-style": expected(
        "constant", because="always so here", otherwise="weight decay is constant"
    ),
    "--adam-beta1": training_rules.betas,
    "--adam-beta2": training_rules.betas,
    "--optimizer-cpu-offload": _OFFLOADED,
    "--optimizer-offload-fraction": _OFFLOADED,
    "--use-distributed-optimizer": to(f"{_OPTIMIZER}.distributed", read=always(True)),
    # Batches, and the cut of the models
    "--num-steps-per-rollout": training_rules.steps_per_rollout,
    "--micro-batch-size": training_rules.micro_batch_size,
    "--max-tokens-per-gpu": training_rules.max_tokens_per_gpu,
    "--sequence-parallel": training_rules.sequence_parallel,
    "--expert-model-parallel-size": _ONE,
    "--expert-tensor-parallel-size": _ONE,
    "--recompute-granularity": to(*_RECOMPUTE),
    "--recompute-activations": to(*_RECOMPUTE, read=always("selective")),
    "--bf16": to("model.dtype", read=always("bfloat16")),
    "--attention-dropout": _NO_DROPOUT,
    "--hidden-dropout": _NO_DROPOUT,
    # Checkpoints
    "--hf-checkpoint": to("model.actor.hf_checkpoint", read=checkpoint_rules.folder),
    "--load": checkpoint_rules.load("actor", "--save"),
    "--save": checkpoint_rules.save,
    "--critic-load": checkpoint_rules.load("critic", "--critic-save"),
    "--critic-save": to("model.critic.save", read=checkpoint_rules.folder),
    # Prompts, rewards, sampling
    "--prompt-data": to(f"{_ROLLOUT}.train.path", read=text_value),
    "--input-key": data_rules.prompts("input_key"),
    "--label-key": data_rules.prompts("label_key"),
    "--metadata-key": data_rules.prompts("metadata_key"),
    "--apply-chat-template": data_rules.prompts("apply_chat_template", read=always(True)),
    "--rollout-shuffle": to(f"{_ROLLOUT}.shuffle", read=always(True)),
    "--rm-type": data_rules.reward,
    "--rollout-max-context-len": data_rules.context_length,
    "--rollout-stop": to(f"{_SAMPLING}.stop", read=text_values),
    "--rollout-stop-token-ids": to(f"{_SAMPLING}.stop_token_ids", read=all_values),
    # Evaluation
    "--eval-prompt-data": data_rules.evaluation_prompts,
    "--eval-input-key": data_rules.evaluation("input_key", read=text_value),
    "--eval-label-key": data_rules.evaluation("label_key", read=text_value),
    "--n-samples-per-eval-prompt": data_rules.evaluation("n_samples_per_prompt"),
    "--eval-temperature": data_rules.evaluation("sampling.temperature"),
    "--eval-top-p": data_rules.evaluation("sampling.top_p"),
    "--eval-top-k": data_rules.evaluation("sampling.top_k"),
    "--eval-max-response-len": data_rules.evaluation("sampling.max_new_tokens"),
    "--eval-max-prompt-len": data_rules.evaluation("max_prompt_tokens"),
    # The cluster and the record
    "--resource": cluster_rules.resource,
    "--colocate": to("cluster.colocate", read=always(True)),
    "--actor-num-nodes": cluster_rules.actor_size,
    "--actor-num-gpus-per-node": cluster_rules.actor_size,
    "--max-staleness": expected("0", because=_NEWEST, otherwise=_NEWEST),
    "--wandb-project": to(f"{_MLFLOW}.experiment", read=text_value),
    "--wandb-group": to(f"{_MLFLOW}.run_name", read=text_value),
    "--tb-project-name": to(f"{_MLFLOW}.experiment", read=text_value),
    "--tb-experiment-name": to(f"{_MLFLOW}.run_name", read=text_value),
}

_BY_REASON: dict[str, Rule] = {
    name: rule(reason)
    for rule, reasons in ((left_out, _LEFT_OUT), (not_translated, _NOT_TRANSLATED))
    for reason, names in reasons.items()
    for name in names.split()
}

TABLE: dict[str, Rule] = {
    **{flag: to(key) for flag, key in _KEYS.items()},
    **{name: rule for name, rule in _BY_REASON.items() if not name.endswith("*")},
    **_RULES,
}
"""The rule of a flag by its name."""

_FAMILIES = {name[:-1]: rule for name, rule in _BY_REASON.items() if name.endswith("*")} | {
    "--sglang-": sglang
}


def rule_of(name: str) -> Rule | None:
    """The rule of a flag: its own, else that of the family its name begins with; None for an unknown one."""
    families = (rule for prefix, rule in _FAMILIES.items() if name.startswith(prefix))
    return TABLE.get(name) or next(families, None)
