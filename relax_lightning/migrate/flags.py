"""The table: every flag of the reference that is known here, and what becomes of it.

The flags are those of Relax and slime (`relax/utils/arguments.py`, `slime/utils/arguments.py`), of Megatron-LM
(`megatron/training/arguments.py`) and of SGLang's ServerArgs behind the prefix `--sglang-`.
"""

from __future__ import annotations

from relax_lightning.migrate.algorithm_rules import kl_coef, kl_loss, tis
from relax_lightning.migrate.batch_rules import (
    dynamic_batch_size,
    max_tokens_per_gpu,
    micro_batch_size,
    sequence_parallel,
    steps_per_rollout,
)
from relax_lightning.migrate.checkpoint_rules import critic_load, critic_save, hf_checkpoint, load, save
from relax_lightning.migrate.cluster_rules import actor_size, follows_resources, resource
from relax_lightning.migrate.data_rules import (
    context_length,
    evaluation,
    evaluation_prompts,
    prompts,
    reward,
)
from relax_lightning.migrate.optimizer_rules import betas, cpu_offload, decay_iters
from relax_lightning.migrate.rules import (
    Rule,
    all_values,
    expected,
    left_out,
    not_translated,
    one_of,
    switched_on,
    text_value,
    text_values,
    to,
)
from relax_lightning.migrate.sglang_rules import sglang

_ALGORITHM, _OPTIMIZER, _PARALLEL = "model.algorithm", "model.actor.optimizer", "model.actor.parallel"
_ROLLOUT, _SAMPLING, _MLFLOW = "data.rollout", "data.rollout.sampling", "tracking.mlflow"

_RECORD = left_out("MLflow and the run folder keep the record")
_NO_EXPERTS = "mixtures of experts are not supported"
_NEWEST = "rollouts are always of the newest weights"
_OFFLOAD = "strategy.offload: auto moves what has to leave, no more"

_OF_SPEED = """
    --attention-backend --no-rope-fusion --no-masked-softmax-fusion --no-bias-swiglu-fusion --qkv-format
    --overlap-grad-reduce --overlap-param-gather --cross-entropy-loss-fusion --log-probs-chunk-size
    --recompute-loss-function --disable-weights-backuper --train-memory-margin-bytes --selective-offload
    --warm-hf-checkpoint-page-cache --update-weight-buffer-size --num-data-storage-units --per-rank-fetch
    --distributed-backend --distributed-timeout-minutes --use-streaming-dataset --streaming-buffer-size
    --train-env-vars --no-gradient-accumulation-fusion --use-flash-attn
"""
_OF_THE_MODEL = """
    --num-layers --hidden-size --ffn-hidden-size --num-attention-heads --group-query-attention
    --num-query-groups --kv-channels --vocab-size --padded-vocab-size --make-vocab-size-divisible-by
    --max-position-embeddings --seq-length --swiglu --normalization --norm-epsilon --layernorm-epsilon
    --apply-layernorm-1p --disable-bias-linear --add-qkv-bias --qk-layernorm --position-embedding-type
    --use-rotary-position-embeddings --rotary-base --rotary-percent --rope-type --use-rope-scaling
    --rope-scaling-factor --untie-embeddings-and-output-weights --attention-output-gate
    --use-gated-attention --spec --model-name --tokenizer-type --tokenizer-model
"""
_OF_OTHER_SAMPLES = """
    --over-sampling-batch-size --dynamic-sampling-filter-path --partial-rollout --buffer-filter-path
    --use-dynamic-global-batch-size --rollout-sample-filter-path
"""
_OF_OWN_CODE = """
    --custom-generate-function-path --rollout-function-path --eval-function-path --data-source-path
    --custom-reward-post-process-path --custom-loss-function-path --custom-tis-function-path
    --custom-pg-loss-reducer-function-path --custom-config-path --rollout-data-postprocess-path
"""

