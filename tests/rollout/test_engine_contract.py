"""What every rollout engine must do. An engine joins by one more entry in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from relax_lightning.config import SamplingConfig
from relax_lightning.data.rollout import pad
from relax_lightning.megatron.role import Actor
from relax_lightning.ppo.batch import Rollouts
from relax_lightning.rollout.embedded import MegatronEngine
from relax_lightning.rollout.engine import Generation, RolloutEngine
from relax_lightning.rollout.sampling import uniform_draws
from tests.megatron.judge import assert_rounded, exact_outputs, judge_of, logits_of, nudge
from tests.rollout.letters import ABSENT, VOCABULARY, Letters

ENGINES: dict[str, Callable[[pytest.FixtureRequest], RolloutEngine]] = {
    "megatron": lambda request: MegatronEngine(max_batch_size=40),
    "sglang": lambda request: request.getfixturevalue("sglang_engine"),
}
SEED = 12
"""Of which no draw lies where rounding decides, as a test makes sure: its texts hold in any batch, on any CPU."""


@pytest.fixture(scope="module")
def actor(tiny_actor: Actor) -> Actor:
    return tiny_actor


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, actor: Actor) -> Any:
    made = ENGINES[request.param](request)
    if request.param == "megatron":
        made.attach(actor, Letters())
    version = made.weight_version
    assert made.publish() == version + 1
    made.verify()
    return made


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = np.random.default_rng(0)
    distinct = [
        draw.integers(1, VOCABULARY, n).tolist() for n in (3, 12, 1, 7, 7, 20, 2, 5, 9, 4, 30, 6, 8, 3, 15, 2)
    ]
    return [prompt for prompt in distinct for _ in range(4)]


def generate(engine: RolloutEngine, prompts: list[list[int]], **sampling: Any) -> list[Generation]:
    settings = SamplingConfig(**{"max_new_tokens": 12, **sampling})
    return engine.generate(prompts, range(len(prompts)), settings, seed=SEED)


def rollouts_of(prompts: list[list[int]], generations: list[Generation], temperature: float) -> Rollouts:
    prompt_tokens, prompt_lengths = pad(prompts, torch.int64)
    tokens, lengths = pad([g.token_ids for g in generations], torch.int64)
    log_probs, _ = pad([g.log_probs for g in generations], torch.float32)
    blank = ("",) * len(prompts)
    return Rollouts(
        sample_ids=torch.arange(len(prompts)),
        prompt_tokens=prompt_tokens,
        prompt_lengths=prompt_lengths,
        response_tokens=tokens,
        response_lengths=lengths,
        response_mask=torch.arange(tokens.shape[1])[None] < lengths[:, None],
        rollout_log_probs=log_probs,
        rewards=torch.zeros(len(prompts)),
        finish_reasons=tuple(g.finish_reason for g in generations),
        prompts=blank,
        responses=blank,
        labels=blank,
        temperature=temperature,
        weight_version=0,
    )


@torch.no_grad()
def assert_log_probs_are_the_actors(
    actor: Actor, prompts: list[list[int]], generations: list[Generation], temperature: float
) -> None:
    """Those of the engine and those of the training path, by the judge of both."""
    rollouts, judge = rollouts_of(prompts, generations, temperature), judge_of(actor)
    exact = exact_outputs(judge, rollouts, temperature)[0]
    nudged = exact_outputs(nudge(judge), rollouts, temperature)[0]
    assert_rounded(rollouts.rollout_log_probs, exact, nudged)
    assert_rounded(actor.log_probs(rollouts, [list(range(len(prompts)))]), exact, nudged)


def assert_same_answers(engine: RolloutEngine, answers: list[Generation], again: list[Generation]) -> None:
    """Of the same call twice: bit for bit, or with SGLang, which batches what has arrived, up to rounding."""
    if isinstance(engine, MegatronEngine):
        assert again == answers
    for one, other in zip(answers, again, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert list(one.log_probs) == pytest.approx(list(other.log_probs), abs=1e-4)


@torch.no_grad()
def test_greedy_equals_transformers(
    engine: RolloutEngine, prompts: list[list[int]], tiny_model: Callable[[str], Path]
) -> None:
    reference: Any = AutoModelForCausalLM.from_pretrained(tiny_model("qwen3"), dtype=torch.float32)
    ours = generate(engine, prompts, temperature=0.0, ignore_eos=True)
    for prompt, generation in list(zip(prompts, ours, strict=True))[::4]:
        theirs = reference.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0,
            suppress_tokens=list(ABSENT),
        )  # fmt: skip
        assert list(generation.token_ids) == theirs[0, len(prompt) :].tolist()
        assert generation.finish_reason == "length"
    first_of_four = generate(engine, prompts, temperature=1.0, top_k=1, ignore_eos=True)
    assert [g.token_ids for g in first_of_four] == [g.token_ids for g in ours]


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.7}, {"temperature": 1.3, "top_p": 0.8}, {"temperature": 0.9, "top_k": 5}],
    ids=["plain", "cool", "top_p", "top_k"],
)
def test_log_probs_are_those_of_the_sampling_temperature(
    engine: RolloutEngine, actor: Actor, prompts: list[list[int]], sampling: dict[str, float]
) -> None:
    generations = generate(engine, prompts, **sampling)
    assert len({g.token_ids for g in generations}) > len(prompts) // 2
    assert_log_probs_are_the_actors(actor, prompts, generations, sampling.get("temperature", 1.0))
    for g in generations:
        assert len(g.log_probs) == len(g.token_ids) <= 12
        ended = g.token_ids[-1] == 0
        assert g.finish_reason == ("stop" if ended else "length")
        assert ended or len(g.token_ids) == 12
        assert 0 not in g.token_ids[:-1]


def test_a_draw_depends_on_seed_sample_and_position_only(
    engine: RolloutEngine, actor: Actor, prompts: list[list[int]]
) -> None:
    settings = SamplingConfig(max_new_tokens=12, temperature=0.9)
    ids = list(range(100, 100 + len(prompts)))
    whole = engine.generate(prompts, ids, settings, seed=5)
    again = engine.generate(prompts, ids, settings, seed=5)
    assert again == whole or not isinstance(engine, MegatronEngine)
    assert [g.token_ids for g in engine.generate(prompts, ids, settings, seed=6)] != [
        g.token_ids for g in whole
    ]
    order = np.random.default_rng(1).permutation(len(prompts)).tolist()
    shuffled = engine.generate([prompts[i] for i in order], [ids[i] for i in order], settings, seed=5)
    parts = [shuffled[order.index(i)] for i in range(len(prompts))]
    alone = [engine.generate([prompts[i]], [ids[i]], settings, seed=5)[0] for i in range(0, len(prompts), 5)]
    for i, generation in [
        *enumerate(again),
        *enumerate(parts),
        *zip(range(0, len(prompts), 5), alone, strict=True),
    ]:
        assert_same_or_on_a_boundary(actor, prompts[i], whole[i], generation, ids[i], settings.temperature)
    twins = [whole[n : n + 4] for n in range(0, len(prompts), 4)]
    assert sum(len({g.token_ids for g in four}) == 4 for four in twins) > len(twins) // 2


@torch.no_grad()
def assert_same_or_on_a_boundary(
    actor: Actor, prompt: list[int], one: Generation, other: Generation, sample_id: int, temperature: float
) -> None:
    """Rounding may decide otherwise only where the draw lies within 1e-4 of a boundary between two tokens."""
    if one.token_ids == other.token_ids:
        return
    pairs = enumerate(zip(one.token_ids, other.token_ids, strict=False))
    position = next(n for n, (a, b) in pairs if a != b)
    decoder = actor.decoder()
    logits = decoder.begin([[*prompt, *one.token_ids[:position]]], [0], 128)[0]
    cumulative = torch.softmax(logits / temperature, -1).double().cumsum(-1)
    draw = uniform_draws(5, np.array([sample_id]), position)
    assert (cumulative - draw).abs().min() < 1e-4


@torch.no_grad()
def test_no_text_that_must_repeat_is_left_to_rounding(actor: Actor, prompts: list[list[int]]) -> None:
    engine, judge = MegatronEngine(), judge_of(actor)
    engine.attach(actor, Letters())
    for n, generation in enumerate(generate(engine, prompts, ignore_eos=True, temperature=1.0)):
        logits = logits_of(judge, torch.tensor([*prompts[n], *generation.token_ids]))[
            len(prompts[n]) - 1 : -1
        ]
        draws = torch.cat([uniform_draws(SEED, [n], position) for position in range(12)])
        # Float32 moves the cumulative distribution by a few 1e-6 at most.
        assert (torch.softmax(logits, -1).cumsum(-1) - draws[:, None]).abs().min() > 1e-5


def test_a_response_goes_on_where_it_was_cut(
    engine: RolloutEngine, actor: Actor, prompts: list[list[int]]
) -> None:
    settings, ids = SamplingConfig(max_new_tokens=12, temperature=0.9), list(range(len(prompts)))
    whole = engine.generate(prompts, ids, settings, seed=5)
    # Cut at different places; what follows has the draws of its positions, and ends where the whole one did.
    cuts = [min(i % 5, len(g.token_ids) - 1) for i, g in enumerate(whole)]
    begun = [[*p, *g.token_ids[:cut]] for p, g, cut in zip(prompts, whole, cuts, strict=True)]
    rest = engine.generate(begun, ids, settings, seed=5, num_response_tokens=cuts)
    joined = [
        Generation(g.token_ids[:cut] + r.token_ids, g.log_probs[:cut] + r.log_probs, r.finish_reason)
        for g, r, cut in zip(whole, rest, cuts, strict=True)
    ]
    for i, (one, other) in enumerate(zip(whole, joined, strict=True)):
        assert_same_or_on_a_boundary(actor, prompts[i], one, other, ids[i], settings.temperature)
        assert len(other.token_ids) <= 12
    same = [one.token_ids == other.token_ids for one, other in zip(whole, joined, strict=True)]
    assert sum(same) > len(same) * 0.9
    # With the draws of position 0 again it would be another text.
    anew = engine.generate(begun, ids, settings, seed=5)
    assert sum(a.token_ids[:3] == r.token_ids[:3] for a, r in zip(anew, rest, strict=True)) < len(rest) / 2
    with pytest.raises(ValueError, match=r"prompt 0: wanted fewer than .* max_new_tokens = 12 .*, got 12"):
        engine.generate([[1] * 20], [0], settings, seed=0, num_response_tokens=[12])


def test_samples_follow_the_distribution(engine: RolloutEngine, actor: Actor) -> None:
    prompt, num_samples = [5, 9, 33], 4000
    settings = SamplingConfig(max_new_tokens=1, temperature=1.5)
    generations = engine.generate([prompt] * num_samples, range(num_samples), settings, seed=3)
    counts = np.bincount([g.token_ids[0] for g in generations], minlength=VOCABULARY)
    logits = actor.decoder().begin([prompt], [0], 8)[0]
    expected = torch.softmax(logits.double() / 1.5, -1).numpy() * num_samples
    kept = expected > 5
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    # Five standard deviations of a chi-square: one run in more than a hundred thousand.
    assert freedom > 5
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)
    allowed = set(torch.softmax(logits, -1).topk(3).indices.tolist())
    settings = replace(settings, top_k=3)
    few = engine.generate([prompt] * 200, range(200), settings, seed=3)
    assert {g.token_ids[0] for g in few} == allowed


def test_a_row_without_a_token_is_never_drawn(
    engine: RolloutEngine, actor: Actor, prompts: list[list[int]]
) -> None:
    # So hot that every row of 96 would be drawn; the greedy and the restricted ways take other paths.
    hot = generate(engine, prompts, temperature=50.0, ignore_eos=True)
    drawn = {token for g in hot for token in g.token_ids}
    assert drawn <= set(range(VOCABULARY)) - set(ABSENT) and len(drawn) > 85
    assert_log_probs_are_the_actors(actor, prompts, hot, 50.0)
    for sampling in (
        {"temperature": 0.0},
        {"temperature": 50.0, "top_k": 95},
        {"temperature": 50.0, "top_p": 0.999},
    ):
        found = generate(engine, prompts, ignore_eos=True, **sampling)
        assert not {token for g in found for token in g.token_ids} & set(ABSENT)
    # All that can be drawn is all there is: without a response's last token, every one has its own log-prob.
    settings, begin = SamplingConfig(max_new_tokens=1, temperature=50.0, ignore_eos=True), [5, 9, 33]
    many = engine.generate([begin] * 1500, range(1500), settings, seed=2)
    found = {g.token_ids[0]: g.log_probs[0] for g in many}
    assert len(found) == VOCABULARY - len(ABSENT)
    assert sum(np.exp(list(found.values()))) == pytest.approx(1.0, abs=1e-5)


def test_what_ends_a_response(engine: RolloutEngine, prompts: list[list[int]]) -> None:
    free = generate(engine, prompts, ignore_eos=True, temperature=1.0)
    assert all(len(g.token_ids) == 12 and g.finish_reason == "length" for g in free)
    stop_token = max(
        {t for g in free for t in g.token_ids[1:-1]}, key=lambda t: sum(t in g.token_ids for g in free)
    )
    stopped = generate(engine, prompts, ignore_eos=True, stop_token_ids=[stop_token])
    text = Letters().decode
    pair = next(text(g.token_ids[4:6]) for g in free)
    cut = generate(engine, prompts, ignore_eos=True, stop=[pair])
    num_stopped = num_cut = 0
    for whole, by_token, by_text in zip(free, stopped, cut, strict=True):
        if stop_token in whole.token_ids:
            wanted = whole.token_ids[: whole.token_ids.index(stop_token) + 1]
            num_stopped += 1
            assert (by_token.token_ids, by_token.finish_reason) == (wanted, "stop")
        if pair in text(whole.token_ids):
            num_cut += 1
            assert by_text.finish_reason == "stop"
            assert text(by_text.token_ids).endswith(pair)
            assert whole.token_ids[: len(by_text.token_ids)] == by_text.token_ids
    assert num_stopped
    assert num_cut


def test_the_context_ends_a_response_and_a_full_one_is_refused(engine: RolloutEngine) -> None:
    sampling = SamplingConfig(max_new_tokens=50, ignore_eos=True)
    # The full one is done long before its neighbour.
    nearly, neighbour = engine.generate([[1] * 125, [2, 3]], [0, 1], sampling, seed=0)
    assert (len(nearly.token_ids), len(neighbour.token_ids)) == (3, 50)
    assert nearly.finish_reason == neighbour.finish_reason == "length"
    for prompt, message in (
        ([], "prompt 1 is empty"),
        ([1] * 128, "prompt 1 has 128 tokens, .* context of 128"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.generate([[1, 2], prompt], [0, 1], SamplingConfig(), seed=0)


def test_published_weights_are_the_ones_that_generate(
    engine: RolloutEngine, actor: Actor, prompts: list[list[int]]
) -> None:
    before, version = generate(engine, prompts), engine.weight_version
    kept = [p.detach().clone() for p in actor.model.parameters()]
    try:
        with torch.no_grad():
            for parameter in actor.model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        assert engine.publish() == version + 1 == engine.weight_version
        after = generate(engine, prompts)
        assert [g.token_ids for g in after] != [g.token_ids for g in before]
        assert_log_probs_are_the_actors(actor, prompts, after, 1.0)
    finally:
        with torch.no_grad():
            for parameter, old in zip(actor.model.parameters(), kept, strict=True):
                parameter.copy_(old)
        engine.publish()
    assert_same_answers(engine, before, generate(engine, prompts))
