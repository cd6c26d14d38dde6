"""Rules of the flags that cut batches and models into parts."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import Flags, LeftOut, NotTranslated, Outcome, Setting, one_value
from relax_lightning.migrate.shell_text import unknown_source

_DYNAMIC = "--use-dynamic-batch-size"


def steps_per_rollout(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Optimizer steps an iteration, which is the size of a step here."""
    steps = flags.whole_number(flag.name)
    prompts = flags.whole_number("--rollout-batch-size")
    samples = flags.whole_number("--n-samples-per-prompt", otherwise=1)
    size = flags.text("--global-batch-size")
    if size is not None and unknown_source(size) is None:
        yield _beside_size(steps, prompts and samples and prompts * samples, flags)
    elif steps == 1:
        yield LeftOut("one optimizer step an iteration is what model.global_batch_size: null means")
    elif steps and prompts and samples:
        yield Setting("model.global_batch_size", prompts * samples // steps)
    else:
        yield NotTranslated("give model.global_batch_size: samples of the iteration / optimizer steps in it")


def _beside_size(steps: int | None, samples: int | None, flags: Flags) -> Outcome:
    size = flags.whole_number("--global-batch-size")
    if steps and samples and size and samples // steps != size:
        reason = f"{flags.by_name['--global-batch-size']} of {samples} samples says another number of steps"
        return NotTranslated(f"{reason}; set model.global_batch_size to what is meant")
    return LeftOut("--global-batch-size says it")


def micro_batch_size(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """A fixed number of samples, unless they are packed by tokens."""
    if _DYNAMIC in flags:
        yield LeftOut(f"no effect with {_DYNAMIC}, there as here")
    else:
        yield Setting("model.micro_batch_size", one_value(flag))


def max_tokens_per_gpu(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Tokens of a packed micro-batch; there of each context-parallel rank, here of all of them."""
    ranks = flags.whole_number("--context-parallel-size", otherwise=1)
    tokens = flags.whole_number(flag.name)
    if _DYNAMIC not in flags:
        yield LeftOut(f"no effect there without {_DYNAMIC}")
    elif ranks == 1:
        yield Setting("model.max_tokens_per_microbatch", one_value(flag))
    elif ranks and tokens:
        yield Setting(
            "model.max_tokens_per_microbatch", ranks * tokens, f"{flag}, on {ranks} context-parallel ranks"
        )
    else:
        yield NotTranslated("give model.max_tokens_per_microbatch: this number * the context-parallel size")


def dynamic_batch_size(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Packing by tokens, which is how it goes here unless micro_batch_size is given."""
    yield LeftOut("micro-batches are packed by tokens unless model.micro_batch_size is given")


def sequence_parallel(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Needs something to cut, there as here."""
    if flags.whole_number("--tensor-model-parallel-size", otherwise=1) == 1:
        yield LeftOut("nothing to cut at tensor size 1")
    else:
        yield Setting("model.actor.parallel.sequence", True)