TABLE: dict[str, Rule] = {
    # The algorithm
    "--advantage-estimator": to(f"{_ALGORITHM}.advantage_estimator"),
    "--gamma": to(f"{_ALGORITHM}.gamma"),
    "--lambd": to(f"{_ALGORITHM}.lambd"),
    "--eps-clip": to(f"{_ALGORITHM}.eps_clip"),
    "--eps-clip-high": to(f"{_ALGORITHM}.eps_clip_high"),
    "--eps-clip-c": to(f"{_ALGORITHM}.eps_clip_c"),
    "--value-clip": to(f"{_ALGORITHM}.value_clip"),
    "--entropy-coef": to(f"{_ALGORITHM}.entropy_coef"),
    "--normalize-advantages": to(f"{_ALGORITHM}.normalize_advantages", read=switched_on),
    "--use-rollout-logprobs": to(f"{_ALGORITHM}.old_log_probs", read=lambda flag: "rollout"),
    "--calculate-per-token-loss": to(f"{_ALGORITHM}.loss_aggregation", read=lambda flag: "token_mean"),
    "--kl-coef": kl_coef,
    "--use-kl-loss": kl_loss,
    "--kl-loss-coef": to(f"{_ALGORITHM}.kl_loss_coef"),
    "--kl-loss-type": to(
        f"{_ALGORITHM}.kl_loss_type", read=one_of({"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"})
    ),
    "--ref-load": left_out("their PPO has no reference model; here it is model.reference"),
    "--use-tis": tis,
    "--tis-clip": tis,
    "--tis-clip-low": expected(
        "0", "0.0", because="no lower bound here", otherwise="there is an upper cap only"
    ),
    "--num-critic-only-steps": to("callbacks.critic_only_warmup.num_steps"),
    "--critic-train-only": not_translated(
        "raise callbacks.critic_only_warmup.num_steps to trainer.max_steps - 1"
    ),
    "--loss-type": expected(
        "policy_loss", because="always PPO's", otherwise="only PPO's losses are supported"
    ),
    "--disable-rewards-normalization": left_out("rewards are not normalized here, nor in their PPO"),
    "--disable-grpo-std-normalization": left_out("of GRPO; no effect on PPO"),
    "--use-unbiased-kl": not_translated("the KL estimators are k1, k2 and k3"),
    "--ref-update-interval": not_translated("the reference model stays as it is"),
    "--use-opsm": not_translated("whole samples are not masked by their ratio"),
    "--reset-optimizer-states": not_translated("Adam's moments are kept"),
    "--get-mismatch-metrics": left_out("the metric mismatch/log_prob_abs_diff is always there"),
    # The optimizers
    "--optimizer": expected("adam", because="always Adam", otherwise="Adam is the only optimizer"),
    "--lr": to(f"{_OPTIMIZER}.lr"),
    "--min-lr": to(f"{_OPTIMIZER}.min_lr"),
    "--lr-decay-style": to(
        f"{_OPTIMIZER}.decay", read=one_of({"constant": "constant", "linear": "linear", "cosine": "cosine"})
    ),
    "--lr-decay-iters": decay_iters,
    "--lr-warmup-iters": to("callbacks.lr_warmup.actor.num_iters"),
    "--lr-warmup-fraction": not_translated("give callbacks.lr_warmup.actor.num_iters, in optimizer steps"),
    "--lr-warmup-init": not_translated("a warm-up begins at lr / num_iters"),
    "--critic-lr": to("model.critic.optimizer.lr"),
    "--critic-lr-warmup-iters": to("callbacks.lr_warmup.critic.num_iters"),
    "--weight-decay": to(f"{_OPTIMIZER}.weight_decay"),
    "--weight-decay-incr-style": expected(
        "constant", because="always so here", otherwise="weight decay is constant"
    ),
    "--adam-beta1": betas,
    "--adam-beta2": betas,
    "--adam-eps": to(f"{_OPTIMIZER}.eps"),
    "--clip-grad": to(f"{_OPTIMIZER}.clip_grad"),
    "--optimizer-cpu-offload": cpu_offload,
    "--optimizer-offload-fraction": cpu_offload,
    "--use-distributed-optimizer": to(f"{_OPTIMIZER}.distributed", read=switched_on),
    "--overlap-cpu-optimizer-d2h-h2d": left_out("how fast, not what: decided here"),
    "--use-precision-aware-optimizer": left_out("Adam's state is float32 here"),
    "--use-torch-optimizer-for-cpu-offload": left_out("how fast, not what: decided here"),
    # Batches
    "--num-rollout": to("trainer.max_steps"),
    "--num-epoch": not_translated("give trainer.max_steps: epochs * prompts / data.rollout.batch_size"),
    "--rollout-batch-size": to(f"{_ROLLOUT}.batch_size"),
    "--n-samples-per-prompt": to(f"{_ROLLOUT}.n_samples_per_prompt"),
    "--global-batch-size": to("model.global_batch_size"),
    "--num-steps-per-rollout": steps_per_rollout,
    "--micro-batch-size": micro_batch_size,
    "--use-dynamic-batch-size": dynamic_batch_size,
    "--max-tokens-per-gpu": max_tokens_per_gpu,
    "--log-probs-max-tokens-per-gpu": left_out("model.max_tokens_per_microbatch holds for every forward"),
    "--balance-data": left_out("which rank learns from which sample does not change the loss here"),
    # The cut of the models
    "--tensor-model-parallel-size": to(f"{_PARALLEL}.tensor"),
    "--pipeline-model-parallel-size": to(f"{_PARALLEL}.pipeline"),
    "--context-parallel-size": to(f"{_PARALLEL}.context"),
    "--sequence-parallel": sequence_parallel,
    **dict.fromkeys(
        ("--expert-model-parallel-size", "--expert-tensor-parallel-size"),
        expected("1", because="1 is all there is here", otherwise=_NO_EXPERTS),
    ),
    "--recompute-granularity": to("model.actor.recompute", "model.critic.recompute"),
    "--recompute-activations": to(
        "model.actor.recompute", "model.critic.recompute", read=lambda flag: "selective"
    ),
    "--recompute-method": left_out("full recomputation takes every layer by itself here"),
    "--recompute-num-layers": left_out("full recomputation takes every layer by itself here"),
    "--seed": to("seed_everything"),
    "--bf16": to("model.dtype", read=lambda flag: "bfloat16"),
    "--fp16": not_translated("model.dtype is bfloat16 or float32"),
    # Checkpoints
    "--hf-checkpoint": hf_checkpoint,
    "--load": load,
    "--save": save,
    "--save-interval": to("callbacks.checkpoint.every_n_steps"),
    "--max-actor-ckpt-to-keep": to("callbacks.checkpoint.keep_last"),
    "--critic-load": critic_load,
    "--critic-save": critic_save,
    "--megatron-to-hf-mode": left_out("model.bridge: auto chooses the reader"),
    "--save-hf": left_out("`relax-lightning export` writes a Hugging Face directory"),
    "--async-save": left_out("how fast, not what: decided here"),
    "--rotate-ckpt": left_out("callbacks.checkpoint.keep_last does it"),
    "--ckpt-step": not_translated("name the iteration: fit --ckpt_path ROOT/iter_..."),
    "--finetune": not_translated("weights alone come from hf_checkpoint"),
    "--no-load-optim": not_translated("a checkpoint is resumed whole"),
    "--no-load-rng": not_translated("a checkpoint is resumed whole"),
    "--no-save-optim": not_translated("a checkpoint is saved whole"),
    "--start-rollout-id": left_out("the checkpoint knows its iteration"),
    # Prompts and rewards
    "--prompt-data": to(f"{_ROLLOUT}.train.path", read=text_value),
    "--input-key": prompts("input_key"),
    "--label-key": prompts("label_key"),
    "--metadata-key": prompts("metadata_key"),
    "--apply-chat-template": prompts("apply_chat_template", read=switched_on),
    "--rollout-shuffle": to(f"{_ROLLOUT}.shuffle", read=switched_on),
    "--rollout-seed": left_out("seed_everything is the seed of prompts and samples too"),
    "--rollout-max-prompt-len": to(f"{_ROLLOUT}.train.max_prompt_tokens"),
    "--rm-type": reward,
    "--reward-key": left_out("a reward is one number here"),
    "--eval-reward-key": left_out("a reward is one number here"),
    "--reward-num-workers": to(f"{_ROLLOUT}.reward.num_workers"),
    "--reward-max-concurrency": left_out("data.rollout.reward.num_workers bounds it"),
    "--custom-rm-path": not_translated(
        "it takes (prompt, response, label, metadata): data.rollout.reward.class_path"
    ),
    # Sampling
    "--rollout-temperature": to(f"{_SAMPLING}.temperature"),
    "--rollout-top-p": to(f"{_SAMPLING}.top_p"),
    "--rollout-top-k": to(f"{_SAMPLING}.top_k"),
    "--rollout-max-response-len": to(f"{_SAMPLING}.max_new_tokens"),
    "--rollout-max-context-len": context_length,
    "--rollout-stop": to(f"{_SAMPLING}.stop", read=text_values),
    "--rollout-stop-token-ids": to(f"{_SAMPLING}.stop_token_ids", read=all_values),
    "--rollout-skip-special-tokens": left_out("a response is always decoded without special tokens"),
    # Evaluation
    "--eval-interval": to("trainer.val_check_interval"),
    "--eval-prompt-data": evaluation_prompts,
    "--eval-input-key": evaluation("input_key", read=text_value),
    "--eval-label-key": evaluation("label_key", read=text_value),
    "--n-samples-per-eval-prompt": evaluation("n_samples_per_prompt"),
    "--eval-temperature": evaluation("sampling.temperature"),
    "--eval-top-p": evaluation("sampling.top_p"),
    "--eval-top-k": evaluation("sampling.top_k"),
    "--eval-max-response-len": evaluation("sampling.max_new_tokens"),
    "--eval-max-prompt-len": evaluation("max_prompt_tokens"),
    "--eval-max-context-len": left_out("no limit on prompt and response together"),
    "--eval-config": not_translated("give data.rollout.validation: one entry a set"),
    "--skip-eval-before-train": left_out("training begins without one unless trainer.val_before_training"),
    "--log-passrate": left_out("pass@k of every set with several samples a prompt is val/<set>/pass_at_<k>"),
    # The rollout engine and the cluster
    "--rollout-num-gpus-per-engine": to(f"{_ROLLOUT}.engine.init_args.tensor_parallel_size"),
    "--rollout-num-gpus": follows_resources,
    "--rollout-external": not_translated("engines are started here; see data.rollout.engine"),
    "--resource": resource,
    "--colocate": to("cluster.colocate", read=switched_on),
    "--actor-num-nodes": actor_size,
    "--actor-num-gpus-per-node": actor_size,
    "--critic-num-nodes": follows_resources,
    "--critic-num-gpus-per-node": follows_resources,
    "--num-gpus-per-node": follows_resources,
    "--fully-async": not_translated("synchronous colocate is what is supported"),
    "--hybrid": not_translated("synchronous colocate is what is supported"),
    "--max-staleness": expected("0", because=_NEWEST, otherwise=_NEWEST),
    "--offload": left_out(_OFFLOAD),
    "--offload-train": left_out(_OFFLOAD),
    "--offload-rollout": left_out(_OFFLOAD),
    "--max-global-restart": to("cluster.max_restarts"),
    "--use-health-check": left_out("cluster.max_restarts says how often a lost worker is replaced"),
    "--use-fault-tolerance": left_out("cluster.max_restarts says how often a lost worker is replaced"),
    # The record
    "--wandb-project": to(f"{_MLFLOW}.experiment", read=text_value),
    "--wandb-group": to(f"{_MLFLOW}.run_name", read=text_value),
    "--tb-project-name": to(f"{_MLFLOW}.experiment", read=text_value),
    "--tb-experiment-name": to(f"{_MLFLOW}.run_name", read=text_value),
    "--timeline-dump-dir": left_out("timeline.json of the run folder"),
    # What Megatron would do otherwise
    **dict.fromkeys(
        ("--attention-dropout", "--hidden-dropout"),
        expected("0", "0.0", because="always so here", otherwise="models have no dropout here"),
    ),
    "--accumulate-allreduce-grads-in-fp32": left_out("always so here"),
    "--attention-softmax-in-fp32": left_out("always so here"),
    **dict.fromkeys(
        _OF_SPEED.split(),
        left_out("how fast, not what: decided here"),
    ),
    # The model file
    **dict.fromkeys(
        _OF_THE_MODEL.split(),
        left_out("read from the config.json of hf_checkpoint"),
    ),
    # What is not there
    **dict.fromkeys(
        _OF_OTHER_SAMPLES.split(),
        not_translated("an iteration learns from all the samples it generates, and from no others"),
    ),
    **dict.fromkeys(
        _OF_OWN_CODE.split(),
        not_translated("code of your own takes another form here: see docs/callbacks.md and the README"),
    ),
    "--group-rm": not_translated("a reward sees one sample"),
    "--multimodal-keys": not_translated("prompts are text"),
    "--tool-key": not_translated("prompts have no tools"),
}
"""The rule of a flag by its name."""

