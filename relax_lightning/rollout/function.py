"""Calling a rollout function of a user's own, and refusing what cannot be learned from."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from typing import Any

from relax_lightning.config import RolloutFunctionConfig
from relax_lightning.rollout.turns import RolloutFunction, Sample, TurnEngine
from relax_lightning.run.import_path import import_object

_KEY = "data.rollout.function"
_NUM_DETAILS = 5


class RolloutFunctionError(RuntimeError):
    """A rollout function raised, or gave back what is no response to its samples."""


def load_rollout_function(config: RolloutFunctionConfig) -> RolloutFunction:
    """Import the function and, where it is a class, build it.

    Raises:
        ValueError: It cannot be imported or built, or does not take (samples, engine).
    """
    found: Any = import_object(f"{_KEY}.class_path", config.class_path)
    if isinstance(found, type):
        try:
            found = found(**config.init_args)
        except TypeError as error:
            raise ValueError(f"{_KEY}.init_args: {config.class_path} does not take them: {error}") from error
    elif config.init_args:
        raise ValueError(
            f"{_KEY}.init_args: wanted nothing for {config.class_path}, which is no class, got {config.init_args}; "
            "leave them out"
        )
    try:
        inspect.signature(found).bind((), None)
    except TypeError as error:
        raise ValueError(
            f"{_KEY}.class_path: wanted a function of (samples, engine), or a class whose instances are one, got "
            f"{config.class_path}: {error}"
        ) from error
    return found


def run_rollout_function(
    function: RolloutFunction, samples: Sequence[Sample], engine: TurnEngine, num_tokens: int | None = None
) -> list[Sample]:
    """The samples with their responses.

    Args:
        function: The user's.
        samples: Without responses.
        engine: For this round of generation.
        num_tokens: Size of the vocabulary; None: it is not known.

    Raises:
        RolloutFunctionError: The function raised, or its samples are wrong: says which and how.
    """
    try:
        # Of a list of its own, which it may change.
        answered = function(list(samples), engine)
    except Exception as error:
        raise RolloutFunctionError(f"the rollout function raised {type(error).__name__}: {error}") from error
    name = f"{_KEY} ({getattr(function, '__qualname__', type(function).__qualname__)})"
    if not isinstance(answered, Sequence) or not all(isinstance(sample, Sample) for sample in answered):
        raise RolloutFunctionError(f"{name}: wanted a list of samples, got {_describe(answered)}")
    if [sample.sample_id for sample in answered] != [sample.sample_id for sample in samples]:
        raise RolloutFunctionError(
            f"{name}: wanted the {len(samples)} samples in their order, got {len(answered)} "
            f"({[sample.sample_id for sample in answered][:8]}...); return one for each that came in"
        )
    found = [
        f"  sample {sample.sample_id}: {problem}"
        for sample, given in zip(answered, samples, strict=True)
        for problem in _problems(sample, given, engine, num_tokens)
    ]
    if found:
        more = f"\n  and {len(found) - _NUM_DETAILS} more" if len(found) > _NUM_DETAILS else ""
        raise RolloutFunctionError(
            "\n".join([f"{name} gave back samples that cannot be learned from:", *found[:_NUM_DETAILS]])
            + more
        )
    return list(answered)


def _problems(sample: Sample, given: Sample, engine: TurnEngine, num_tokens: int | None) -> Iterator[str]:
    """What is wrong with one answered sample; at most one problem of its shape, else those of its contents."""
    for name in ("token_ids", "mask", "log_probs"):
        if not isinstance(getattr(sample, name), tuple):
            yield f"wanted a tuple as {name}, got {type(getattr(sample, name)).__name__}"
            return
    length = len(sample.token_ids)
    if len(sample.mask) != length or len(sample.log_probs) != length:
        yield (
            f"wanted one mask and one log-prob for each of its {length} tokens, got {len(sample.mask)} and "
            f"{len(sample.log_probs)}; add tokens with engine.append or sample.with_tokens"
        )
        return
    if sample.prompt_token_ids != given.prompt_token_ids:
        yield "wanted the prompt as it came, got another one; what follows the prompt is the response"
    longest = engine.sampling.max_new_tokens
    if length > longest:
        yield f"wanted at most max_new_tokens = {longest} tokens, got {length}; ask engine.room before adding"
    if sample.finish_reason not in ("stop", "length"):
        yield f"wanted finish_reason `stop` or `length`, got {sample.finish_reason!r}"
    wrong = [token for token in sample.token_ids if not _is_token(token, num_tokens)]
    if wrong:
        yield f"wanted token ids from 0 to {'any' if num_tokens is None else num_tokens - 1}, got {wrong[:5]}"
        return
    yield from _mask_problems(sample, engine)


def _mask_problems(sample: Sample, engine: TurnEngine) -> Iterator[str]:
    kinds = sorted({type(value).__name__ for value in sample.mask if not isinstance(value, bool)})
    if kinds:
        yield f"wanted True or False in the mask, got {', '.join(kinds)}"
        return
    odd = [
        value for value in sample.log_probs if not isinstance(value, float | int) or not math.isfinite(value)
    ]
    if odd:
        yield f"wanted finite numbers as log-probs, got {odd[:5]}"
        return
    for start, end in _runs(sample.mask):
        if not engine.was_generated(sample, start, end):
            yield (
                f"wanted mask True only on tokens that the engine generated after what stands before them, got it on "
                f"{start} to {end - 1}, which it did not generate there; mask them False, or keep the turns whole"
            )
            return


def _runs(mask: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Start and end of every run of True."""
    start = None
    for position, learned in enumerate((*mask, False)):
        if learned and start is None:
            start = position
        elif not learned and start is not None:
            yield start, position
            start = None


def _is_token(token: Any, num_tokens: int | None) -> bool:
    is_whole = isinstance(token, int) and not isinstance(token, bool)
    return is_whole and token >= 0 and (num_tokens is None or token < num_tokens)


def _describe(answered: Any) -> str:
    if not isinstance(answered, Sequence):
        return type(answered).__name__
    kinds = sorted({type(entry).__name__ for entry in answered})
    return f"a {type(answered).__name__} of {', '.join(kinds)}"
