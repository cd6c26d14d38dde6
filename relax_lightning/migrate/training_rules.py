"""Rules of the flags of the algorithm, of the optimizers, and of what cuts batches and models into parts."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import Flags, LeftOut, NotTranslated, Outcome, Setting, one_value, scalar
from relax_lightning.migrate.shell_text import unknown_source

_DYNAMIC = "--use-dynamic-batch-size"
_BETAS = {"--adam-beta1": "0.9", "--adam-beta2": "0.999"}


def kl_coef(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The KL in the rewards, which has no effect on the reference's PPO: nothing there makes the log-probs."""
    value = one_value(flag)
    reason = "switched off in their PPO, as here without model.reference"
    yield Setting("model.algorithm.kl_coef", value) if value == 0 else LeftOut(reason)


def betas(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Adam's two decay rates, one key here; 0.9 and 0.999 are Megatron's defaults."""
    given = [name for name in _BETAS if name in flags]
    if flag.name == given[0]:
        pair = [scalar(flags.text(name) or (default,)) for name, default in _BETAS.items()]
        origin = " ".join(str(flags.by_name[name]) for name in given)
        yield Setting("model.actor.optimizer.betas", pair, origin)


def decay_iters(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """How long the learning rate falls, unless it is constant; the reference's default is a linear decay."""
    if flags.known("--lr-decay-style") == "constant":
        yield LeftOut("no effect with --lr-decay-style constant")
    else:
        yield NotTranslated("a decay runs over all optimizer steps of the run here")


def steps_per_rollout(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Optimizer steps an iteration, which is the size of a step here."""
    steps = flags.whole_number(flag.name)
    prompts = flags.whole_number("--rollout-batch-size")
    samples = (prompts or 0) * (flags.whole_number("--n-samples-per-prompt", otherwise=1) or 0)
    text, size = flags.text("--global-batch-size"), flags.whole_number("--global-batch-size")
    if text is not None and unknown_source(text) is None:
        if steps and samples and size and samples // steps != size:
            of = f"{flags.by_name['--global-batch-size']} of {samples} samples"
            reason = f"{of} says another number of steps; set model.global_batch_size to what is meant"
            yield NotTranslated(reason)
        else:
            yield LeftOut("--global-batch-size says it")
    elif steps == 1:
        yield LeftOut("one optimizer step an iteration is what model.global_batch_size: null means")
    elif steps and samples:
        yield Setting("model.global_batch_size", samples // steps)
    else:
        yield NotTranslated("give model.global_batch_size: samples of the iteration / optimizer steps in it")


def micro_batch_size(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """A fixed number of samples, unless they are packed by tokens."""
    if _DYNAMIC in flags:
        yield LeftOut(f"no effect with {_DYNAMIC}, there as here")
    else:
        yield Setting("model.micro_batch_size", one_value(flag))


def max_tokens_per_gpu(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Tokens of a packed micro-batch; there of each context-parallel rank, here of all of them."""
    key = "model.max_tokens_per_microbatch"
    ranks, tokens = flags.whole_number("--context-parallel-size", otherwise=1), flags.whole_number(flag.name)
    if _DYNAMIC not in flags:
        yield LeftOut(f"no effect there without {_DYNAMIC}")
    elif ranks == 1:
        yield Setting(key, one_value(flag))
    elif ranks and tokens:
        yield Setting(key, ranks * tokens, f"{flag}, on {ranks} context-parallel ranks")
    else:
        yield NotTranslated(f"give {key}: this number * the context-parallel size")


def sequence_parallel(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Needs something to cut, there as here."""
    if flags.whole_number("--tensor-model-parallel-size", otherwise=1) == 1:
        yield LeftOut("nothing to cut at tensor size 1")
    else:
        yield Setting("model.actor.parallel.sequence", True)