_PREFIXES: dict[str, Rule] = {
    "--sglang-router-": left_out("there is no router here"),
    "--sglang-profile": left_out("timeline.json of the run folder shows where the time goes"),
    "--sglang-server-concurrency": left_out("the engine takes all prompts of an iteration at once"),
    "--sglang-config": not_translated("give data.rollout.engine.init_args"),
    "--sglang-": sglang,
    "--rollout-health-check-": left_out("a lost engine ends the run; cluster.max_restarts"),
    "--slime-router-": left_out("there is no router here"),
    "--use-slime-router": left_out("there is no router here"),
    "--router-": left_out("there is no router here"),
    "--wandb-": _RECORD,
    "--use-wandb": _RECORD,
    "--disable-wandb-": _RECORD,
    "--use-tensorboard": _RECORD,
    "--no-use-tensorboard": _RECORD,
    "--tensorboard-": _RECORD,
    "--use-clearml": _RECORD,
    "--use-metrics-service": _RECORD,
    "--no-use-metrics-service": _RECORD,
    "--log-": _RECORD,
    "--save-debug-": left_out("samples/ of the run folder holds prompts, responses and rewards"),
    "--dump-details": left_out("samples/ of the run folder holds prompts, responses and rewards"),
    "--rollout-result-dir": left_out("samples/ of the run folder holds prompts, responses and rewards"),
    "--save-hf-": left_out("`relax-lightning export` writes a Hugging Face directory"),
    "--no-offload": left_out(_OFFLOAD),
    "--lora-": not_translated("all weights are trained"),
    "--moe-": not_translated(_NO_EXPERTS),
    "--num-experts": not_translated(_NO_EXPERTS),
    "--expert-": not_translated(_NO_EXPERTS),
    "--mtp-": not_translated("heads for several tokens ahead are not trained"),
    "--enable-mtp-": not_translated("heads for several tokens ahead are not trained"),
    "--opd-": not_translated("there is no distillation"),
    "--genrm-": not_translated("write the reward model as a class, data.rollout.reward.class_path"),
    "--agent": not_translated("write the turns as a rollout function: docs/rollout_functions.md"),
    "--use-agentic-": not_translated("write the turns as a rollout function: docs/rollout_functions.md"),
}


def rule_of(name: str) -> Rule | None:
    """The rule of a flag: its own, else that of the family its name begins with; None for an unknown one."""
    families = (rule for prefix, rule in _PREFIXES.items() if name.startswith(prefix))
    return TABLE.get(name) or next(families, None)
