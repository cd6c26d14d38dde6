"""Responses of several turns on a real engine, and what is refused of a rollout function's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from relax_lightning.config import RolloutFunctionConfig, SamplingConfig
from relax_lightning.rollout.embedded import MegatronEngine
from relax_lightning.rollout.engine import RolloutEngine
from relax_lightning.rollout.function import RolloutFunctionError, load_rollout_function, run_rollout_function
from relax_lightning.rollout.turns import Sample, TurnEngine
from tests.rollout.letters import VOCABULARY, Letters

SAMPLES = [Sample(n, (40 + n, 41), f"prompt {n}", None) for n in range(12)]
SAMPLING = SamplingConfig(max_new_tokens=20, temperature=0.9, ignore_eos=True)


@pytest.fixture(scope="module", params=["megatron", "sglang"])
def engine(request: pytest.FixtureRequest, tiny_actor: Any) -> RolloutEngine:
    made: Any = MegatronEngine() if request.param == "megatron" else request.getfixturevalue("sglang_engine")
    if request.param == "megatron":
        made.attach(tiny_actor, Letters())
    made.publish()
    return made


def turns(engine: RolloutEngine, **sampling: Any) -> TurnEngine:
    return TurnEngine(engine, Letters(), replace(SAMPLING, **sampling), seed=3)


def three_turns(samples: Sequence[Sample], engine: TurnEngine) -> list[Sample]:
    """Stops at a vowel, adds `[x]`, goes on; twice."""
    answered = list(samples)
    for _ in range(2):
        answered = engine.generate(answered, stop=list("aeiouAEIOU"))
        answered = [engine.append(s, "[x]") if s.finish_reason == "stop" else s for s in answered]
    return engine.generate(answered)


def test_turns_and_masks(engine: RolloutEngine, tiny_actor: Any) -> None:
    made = turns(engine)
    answered = run_rollout_function(three_turns, SAMPLES, made, VOCABULARY)
    kinds = set()
    for sample in answered:
        text = made.text(sample.token_ids)
        assert len(sample.token_ids) == len(sample.mask) == len(sample.log_probs) == 20
        assert sample.finish_reason == "length"
        masked = "".join(c for c, learned in zip(text, sample.mask, strict=True) if not learned)
        # Two tools' outputs, or what there was room for.
        assert "[x][x]".startswith(masked)
        kinds.add(masked)
        inserted = [i for i in range(1, 20) if sample.mask[i - 1] and not sample.mask[i]]
        assert all(text[i - 1] in "aeiouAEIOU" for i in inserted)
        assert sample.token_ids[len(text) - len(sample.last_turn) :] == sample.last_turn
    assert "[x][x]" in kinds
    # The same samples in another order and company: the same text.
    again = three_turns(SAMPLES[::-1][:7], turns(engine))
    same = [a.token_ids == b.token_ids for a, b in zip(again, answered[::-1], strict=False)]
    assert sum(same) >= 6
    # One turn through the same door is the engine's own answer.
    plain = engine.generate([s.prompt_token_ids for s in SAMPLES], range(12), SAMPLING, seed=3)
    assert [s.token_ids for s in turns(engine).generate(SAMPLES)] == [g.token_ids for g in plain]


@pytest.mark.parametrize("stop", ["END", ["a", ""], ["a", 5]])
def test_what_is_no_list_of_stop_strings_is_refused(stop: Any) -> None:
    nobody: Any = None
    with pytest.raises(
        ValueError, match=r"stop: wanted strings that are not empty, in a list, got .*; give stop="
    ):
        turns(nobody).generate(SAMPLES, stop=stop)


def test_there_is_room_or_not(engine: RolloutEngine) -> None:
    made = turns(engine, max_new_tokens=5)
    short = made.append(made.generate(SAMPLES[:1], stop_token_ids=range(VOCABULARY))[0], "ab")
    assert (len(short.token_ids), short.mask, short.finish_reason) == (3, (True, False, False), "stop")
    assert made.room(short) == 2
    full = made.append(short, "abc")
    assert (made.text(full.token_ids)[1:], full.finish_reason) == ("abab", "length")
    # Full samples come back, the others go on with what room they have.
    cut, longer = made.generate([full, short])
    assert cut == full
    assert (len(longer.token_ids), longer.mask[-2:], longer.finish_reason) == (5, (True, True), "length")
    assert made.generate([]) == []
    assert made.generate([replace(full, finish_reason="stop")])[0].finish_reason == "length"


# --- what is refused --------------------------------------------------------------------------------------------

Change = Callable[[Sample], Sample]
WRONG: dict[str, tuple[Change, str]] = {
    "mask too short": (lambda s: replace(s, mask=s.mask[:-1]), "one mask and one log-prob for each .* got 19"),
    "no log-probs": (lambda s: replace(s, log_probs=()), "got 20 and 0; add tokens with engine.append"),
    "too long": (lambda s: s.with_tokens([5]), "at most max_new_tokens = 20 tokens, got 21"),
    "another prompt": (lambda s: replace(s, prompt_token_ids=(1, 2)), "wanted the prompt as it came"),
    "reason": (lambda s: replace(s, finish_reason="done"), "finish_reason `stop` or `length`, got 'done'"),
    "no token": (lambda s: replace(s, token_ids=(*s.token_ids[:-1], 96)), r"token ids from 0 to 95, got \[96\]"),
    "mask of numbers": (lambda s: replace(s, mask=(1,) * 20), "True or False in the mask, got int"),
    "list": (lambda s: replace(s, token_ids=list(s.token_ids)), "a tuple as token_ids, got list"),
    "None": (lambda s: replace(s, log_probs=(None,) * 20), "finite numbers as log-probs, got .None"),
    "NaN": (lambda s: replace(s, log_probs=(float("nan"),) * 20), "finite numbers as log-probs"),
    "tool output learned from": (
        lambda s: replace(s, mask=(True,) * 20),
        "mask True only on tokens that the engine generated .* got it on 0 to 19",
    ),
    "changed token": (lambda s: replace(s, token_ids=(95 - s.token_ids[0], *s.token_ids[1:])), "got it on 0 to"),
    "changed log-prob": (lambda s: replace(s, log_probs=(-9.0, *s.log_probs[1:])), "got it on 0 to"),
    # Without what stood before it, the last turn was never generated.
    "a turn dropped": (
        lambda s: replace(s, token_ids=s.token_ids[5:], mask=s.mask[5:], log_probs=s.log_probs[5:]),
        "which it did not generate there",
    ),
}  # fmt: skip


def test_what_cannot_be_learned_from_is_named(tiny_actor: Any) -> None:
    engine = MegatronEngine()
    engine.attach(tiny_actor, Letters())
    for change, message in WRONG.values():

        def function(samples: Sequence[Sample], turns: TurnEngine, change: Change = change) -> list[Sample]:
            answered = three_turns(samples, turns)
            wrong = next(n for n, s in enumerate(answered) if not all(s.mask))
            answered[wrong] = change(answered[wrong])
            return answered

        with pytest.raises(RolloutFunctionError, match=rf"(?s)function .*sample \d+: .*{message}"):
            run_rollout_function(function, SAMPLES, turns(engine), VOCABULARY)
    lists: dict[str, tuple[Any, str]] = {
        "None": (lambda s, e: None, "wanted a list of samples, got NoneType"),
        "tuples": (lambda s, e: [(1, 2)] * len(s), "got a list of tuple"),
        "too few": (lambda s, e: s[:2], r"wanted the 12 samples in their order, got 2 \(\[0, 1\]"),
        "order": (lambda s, e: s[::-1], "in their order"),
        "order changed in place": (lambda s, e: s.reverse() or s, "in their order"),
        "dropped in place": (lambda s, e: s.pop() and s, "wanted the 12 samples in their order, got 11"),
        "raises": (lambda s, e: 1 / 0, "raised ZeroDivisionError"),
    }
    for wrong, message in lists.values():
        with pytest.raises(RolloutFunctionError, match=message):
            run_rollout_function(wrong, SAMPLES, turns(engine), VOCABULARY)

    # Not to learn from a turn is nothing wrong.
    def modest(samples: Sequence[Sample], engine: TurnEngine) -> list[Sample]:
        return [replace(s, mask=(False, *s.mask[1:])) for s in three_turns(samples, engine)]

    assert all(not s.mask[0] for s in run_rollout_function(modest, SAMPLES, turns(engine), VOCABULARY))


class Configured:
    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __call__(self, samples: Any, engine: Any) -> Any:
        return samples


def takes_one(samples: Any) -> Any:
    return samples


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Configured", {"width": 1}, "init_args: .*Configured does not take them: .*width"),
        ("three_turns", {"depth": 1}, "wanted nothing for .*three_turns, which is no class"),
        ("takes_one", {}, r"wanted a function of \(samples, engine\)"),
        ("nothing", {}, "has no nothing"),
    ],
)
def test_what_is_no_rollout_function(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"data.rollout.function.*{message}"):
        load_rollout_function(RolloutFunctionConfig(f"{__name__}.{name}", arguments))
    found: Any = load_rollout_function(RolloutFunctionConfig(f"{__name__}.Configured", {"depth": 2}))
    assert found.depth == 2
