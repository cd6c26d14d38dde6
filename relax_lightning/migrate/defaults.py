"""What the reference does where a script says nothing, and where the same words mean different things."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.data_rules import evaluation_sets
from relax_lightning.migrate.rules import Flags, Setting

_ALGORITHM, _OPTIMIZER = "model.algorithm", "model.actor.optimizer"

_DEFAULTS: tuple[tuple[tuple[str, ...], Setting], ...] = (
    (("--advantage-estimator",), Setting(f"{_ALGORITHM}.advantage_estimator", "grpo")),
    (("--use-rollout-logprobs",), Setting(f"{_ALGORITHM}.old_log_probs", "recompute")),
    (("--calculate-per-token-loss",), Setting(f"{_ALGORITHM}.loss_aggregation", "sequence_mean")),
    (("--adam-beta1", "--adam-beta2"), Setting(f"{_OPTIMIZER}.betas", [0.9, 0.999])),
    (("--weight-decay",), Setting(f"{_OPTIMIZER}.weight_decay", 0.01)),
    (("--lr-decay-style",), Setting(f"{_OPTIMIZER}.decay", "linear")),
    (("--rollout-shuffle",), Setting("data.rollout.shuffle", False)),
)
"""The reference's default of flags of which none is given, where it changes results and ours is another."""


def default_settings(flags: Flags) -> Iterator[Setting]:
    """Keys for what a script leaves to defaults that differ from ours."""
    for names, setting in _DEFAULTS:
        if not any(name in flags for name in names):
            yield Setting(setting.key, setting.value, f"their default without {' and '.join(names)}")
    yield Setting("data.rollout.engine.class_path", "SGLangEngine", "generates in every run there")
    for name, default in (("input", "input"), ("label", None)):
        if "--prompt-data" in flags and f"--{name}-key" not in flags:
            sets = [] if f"--eval-{name}-key" in flags else evaluation_sets(flags)
            for place in ("train", *(f"validation.{one}" for one in sets)):
                key = f"data.rollout.{place}.{name}_key"
                yield Setting(key, default, f"their default without --{name}-key")
    if "--resource" in flags and "--colocate" not in flags:
        yield Setting("cluster.colocate", False, "--colocate is missing")
    prompts, samples = (
        flags.whole_number("--global-batch-size"),
        flags.whole_number("--n-samples-per-prompt", 1),
    )
    if "--rollout-batch-size" not in flags and prompts and samples:
        origin = "--global-batch-size / --n-samples-per-prompt, without --rollout-batch-size"
        yield Setting("data.rollout.batch_size", prompts // samples, origin)


def differences(flags: Flags) -> Iterator[str]:
    """One sentence or two for everything in these flags that means something else here."""
    if flags.likely("--advantage-estimator", "grpo") not in (None, "ppo"):
        yield (
            "the script does not ask for PPO, and PPO with a critic is all there is here: set "
            "model.algorithm.advantage_estimator: ppo and say what the critic needs"
        )
    if "--calculate-per-token-loss" not in flags:
        yield (
            "the loss is the mean over samples of each sample's mean there, unless --calculate-per-token-loss is "
            "given: loss_aggregation: sequence_mean. The default here is token_mean, over all tokens of a step"
        )
    yield (
        "the value loss has no factor 0.5 there: value_loss and the critic's gradients are half as large here. Adam's "
        "steps are the same, but clip_grad: 1.0 cuts at what was 2.0 there; model.critic.optimizer.clip_grad: 0.5 "
        "cuts where it did"
    )
    yield (
        "each role computes GAE for itself there; here the advantages service computes it once, over trainable "
        "tokens only, and the critic learns from its returns"
    )
    if any(
        flags.known(name) not in (None, "0") for name in ("--critic-lr-warmup-iters", "--lr-warmup-iters")
    ):
        yield "the first step of a warm-up has learning rate 0 there, and lr / num_iters here"
    if "--use-kl-loss" in flags or flags.known("--kl-coef") not in (None, "0", "0.0", "0.00"):
        yield (
            "the KL terms have no effect there, because PPO has no reference model: they were left out. "
            "model.reference gives one here"
        )
    yield from _differences_of_runs(flags)


def _differences_of_runs(flags: Flags) -> Iterator[str]:
    if not all(flags.known(name) in ("0", "0.0") for name in ("--attention-dropout", "--hidden-dropout")):
        yield "Megatron has a dropout of 0.1 unless --attention-dropout and --hidden-dropout say 0; here there is none"
    if "--eval-interval" in flags and "--skip-eval-before-train" not in flags:
        yield "there is an evaluation before training there; trainer.val_before_training: true asks for one here"
    if "--save-interval" in flags and "--max-actor-ckpt-to-keep" not in flags:
        yield "all checkpoints are kept there; here callbacks.checkpoint.keep_last of them, by default 2"
    if "--save" in flags and "--critic-save" not in flags:
        yield "the critic is not saved there without --critic-save; here it lies beside the actor"
    if "--rollout-max-response-len" not in flags:
        yield "responses have no length limit of their own there; here max_new_tokens, by default 512"
