"""The words of a launch as flags with their values. A variable among them may stand for flags as well."""

from __future__ import annotations

import re
from dataclasses import dataclass

from relax_lightning.migrate.shell_text import Text, Variable, shown

_SECRET = re.compile(r"wandb-key|api-key|token$|secret|password|notify-urls")
_NAME_OF_FLAGS = re.compile(r"(ARGS|FLAGS|OPTS|OPTIONS)$", re.I)
_OF_SWITCHES = ("--use-", "--no-", "--disable-", "--overlap-")
_SWITCHES = """
    --normalize-advantages --calculate-per-token-loss --critic-train-only --reset-optimizer-states
    --get-mismatch-metrics --optimizer-cpu-offload --balance-data --sequence-parallel
    --recompute-activations --bf16 --fp16 --async-save --rotate-ckpt --finetune --apply-chat-template
    --rollout-shuffle --rollout-skip-special-tokens --skip-eval-before-train --log-passrate
    --rollout-external --colocate --fully-async --hybrid --offload --offload-train --offload-rollout
    --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32 --cross-entropy-loss-fusion
    --recompute-loss-function --group-query-attention --swiglu --apply-layernorm-1p --add-qkv-bias
    --qk-layernorm --untie-embeddings-and-output-weights --attention-output-gate --partial-rollout
    --group-rm --moe-grouped-gemm
"""
_OF_MANY_VALUES = "--rollout-stop --rollout-stop-token-ids --eval-prompt-data --train-env-vars --spec"


@dataclass(frozen=True)
class Flag:
    """One flag of the launch command with its values."""

    name: str
    values: tuple[Text, ...] = ()

    def __str__(self) -> str:
        if self.values and _SECRET.search(self.name):
            return f"{self.name} ***"
        values = [shown(value) for value in self.values]
        return " ".join([self.name, *(v if v and not re.search(r"\s", v) else f"'{v}'" for v in values)])


def is_flag(word: Text) -> bool:
    """Whether a word is a flag's name, with or without `=value`."""
    return bool(word) and isinstance(word[0], str) and word[0].startswith("--") and word != ("--",)


def read_flags(words: list[Text]) -> tuple[list[Flag], list[Text]]:
    """The flags among the words of a launch, and the words that are no values: they stand for flags unknown here."""
    flags, strays = list[Flag](), list[Text]()
    for word in words:
        if is_flag(word):
            first = word[0]
            assert isinstance(first, str)
            name, equals, rest = first.partition("=")
            value = ((rest,) if rest else ()) + word[1:]
            flags.append(Flag(name, (value,) if equals else ()))
        elif _may_be_flags(word) and (not flags or not _takes(flags[-1], word)):
            strays.append(word)
        elif flags:
            flags[-1] = Flag(flags[-1].name, (*flags[-1].values, word))
    return flags, strays


def _may_be_flags(word: Text) -> bool:
    return len(word) == 1 and not isinstance(word[0], str)


def _takes(flag: Flag, word: Text) -> bool:
    """Whether a variable behind a flag is one more value of it."""
    piece = word[0]
    if (
        flag.name in _SWITCHES
        or flag.name.startswith(_OF_SWITCHES)
        or (isinstance(piece, Variable) and _NAME_OF_FLAGS.search(piece.name))
    ):
        return False
    return not flag.values or flag.name in _OF_MANY_VALUES.split() or flag.name.startswith("--sglang-")
