"""Rules of the flags of prompts, sampling, evaluation, rewards and the rollout engine."""

from __future__ import annotations

from collections.abc import Iterator

from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import (
    CannotTranslate,
    Flags,
    LeftOut,
    NotTranslated,
    Outcome,
    Reader,
    Rule,
    Setting,
    all_values,
    as_text,
    one_value,
    text_value,
    text_values,
)
from relax_lightning.migrate.shell_text import Text, literal

_TRAIN, _VALIDATION = "data.rollout.train", "data.rollout.validation"

SAMPLING: dict[str, tuple[str, str, Reader]] = {
    "temperature": ("--eval-temperature", "--rollout-temperature", one_value),
    "top_p": ("--eval-top-p", "--rollout-top-p", one_value),
    "top_k": ("--eval-top-k", "--rollout-top-k", one_value),
    "max_new_tokens": ("--eval-max-response-len", "--rollout-max-response-len", one_value),
    "stop": ("", "--rollout-stop", text_values),
    "stop_token_ids": ("", "--rollout-stop-token-ids", all_values),
}
"""Our key under `sampling`, the reference's flag for evaluation and the one for rollouts."""

REWARDS = {"dapo": "dapo_math"}


def prompts(field: str, read: Reader = text_value) -> Rule:
    """The rule of a flag about the training prompts that the evaluation sets follow."""

    def rule(flag: Flag, flags: Flags) -> Iterator[Outcome]:
        value = read(flag)
        yield Setting(f"{_TRAIN}.{field}", value)
        own = f"--eval-{field.replace('_', '-')}"
        if own not in flags:
            yield from (Setting(f"{_VALIDATION}.{name}.{field}", value) for name in evaluation_sets(flags))

    return rule


def evaluation_prompts(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Pairs of name and path; `sampling` of a set replaces the rollouts' as a whole, so it is written out."""
    sets = evaluation_sets(flags)
    if not sets:
        raise CannotTranslate("wanted pairs of name and path; set data.rollout.validation by hand")
    has_own_sampling = any(own in flags for own, *_ in SAMPLING.values())
    for name, path in sets.items():
        yield Setting(f"{_VALIDATION}.{name}.path", as_text(path))
        for field, (own, of_rollouts, read) in SAMPLING.items():
            if has_own_sampling and own not in flags and of_rollouts in flags:
                source = flags.by_name[of_rollouts]
                yield Setting(f"{_VALIDATION}.{name}.sampling.{field}", read(source), f"as {source}")


def evaluation(field: str, read: Reader = one_value) -> Rule:
    """The rule of a flag about every evaluation set."""

    def rule(flag: Flag, flags: Flags) -> Iterator[Outcome]:
        sets = evaluation_sets(flags)
        if not sets:
            yield LeftOut("there is no evaluation set")
        yield from (Setting(f"{_VALIDATION}.{name}.{field}", read(flag)) for name in sets)

    return rule


def evaluation_sets(flags: Flags) -> dict[str, Text]:
    """The evaluation sets by name, with their paths; none where they are not pairs of a known name and a path."""
    flag = flags.by_name.get("--eval-prompt-data")
    values = () if flag is None else flag.values
    if len(values) == 1:
        values = (("aime",), *values)  # the name that the reference gives to a lone path
    names, paths = [literal(name) for name in values[0::2]], values[1::2]
    known = [name.replace(".", "_") for name in names if name]
    return dict(zip(known, paths, strict=True)) if len(known) == len(names) == len(paths) else {}


def reward(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """A reward that ships with ours under another name."""
    name = text_value(flag)
    if name in REWARDS:
        yield Setting("data.rollout.reward.name", REWARDS[name])
    else:
        yield NotTranslated("no such reward here: write it as a class, data.rollout.reward.class_path")


def context_length(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """A limit on prompt and response together, which two limits may imply."""
    limit = flags.whole_number(flag.name)
    parts = [flags.whole_number(name) for name in ("--rollout-max-prompt-len", "--rollout-max-response-len")]
    if limit and all(parts) and sum(n for n in parts if n) <= limit:
        yield LeftOut("implied by the limits on prompt and response")
    else:
        yield NotTranslated(
            "no limit on both together: lower max_prompt_tokens and max_new_tokens to fit into it"
        )
