"""Losses and gradients do not depend on how samples are batched, and equal those of transformers on padded rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from relax_lightning.algorithms.losses import policy_loss
from relax_lightning.config import AlgorithmConfig, ModelConfig, OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import read_architecture
from relax_lightning.config.model import ActorConfig
from relax_lightning.megatron.groups import groups_of
from relax_lightning.megatron.hugging_face import _to_megatron
from relax_lightning.megatron.role import Actor, Critic, MegatronRole
from relax_lightning.ppo.batch import Experience, Rollouts
from relax_lightning.ppo.packing import microbatches
from relax_lightning.ppo.updates import Batching, StepLoss
from tests.megatron.judge import ROUNDINGS, exact_outputs, judge_of, nudge

CPU = torch.device("cpu")
TEMPERATURE = 0.7
pytestmark = pytest.mark.usefixtures("process_group")


def make_role(kind: type[MegatronRole], directory: Path, **more: Any) -> Any:
    return kind(
        kind.__name__.lower(),
        read_architecture(directory),
        ParallelConfig(),
        OptimizerConfig(clip_grad=0.0),
        num_steps=10,
        dtype=torch.float32,
        device=CPU,
        weights=str(directory),
        **more,
    )


def make_experience() -> Experience:
    """Ragged samples: one without a response, one without a trainable token, masks with holes."""
    draw = torch.Generator().manual_seed(3)
    batch, prompt, response = 16, 12, 9
    prompt_lengths = torch.randint(1, prompt + 1, (batch,), generator=draw)
    response_lengths = torch.randint(1, response + 1, (batch,), generator=draw)
    response_lengths[4] = 0
    mask = torch.arange(response)[None] < response_lengths[:, None]
    mask &= torch.rand(mask.shape, generator=draw) < 0.8
    mask[7] = False
    texts = ("",) * batch
    rollouts = Rollouts(
        sample_ids=torch.arange(batch),
        prompt_tokens=torch.randint(0, 96, (batch, prompt), generator=draw),
        prompt_lengths=prompt_lengths,
        response_tokens=torch.randint(0, 96, (batch, response), generator=draw),
        response_lengths=response_lengths,
        response_mask=mask,
        rollout_log_probs=-4 + 0.3 * torch.randn(mask.shape, generator=draw),
        rewards=torch.randn(batch, generator=draw),
        finish_reasons=("stop",) * batch,
        prompts=texts,
        responses=texts,
        labels=texts,
        temperature=TEMPERATURE,
        weight_version=0,
    )
    values, advantages, returns = (torch.randn(mask.shape, generator=draw) for _ in range(3))
    return Experience(rollouts, values, advantages * mask, returns * mask, rollouts.rollout_log_probs)


def near_the_policy(experience: Experience, actor: Actor) -> Experience:
    """The same with log-probs of engine, old policy and reference as a training has them: ratios from .5 to 2."""
    from dataclasses import replace

    now = exact_outputs(judge_of(actor), experience.rollouts, TEMPERATURE)[0].detach().float()
    draw = torch.Generator().manual_seed(4)
    old, engine, ref = (now + 0.3 * torch.randn(now.shape, generator=draw) for _ in range(3))
    rollouts = replace(experience.rollouts, rollout_log_probs=engine)
    return replace(experience, rollouts=rollouts, old_log_probs=old, ref_log_probs=ref)


def step(role: Any, experience: Experience, groups: list[list[int]], algorithm: AlgorithmConfig) -> Any:
    """Loss, metrics and gradients of one optimizer step at learning rate 0, so that nothing moves."""
    rows = list(range(len(experience)))
    loss = StepLoss(experience, rows, algorithm, CPU)
    packed = [role.pack(experience.rollouts, group) for group in groups]
    head = role.head() if isinstance(role, Critic) else role.head(TEMPERATURE)
    result = role.update(packed, head, loss.critic if isinstance(role, Critic) else loss.actor, 0.0)
    assert result.applied
    gradients = {name: p.main_grad.clone() for name, p in role.model.named_parameters()}
    return result, gradients


def norm_of(gradients: dict[str, Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradients.values()]).norm())


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    whole = norm_of(theirs)
    assert whole > 1e-3
    assert norm_of({name: ours[name] - theirs[name] for name in theirs}) <= 1e-5 * whole


def groupings(experience: Experience) -> list[list[list[int]]]:
    kept = [row for row in range(len(experience)) if experience.rollouts.response_lengths[row] > 0]
    lengths = (experience.rollouts.prompt_lengths + experience.rollouts.response_lengths).tolist()
    by_samples = [microbatches(lengths, kept, max_samples=n, max_tokens=1) for n in (1, 2, 8)]
    by_tokens = [microbatches(lengths, kept, max_tokens=n) for n in (1, 30, 64, 10_000)]
    return [*by_samples, *by_tokens, [kept[::-1]]]


def padded(experience: Experience) -> Experience:
    """The same samples with more padding, and junk in it."""
    from dataclasses import replace

    def wider(x: Tensor, columns: int, junk: float) -> Tensor:
        return torch.nn.functional.pad(x, (0, columns), value=junk)

    rollouts = experience.rollouts
    rollouts = replace(
        rollouts,
        prompt_tokens=wider(rollouts.prompt_tokens, 3, 5),
        response_tokens=wider(rollouts.response_tokens, 7, 5),
        response_mask=wider(rollouts.response_mask, 7, 0),
        rollout_log_probs=wider(rollouts.rollout_log_probs, 7, float("nan")),
    )
    names = ("values", "advantages", "returns", "old_log_probs", "ref_log_probs")
    wide = {name: wider(getattr(experience, name), 7, float("nan")) for name in names}
    return replace(experience, rollouts=rollouts, **wide)


KL_LOSS = {"use_kl_loss": True, "kl_loss_coef": 0.5}
ACTOR_OPTIONS: dict[str, dict[str, Any]] = {
    "token_mean": {},
    "sequence_mean": {"loss_aggregation": "sequence_mean", "entropy_coef": 0.01, "importance_cap": 1.1},
    "entropy": {"entropy_coef": 0.01},
    "clip-higher, dual clip": {"eps_clip_high": 0.28, "eps_clip_c": 1.5},
    "importance, token": {"importance_cap": 1.1, "importance_floor": 0.9},
    "importance, sequence": {"importance_cap": 1.5, "importance_level": "sequence"},
    "masked, token": {"importance_cap": 1.1, "importance_mode": "mask"},
    "masked, sequence": {"importance_cap": 1.5, "importance_mode": "mask", "importance_level": "sequence"},
    "k1": {**KL_LOSS, "kl_loss_type": "k1"},
    "k2": {**KL_LOSS, "kl_loss_type": "k2"},
    "k3, sequence_mean": {**KL_LOSS, "kl_loss_type": "k3", "loss_aggregation": "sequence_mean"},
    "positive_nll": {"positive_nll_coef": 0.5, "positive_nll_threshold": 0.3},
}
CRITIC_OPTIONS: dict[str, dict[str, Any]] = {
    "clipped": {},
    "not clipped": {"value_clip": None},
    "of sequences": {"loss_aggregation": "sequence_mean"},
}


@pytest.fixture(scope="module")
def roles(process_group: None, tiny_model: Callable[[str], Path]) -> tuple[Any, Any]:
    directory = tiny_model("qwen3")
    return make_role(Actor, directory), make_role(Critic, directory, head_init="normal")


@dataclass
class Judged:
    """A step by the judge of a role, and how far rounding may move one log-prob or value in float32."""

    loss: float
    metrics: dict[str, float]
    gradients: dict[str, Tensor]
    rounding: float


def judged(role: Any, experience: Experience, algorithm: AlgorithmConfig) -> Judged:
    judge, rows = judge_of(role), tuple(range(len(experience)))
    step_loss = StepLoss(experience, list(rows), algorithm, CPU)
    outputs: Any = exact_outputs(judge, experience.rollouts, TEMPERATURE)
    value, metrics = (step_loss.critic if isinstance(role, Critic) else step_loss.actor)(outputs, rows)
    value.backward()
    gradients = {name: p.grad for name, p in judge.named_parameters() if p.grad is not None}
    with torch.no_grad():
        moved = exact_outputs(nudge(judge), experience.rollouts, TEMPERATURE)[0] - outputs[0]
    told = {name: float(metric) for name, metric in metrics.items()}
    return Judged(float(value), told, gradients, ROUNDINGS * float(moved.abs().max()))


@pytest.fixture(scope="module")
def experience(roles: tuple[Any, Any]) -> Experience:
    return near_the_policy(make_experience(), roles[0])


@pytest.mark.parametrize("option", [*ACTOR_OPTIONS, *CRITIC_OPTIONS])
def test_batching_changes_neither_loss_nor_gradient(
    option: str, roles: tuple[Any, Any], experience: Experience
) -> None:
    settings = ACTOR_OPTIONS.get(option, CRITIC_OPTIONS.get(option))
    assert settings is not None
    role, algorithm = roles[option in CRITIC_OPTIONS], AlgorithmConfig(**settings)
    before = [p.clone() for p in role.model.parameters()]
    ways = groupings(experience)
    if option not in ("sequence_mean", "clipped"):
        ways = ways[1::2]
    results = [step(role, experience, groups, algorithm) for groups in ways]
    results.append(step(role, padded(experience), groupings(experience)[5], algorithm))
    exact = judged(role, experience, algorithm)
    assert exact.rounding < 1e-4
    assert len({len(groups) for groups in groupings(experience)}) >= 5
    for result, gradients in results:
        assert result.loss == pytest.approx(exact.loss, rel=1e-6, abs=1e-6)
        # The largest ratio is an exponential: what moves a log-prob moves it by that share of itself.
        assert result.metrics == pytest.approx(exact.metrics, rel=exact.rounding, abs=exact.rounding)
        assert_same_gradients(gradients, exact.gradients)
        assert result.grad_norm == pytest.approx(norm_of(exact.gradients), rel=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(before, role.model.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_policy_gradient_equals_that_of_padded_rows_in_transformers(
    kind: str, tiny_model: Callable[[str], Path]
) -> None:
    experience, algorithm = make_experience(), AlgorithmConfig()
    rollouts = experience.rollouts
    actor = make_role(Actor, tiny_model(kind))
    result, ours = step(actor, experience, groupings(experience)[4], algorithm)
    reference = AutoModelForCausalLM.from_pretrained(tiny_model(kind), dtype=torch.float64)
    log_probs = padded_log_probs(reference, rollouts)
    loss, metrics = policy_loss(
        log_probs, experience.old_log_probs, experience.advantages, rollouts.response_mask, eps_clip=0.2
    )
    loss.backward()
    assert result.loss == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    assert result.metrics["ppo_kl"] == pytest.approx(metrics["ppo_kl"].item(), abs=1e-5)
    theirs = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    converted = {name: _to_megatron(actor.model, name, theirs.__getitem__) for name in ours}
    # A bias on the keys shifts all scores of a query alike: its true gradient is zero, what is seen is rounding.
    converted = {name: g for name, g in converted.items() if not name.endswith("linear_qkv.bias")}
    assert_same_gradients(ours, converted)


def padded_log_probs(model: Any, rollouts: Rollouts) -> Tensor:
    width = int((rollouts.prompt_lengths + rollouts.response_lengths).max())
    tokens = torch.zeros(len(rollouts), width, dtype=torch.int64)
    for row, (p, r) in enumerate(zip(rollouts.prompt_lengths, rollouts.response_lengths, strict=True)):
        tokens[row, : p + r] = torch.cat([rollouts.prompt_tokens[row, :p], rollouts.response_tokens[row, :r]])
    all_log_probs = torch.log_softmax(model(tokens).logits / TEMPERATURE, -1)
    rows = []
    for row, (p, r) in enumerate(zip(rollouts.prompt_lengths, rollouts.response_lengths, strict=True)):
        picked = all_log_probs[row, p - 1 : p - 1 + r].gather(-1, rollouts.response_tokens[row, :r, None])[
            :, 0
        ]
        rows.append(torch.nn.functional.pad(picked, (0, rollouts.response_tokens.shape[1] - int(r))))
    return torch.stack(rows)


def test_values_are_of_the_state_before_each_token_and_after_the_last(
    tiny_model: Callable[[str], Path],
) -> None:
    rollouts = make_experience().rollouts
    critic = make_role(Critic, tiny_model("llama"), head_init="normal")
    rows = [row for row in range(len(rollouts)) if rollouts.response_lengths[row] > 0]
    values, final = critic.values(rollouts, [rows[:9], rows[9:]], with_final=True)
    again, none = critic.values(rollouts, [rows])
    assert none is None
    torch.testing.assert_close(values, again, atol=2e-5, rtol=0)
    assert final is not None
    longer = cut_after_last_token(rollouts)
    shifted, _ = critic.values(longer, [rows])
    for row in rows:
        # With the response moved into the prompt, the value before the next token is the final value.
        assert shifted[row, 0] == pytest.approx(float(final[row]), abs=2e-5)
    assert (values[4] == 0).all()


def cut_after_last_token(rollouts: Rollouts) -> Rollouts:
    from dataclasses import replace

    total = rollouts.prompt_lengths + rollouts.response_lengths
    prompts = torch.zeros(len(rollouts), int(total.max()), dtype=torch.int64)
    for row, (p, r) in enumerate(zip(rollouts.prompt_lengths, rollouts.response_lengths, strict=True)):
        prompts[row, : p + r] = torch.cat(
            [rollouts.prompt_tokens[row, :p], rollouts.response_tokens[row, :r]]
        )
    return replace(
        rollouts,
        prompt_tokens=prompts,
        prompt_lengths=total,
        response_lengths=(rollouts.response_lengths > 0).long(),
    )


@pytest.mark.parametrize("distributed", [True, False])
def test_a_reloaded_role_goes_on_bit_for_bit(
    distributed: bool, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    experience, directory = make_experience(), tiny_model("qwen3")
    settings = OptimizerConfig(lr=1e-3, decay="linear", distributed=distributed)

    def make() -> Actor:
        shape, cpu = read_architecture(directory), CPU
        return Actor(
            "actor",
            shape,
            ParallelConfig(),
            settings,
            num_steps=6,
            dtype=torch.float32,
            device=cpu,
            weights=str(directory),
        )

    def train(actor: Actor) -> Any:
        loss = StepLoss(experience, list(range(16)), AlgorithmConfig(), CPU)
        groups = groupings(experience)[4]
        packed = [actor.pack(experience.rollouts, group) for group in groups]
        return actor.update(packed, actor.head(TEMPERATURE), loss.actor, 1.0)

    first, second, fresh = make(), make(), make()
    first.save(tmp_path / "untrained")
    lrs = [train(first).lr for _ in range(3)]
    assert lrs == pytest.approx([1e-3, 1e-3 * 5 / 6, 1e-3 * 4 / 6])
    first.save(tmp_path / "trained")
    second.load(tmp_path / "trained")
    for _ in range(2):
        assert train(first) == train(second)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    second.load(tmp_path / "untrained")
    assert [train(second), train(second)] == [train(fresh), train(fresh)]
    weights_only = make()
    weights_only.load(tmp_path / "trained", weights_only=True)
    assert weights_only.num_steps_done == 0
    with pytest.raises(ValueError, match=r"is no Megatron distributed checkpoint"):
        second.load(tmp_path)


def test_default_token_budget_is_the_longest_sample_rounded_up() -> None:
    rollouts = make_experience().rollouts
    for on_gpu, unit in ((False, 4096), (True, 8192)):
        batching = Batching(ModelConfig(actor=ActorConfig()), on_gpu)
        from dataclasses import replace

        long = replace(rollouts, prompt_lengths=torch.full((16,), unit - 5))
        groups = batching.groups(long, list(range(16)), groups_of(ParallelConfig()))
        lengths = (long.prompt_lengths + long.response_lengths).tolist()
        budget = unit if max(lengths) <= unit else 2 * unit
        assert all(sum(lengths[row] for row in group) <= budget for group in groups)
        assert sorted(itertools.chain(*groups)) == [row for row in range(16) if row != 4]
