"""Pure checks over a whole configuration, before anything starts. Imports no torch."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from relax_lightning.checkpoints.folders import is_same_folder
from relax_lightning.checkpoints.same_model import same_model_problems
from relax_lightning.config.engines import ENGINES
from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.loader import resolve
from relax_lightning.config.rewards import REWARDS
from relax_lightning.config.rollout import SamplingConfig
from relax_lightning.config.tree import Config
from relax_lightning.plan.algorithm_checks import algorithm_problems, missing_reference_problems
from relax_lightning.plan.availability import unavailable_problems
from relax_lightning.plan.files import (
    context_tokens,
    data_problems,
    folder_problems,
    load_problems,
    model_problems,
    resume_problems,
    source_problems,
)
from relax_lightning.plan.machine import machine_problems
from relax_lightning.plan.room import room_problems
from relax_lightning.plan.schedule import (
    critic_only_iterations,
    optimizer_steps,
    samples_per_iteration,
    warmup_steps,
)
from relax_lightning.plan.tokens import token_problems
from relax_lightning.plan.topology import topology_problems


def check(
    config: Config,
    *,
    check_files: bool = True,
    resume: str | None = None,
    subcommand: str = "fit",
    gpu_memory: int | None = None,
) -> list[Problem]:
    """Everything that is wrong with a configuration whose fields are sound one by one.

    Args:
        config: as it was loaded, resolved or not.
        check_files: look at the paths as well.
        resume: what `--ckpt_path` says.
        subcommand: `fit`, `validate` or `plan`; for `plan` without files, what `fit` cannot do here is a warning.
        gpu_memory: Bytes of one GPU to plan for; None: of those found here.
    """
    with warnings.catch_warnings():
        # What resolving warns of is among the problems below.
        warnings.simplefilter("ignore")
        resolved = resolve(config)
    problems = [problem for find in _OF_KEYS for problem in find(resolved)]
    problems += [
        *missing_reference_problems(config),
        *_save_problems(config),
        *_subcommand_problems(resolved, subcommand),
    ]
    problems += _context_problems(resolved, check_files)
    problems += topology_problems(resolved, check_files=check_files)
    if check_files or subcommand == "plan":
        problems += unavailable_problems(resolved, elsewhere=not check_files)
    if subcommand != "validate":
        problems += [*_schedule_problems(resolved), *_validation_problems(resolved)]
    problems += room_problems(resolved, check_files=check_files, gpu_memory=gpu_memory)
    if check_files:
        problems += [problem for find in _OF_FILES for problem in find(resolved)]
        problems += resume_problems(resolved, resume, subcommand)
        problems += same_model_problems(resolved, resume)
    return problems


def _source_problems(config: Config) -> Iterator[Problem]:
    actor = config.model.actor
    key, involves = "model.actor.hf_checkpoint", ("model.actor.architecture",)
    if actor.hf_checkpoint is None and actor.architecture is None:
        change = "give a Hugging Face directory, or model.actor.architecture for a model from scratch"
        yield Problem(key, f"wanted a model, got nothing; {change}", involves=involves)
    if actor.hf_checkpoint is not None and actor.architecture is not None:
        change = "remove it, or model.actor.architecture; a tokenizer alone goes to model.actor.tokenizer"
        message = fault("one of hf_checkpoint and architecture", actor.hf_checkpoint, change)
        yield Problem(key, message, involves=involves)
    if actor.architecture is not None and actor.tokenizer is None:
        change = "give a folder with a tokenizer, or an import path such as my_task.Tokenizer"
        message = f"wanted a tokenizer for a model from scratch, got nothing; {change}"
        yield Problem("model.actor.tokenizer", message, involves=involves)


def _batch_problems(config: Config) -> Iterator[Problem]:
    model, samples = config.model, samples_per_iteration(config)
    sizes = ("data.rollout.batch_size", "data.rollout.n_samples_per_prompt")
    if samples is not None and model.global_batch_size is not None and samples % model.global_batch_size:
        wanted = f"a divisor of batch_size * n_samples_per_prompt = {samples}"
        message = fault(wanted, model.global_batch_size, "change one of the three")
        yield Problem("model.global_batch_size", message, involves=sizes)
    step = model.global_batch_size or samples
    if step is not None and model.micro_batch_size is not None and step % model.micro_batch_size:
        message = fault(
            f"a divisor of the {step} samples of an optimizer step", model.micro_batch_size, "change it"
        )
        yield Problem("model.micro_batch_size", message, involves=("model.global_batch_size", *sizes))
    if model.micro_batch_size is not None and model.max_tokens_per_microbatch is not None:
        message = fault("only one of micro_batch_size and max_tokens_per_microbatch", "both", "remove one")
        yield Problem("model.micro_batch_size", message, involves=("model.max_tokens_per_microbatch",))


def _learning_rate_problems(config: Config) -> Iterator[Problem]:
    actor = config.model.actor.optimizer
    for role, optimizer in {"actor": actor, "critic": config.model.critic.optimizer.following(actor)}.items():
        if role == "critic" and (optimizer.min_lr, optimizer.lr) == (actor.min_lr, actor.lr):
            continue
        if optimizer.min_lr > optimizer.lr:
            message = fault(
                f"at most the {role}'s lr, {optimizer.lr}", optimizer.min_lr, "lower it or raise lr"
            )
            key = f"model.{role}.optimizer"
            yield Problem(f"{key}.min_lr", message, involves=(f"{key}.lr", "model.actor.optimizer"))


def _schedule_problems(config: Config) -> Iterator[Problem]:
    steps, critic_only = config.trainer.max_steps, critic_only_iterations(config)
    if steps < 1:
        return
    if critic_only > steps:
        message = fault(f"at most trainer.max_steps = {steps}", critic_only, "lower it or train longer")
        yield Problem("callbacks.critic_only_warmup.num_steps", message, involves=("trainer.max_steps",))
        critic_only = 0
    elif critic_only == steps:
        change = "every iteration trains the critic alone; lower it unless that is what you want"
        message = fault(f"fewer than trainer.max_steps = {steps}", critic_only, change)
        yield Problem("callbacks.critic_only_warmup.num_steps", message, "warning", ("trainer.max_steps",))
    for role, iterations in {"actor": steps - critic_only, "critic": steps}.items():
        per_iteration, warmup = optimizer_steps(config, role), warmup_steps(config, role)
        if per_iteration is None or not iterations or warmup <= iterations * per_iteration:
            continue
        wanted = (
            f"at most the {role}'s {iterations * per_iteration} optimizer steps "
            f"({iterations} iterations of {per_iteration})"
        )
        message = fault(wanted, warmup, "lower it or train longer")
        yield Problem(f"callbacks.lr_warmup.{role}.num_iters", message, involves=_SCHEDULE_KEYS)


_SCHEDULE_KEYS = (
    "trainer.max_steps",
    "callbacks.critic_only_warmup.num_steps",
    "data.rollout.batch_size",
    "data.rollout.n_samples_per_prompt",
    "model.global_batch_size",
    "model.algorithm.num_ppo_epochs",
    "model.algorithm.num_critic_epochs",
)


def _sampling_problems(config: Config) -> Iterator[Problem]:
    sampling, key = config.data.rollout.sampling, "data.rollout.sampling"
    if sampling.temperature == 0:
        message = fault(
            "a temperature above 0 for training", 0, "greedy sampling is for validation sets only"
        )
        yield Problem(f"{key}.temperature", message)
    if config.model.algorithm.old_log_probs != "rollout":
        return
    remedy = "sample from the whole distribution, or set model.algorithm.old_log_probs: recompute"
    involves = ("model.algorithm.old_log_probs",)
    for name, free in {"top_p": sampling.top_p == 1, "top_k": sampling.top_k <= 0}.items():
        if not free:
            off = "1.0" if name == "top_p" else "-1"
            wanted = f"{name}: {off} with the engine's log-probs as the ratio's base"
            yield Problem(f"{key}.{name}", fault(wanted, getattr(sampling, name), remedy), involves=involves)


def _context_problems(config: Config, check_files: bool) -> Iterator[Problem]:
    is_known = check_files or config.model.actor.architecture is not None
    context, rollout = context_tokens(config) if is_known else None, config.data.rollout
    sets = {f"validation.{name}": prompts for name, prompts in rollout.validation.items()}
    seen: set[tuple[int, int]] = set()
    for name, prompts in {"train": rollout.train, **sets}.items():
        own = prompts.sampling if prompts is not None else None
        sampling = own or rollout.sampling
        # A prompt without a bound has one token at least.
        prompt = (prompts.max_prompt_tokens if prompts is not None else None) or 1
        # A validation set that follows the training set would only say the same again.
        if context is None or (prompt, sampling.max_new_tokens) in seen:
            continue
        seen.add((prompt, sampling.max_new_tokens))
        if prompt + sampling.max_new_tokens > context:
            where = "" if own is None or own == rollout.sampling else f"{name}."
            bounded = prompts is not None and prompts.max_prompt_tokens is not None
            yield _too_long(where, name, prompt, sampling, context, bounded)


def _too_long(
    where: str, name: str, prompt: int, sampling: SamplingConfig, context: int, bounded: bool
) -> Problem:
    wanted = f"prompt + response of at most {context} tokens, the model's context"
    change = f"lower it or data.rollout.{name}.max_prompt_tokens" if bounded else "lower it"
    message = f"wanted {wanted}, got {prompt} + {sampling.max_new_tokens}; {change}"
    involves = ("model.actor", f"data.rollout.{name}")
    return Problem(f"data.rollout.{where}sampling.max_new_tokens", message, involves=involves)


def _name_problems(config: Config) -> Iterator[Problem]:
    estimator, reward = config.model.algorithm.advantage_estimator, config.data.rollout.reward
    if estimator != "ppo":
        message = fault(
            "`ppo` (GAE with a critic), the only one supported", estimator, "change it or leave it out"
        )
        yield Problem("model.algorithm.advantage_estimator", message)
    if reward is not None and reward.name is not None and reward.name not in REWARDS:
        message = fault(f"one of {', '.join(REWARDS)}", reward.name, _nearest(reward.name, tuple(REWARDS)))
        yield Problem("data.rollout.reward.name", f"{message}; a reward of your own goes to class_path")
    elif reward is not None and reward.name is not None and REWARDS[reward.name].needs_label:
        yield from _missing_labels(config, reward.name)
    engine = config.data.rollout.engine.class_path
    if "." not in engine and engine not in ENGINES:
        message = fault(f"{', '.join(ENGINES)} or an import path", engine, _nearest(engine, tuple(ENGINES)))
        yield Problem("data.rollout.engine.class_path", message)


def _missing_labels(config: Config, reward: str) -> Iterator[Problem]:
    rollout = config.data.rollout
    sets = {"train": rollout.train, **{f"validation.{name}": s for name, s in rollout.validation.items()}}
    for name, prompts in sets.items():
        if prompts is not None and prompts.label_key is None:
            message = fault(f"a column, since the reward {reward} compares with a label", None, "name it")
            yield Problem(f"data.rollout.{name}.label_key", message, involves=("data.rollout.reward",))


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean `{near[0]}`?" if near else "change it"


def _save_problems(config: Config) -> Iterator[Problem]:
    own, actor = config.model.critic.save, config.model.actor.save
    actor = actor or str(Path(config.trainer.default_root_dir) / "checkpoints")
    if own is not None and is_same_folder(own, actor):
        change = "one root holds both halves of a checkpoint: leave it out"
        message = fault("another root than the actor's, or nothing", own, change)
        yield Problem("model.critic.save", message, "warning", ("model.actor.save",))


def _subcommand_problems(config: Config, subcommand: str) -> Iterator[Problem]:
    trainer = config.trainer
    if subcommand != "validate" and trainer.max_steps < 1 and not trainer.fast_dev_run:
        message = fault(
            "a number of iterations of at least 1 for fit", trainer.max_steps, "give one, for example 100"
        )
        yield Problem("trainer.max_steps", message)
    if subcommand == "validate" and not config.data.rollout.validation:
        change = "add one, for example {mine: {path: prompts.jsonl}}"
        message = f"wanted a set of prompts for validate, got none; {change}"
        yield Problem("data.rollout.validation", message)


def _validation_problems(config: Config) -> Iterator[Problem]:
    trainer = config.trainer
    asked = {
        "val_check_interval": trainer.val_check_interval is not None,
        "val_before_training": trainer.val_before_training,
    }
    for name in (name for name, is_set in asked.items() if is_set and not config.data.rollout.validation):
        message = fault("sets of prompts in data.rollout.validation", {}, "nothing is evaluated; add one")
        yield Problem(f"trainer.{name}", message, "warning", ("data.rollout.validation",))
    if (trainer.val_check_interval or 0) > trainer.max_steps > 0:
        wanted = f"at most max_steps ({trainer.max_steps})"
        message = fault(wanted, trainer.val_check_interval, "nothing is evaluated in between; lower it")
        yield Problem("trainer.val_check_interval", message, "warning", ("trainer.max_steps",))


_Check = Callable[[Config], Iterator[Problem]]
_OF_KEYS: tuple[_Check, ...] = (
    _source_problems,
    _batch_problems,
    _learning_rate_problems,
    _sampling_problems,
    _name_problems,
    algorithm_problems,
)
_OF_FILES: tuple[_Check, ...] = (
    model_problems,
    token_problems,
    source_problems,
    data_problems,
    folder_problems,
    load_problems,
    machine_problems,
)
