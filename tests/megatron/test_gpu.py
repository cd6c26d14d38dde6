"""The same code on a GPU: parity with the CPU in float32, and with itself in bfloat16. Needs CUDA."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_lightning.algorithms.losses import policy_loss, value_loss
from relax_lightning.config import (
    AlgorithmConfig,
    ArchitectureConfig,
    OptimizerConfig,
    ParallelConfig,
    SamplingConfig,
)
from relax_lightning.config.architecture import complete, read_architecture
from relax_lightning.data.rollout import pad
from relax_lightning.megatron.groups import initialize_groups
from relax_lightning.megatron.models import fused_layer
from relax_lightning.megatron.models.fused import MIN_ROWS
from relax_lightning.megatron.models.fused_layer import PackedLayer
from relax_lightning.megatron.optimizer import inner_optimizers
from relax_lightning.megatron.role import Actor, Critic
from relax_lightning.plan.memory import activations, role_memory
from relax_lightning.ppo.updates import StepLoss
from relax_lightning.rollout.embedded import MegatronEngine
from tests.megatron import allocations
from tests.megatron.test_role import make_experience

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


class Endless:
    """A tokenizer without an end of the sequence."""

    eos_token_id = None

    def decode(self, token_ids: Any, **_: Any) -> str:
        return ""

    def encode(self, text: str, **_: Any) -> list[int]:
        return []


def make(kind: Any, directory: Path, device: str, dtype: torch.dtype, **more: Any) -> Any:
    initialize_groups(ParallelConfig(), torch.device("cuda", 0), seed=0)
    with torch.device(device):  # as the Trainer makes them
        return kind(
            kind.__name__.lower(),
            read_architecture(directory),
            ParallelConfig(),
            OptimizerConfig(lr=1e-3),
            num_steps=10,
            dtype=dtype,
            device=torch.device(device),
            weights=str(directory),
            **more,
        )


def groups() -> list[list[int]]:
    lengths = make_experience().rollouts.response_lengths
    rows = [row for row in range(16) if lengths[row] > 0]
    return [rows[:8], rows[8:]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engine_and_training_path_agree(dtype: torch.dtype, tiny_model: Callable[[str], Path]) -> None:
    actor = make(Actor, tiny_model("qwen3"), "cuda:0", dtype)
    engine = MegatronEngine()
    engine.attach(actor, Endless())
    prompts = [[row + 1, 5, 9][: 1 + row % 3] for row in range(32)]
    done = engine.generate(prompts, range(32), SamplingConfig(max_new_tokens=20), seed=1)
    tokens, lengths = pad([g.token_ids for g in done], torch.int64)
    prompt_tokens, prompt_lengths = pad(prompts, torch.int64)
    sample = make_experience().rollouts
    rollouts = replace(
        sample,
        sample_ids=torch.arange(32),
        prompt_tokens=prompt_tokens,
        prompt_lengths=prompt_lengths,
        response_tokens=tokens,
        response_lengths=lengths,
        response_mask=torch.ones(tokens.shape, dtype=torch.bool),
        temperature=1.0,
    )
    log_probs = actor.log_probs(rollouts, [list(range(0, 32, 2)), list(range(1, 32, 2))])
    ours = torch.tensor([g.log_probs for g in done])
    difference = (log_probs - ours).abs()
    assert ours.std() > 0.1
    # bfloat16 keeps 8 bits: attention over a cache and over packed rows round apart.
    assert difference.mean() < (1e-5 if dtype == torch.float32 else 5e-2)


def test_packed_flash_attention_equals_float32(tiny_model: Callable[[str], Path]) -> None:
    experience = make_experience()
    exact = make(Actor, tiny_model("llama"), "cuda:0", torch.float32)
    half = make(Actor, tiny_model("llama"), "cuda:0", torch.bfloat16)
    one, other = (role.log_probs(experience.rollouts, groups()) for role in (exact, half))
    kept = experience.rollouts.response_mask
    assert (one - other)[kept].abs().mean() < 5e-2
    assert torch.corrcoef(torch.stack([one[kept], other[kept]]))[0, 1] > 0.999


def test_the_compiled_layer_equals_the_modules(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.arange(64)
    sample = make_experience().rollouts
    lengths = 16 + rows % 9
    tokens = torch.randint(0, 90, (64, 24), generator=torch.Generator().manual_seed(3))
    rollouts = replace(
        sample,
        sample_ids=rows,
        prompt_tokens=tokens,
        prompt_lengths=lengths,
        response_tokens=tokens.flip(0),
        response_lengths=lengths.flip(0),
        response_mask=torch.arange(24) < lengths.flip(0)[:, None],
        temperature=0.9,
    )
    mask = rollouts.response_mask.cuda()

    def loss(outputs: Any, chosen: tuple[int, ...]) -> Any:
        score = (outputs.log_probs + 0.1 * outputs.entropy) * mask[list(chosen)]
        return score.sum() / mask.sum(), {"log_probs": outputs.log_probs.detach().double().sum()}

    def gradients() -> tuple[float, Any]:
        actor = make(Actor, tiny_model("qwen3"), "cuda:0", torch.bfloat16)
        packed = [actor.pack(rollouts, list(range(64)))]
        assert len(packed[0].tokens) > MIN_ROWS
        result = actor.update(packed, actor.head(rollouts.temperature), loss, 0.0)
        return result.loss, {name: p.main_grad.clone() for name, p in actor.model.named_parameters()}

    whole = gradients()
    assert "compiled" in fused_layer.layer_on_gpu.__dict__
    # As tensor ranks run it: one rank's linear layers talk to none.
    monkeypatch.setattr(PackedLayer, "_is_cut", True)
    parts = gradients()
    assert "compiled" in fused_layer.attend_on_gpu.__dict__
    monkeypatch.setattr(PackedLayer, "_pays", lambda *_: False)
    plain_loss, plain = gradients()
    for loss_found, found in (whole, parts):
        assert loss_found == pytest.approx(plain_loss, rel=2e-3)
        for name, gradient in plain.items():
            assert (found[name] - gradient).norm() <= 0.05 * gradient.norm(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_learn_and_resume_bit_for_bit(
    dtype: torch.dtype, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    experience = make_experience()
    rollouts = experience.rollouts
    num_tokens = int(rollouts.response_mask.sum())

    def policy(outputs: Any, rows: tuple[int, ...]) -> Any:
        chosen = experience.select(rows)
        fields = (chosen.old_log_probs, chosen.advantages, chosen.rollouts.response_mask)
        return policy_loss(
            outputs.log_probs, *(f.cuda() for f in fields), eps_clip=0.2, num_tokens=num_tokens
        )

    def values(outputs: Any, rows: tuple[int, ...]) -> Any:
        chosen = experience.select(rows)
        fields = (chosen.values, chosen.returns, chosen.rollouts.response_mask)
        return value_loss(outputs.values, *(f.cuda() for f in fields), value_clip=None, num_tokens=num_tokens)

    for kind, loss, more in ((Actor, policy, {}), (Critic, values, {"head_init": "normal"})):
        role, again = (make(kind, tiny_model("qwen3"), "cuda:0", dtype, **more) for _ in range(2))
        head = role.head(rollouts.temperature) if kind is Actor else role.head()
        packed = [role.pack(rollouts, rows) for rows in groups()]
        losses = [role.update(packed, head, loss, 1.0).loss for _ in range(4)]
        assert losses[-1] < losses[0]
        gc.collect()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        role.save(tmp_path / role.name)
        # Gathered on the host: the GPU, full in a real run, has no room for a main weight or a moment of all.
        num_parameters = sum(p.numel() for p in role.model.parameters())
        assert torch.cuda.max_memory_allocated() - held < 2 * num_parameters
        again.load(tmp_path / role.name)
        for a, b in zip(role.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(a, b)
        assert again.num_steps_done == role.num_steps_done == 4
        moments = [
            [
                state["exp_avg"]
                for part in r.optimizer.chained_optimizers
                for state in part.optimizer.state.values()
            ]
            for r in (role, again)
        ]
        assert all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
        assert any(m.abs().max() > 0 for m in moments[0])


def test_float32_equals_the_cpu(tiny_model: Callable[[str], Path]) -> None:
    rollouts = make_experience().rollouts
    on_gpu = make(Critic, tiny_model("qwen2"), "cuda:0", torch.float32, head_init="normal")
    values, _ = on_gpu.values(rollouts, groups())
    state = {name: p.detach().cpu() for name, p in on_gpu.model.named_parameters()}
    weight, bias = state["output_layer.weight"], state["output_layer.bias"]
    import transformers

    reference: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_model("qwen2"), dtype=torch.float32
    )
    for row in groups()[0]:
        p, r = int(rollouts.prompt_lengths[row]), int(rollouts.response_lengths[row])
        tokens = torch.cat([rollouts.prompt_tokens[row, :p], rollouts.response_tokens[row, :r]])
        hidden = reference.model(tokens[None]).last_hidden_state[0, p - 1 : p - 1 + r]
        expected = (hidden @ weight.T + bias)[:, 0]
        torch.testing.assert_close(values[row, :r], expected.detach(), atol=2e-3, rtol=0)


def step_on_noise(role: Any, steps: range) -> None:
    """Optimizer steps on drawn gradients: attention's own differ a little each time."""
    for step in steps:
        for buffer in role.ddp.buffers:
            buffer.grad_data.normal_(generator=torch.Generator(buffer.grad_data.device).manual_seed(step))
        role._step(1.0)


def assert_close(role: Any, other: Any) -> None:
    """Weights and moments within 1e-5 of their norm; what rounds to bfloat16 may round to either side."""
    pairs = list(zip(role.model.parameters(), other.model.parameters(), strict=True))
    states = [
        [s for inner in inner_optimizers(r.optimizer) for s in inner.state.values()] for r in (role, other)
    ]
    for one, two in zip(*states, strict=True):
        pairs += [(one[key], two[key]) for key in ("exp_avg", "exp_avg_sq")]
        assert float(one["step"]) == float(two["step"])
    for pair in pairs:
        x, y = (tensor.detach().float().cpu() for tensor in pair)
        tolerance = 1e-5 if pair[0].dtype == torch.float32 else 1e-3
        assert (x - y).norm() <= tolerance * x.norm()


@pytest.mark.parametrize("distributed", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_share_on_the_host(dtype: torch.dtype, distributed: bool, tmp_path: Path) -> None:
    """Another kernel of the same formula, and memory that the GPU has free instead."""
    sizes = {"num_layers": 2, "hidden_size": 512, "ffn_hidden_size": 2048, "vocab_size": 16000}
    sizes |= {"num_attention_heads": 8, "num_query_groups": 4, "kv_channels": 64}
    a = complete(ArchitectureConfig(**sizes, max_position_embeddings=4096, qk_layernorm=True))
    one, device, name = ParallelConfig(), torch.device("cuda", 0), str(dtype).removeprefix("torch.")
    initialize_groups(one, device, seed=0)
    plain = OptimizerConfig(lr=1e-3, clip_grad=0.1, distributed=distributed)

    def requested() -> int:
        # What is allocated is more: a block may be up to 1 MiB larger than the tensor in it.
        return torch.cuda.memory_stats()["requested_bytes.all.current"]

    def make(fraction: float, source: str) -> tuple[Any, int, Any]:
        settings = replace(plain, cpu_offload_fraction=fraction)
        gc.collect()
        before = requested()
        role = Actor("actor", a, one, settings, num_steps=9, dtype=dtype, device=device)
        gc.collect()
        held = requested() - before
        if (tmp_path / source).exists():
            role.load(tmp_path / source)
        return role, held, role_memory(a, one, settings, name, "actor")

    make(0.0, "start")  # the first role of a process also makes what all share
    alone, held_alone, planned_alone = make(0.0, "start")
    alone.save(tmp_path / "start")
    step_on_noise(alone, range(4))
    for fraction in (0.5, 1.0):
        role, held, planned = make(fraction, "start")
        assert allocations.planned_bytes(planned) == allocations.allocated(role)
        saved = planned_alone.optimizer - planned.optimizer
        assert held_alone - held == pytest.approx(saved, abs=2**20)
        inner = next(inner_optimizers(role.optimizer))
        assert inner.block.is_pinned() and all(s.exp_avg.is_pinned() for s in inner.held.values())
        step_on_noise(role, range(4))
        assert all(not s.is_main or not p.untyped_storage().nbytes() for p, s in inner.held.items())
        assert_close(alone, role)
        role.save(tmp_path / str(fraction))
        elsewhere, again = (make(other, str(fraction))[0] for other in (0.0, fraction))
        assert_close(role, elsewhere)
        step_on_noise(role, range(4, 5))
        step_on_noise(again, range(4, 5))
        # The same fraction goes on bit for bit.
        assert all(
            torch.equal(*p) for p in zip(role.model.parameters(), again.model.parameters(), strict=True)
        )
        experience = make_experience()
        losses = StepLoss(experience, list(range(16)), AlgorithmConfig(), device)
        packed = [role.pack(experience.rollouts, rows) for rows in groups()]
        assert role.update(packed, role.head(1.0), losses.actor, 1.0).applied


@pytest.mark.parametrize("kind", [Actor, Critic])
@pytest.mark.parametrize(
    ("dtype", "recompute", "entropy_coef"),
    [
        (torch.bfloat16, None, 0.0),
        (torch.bfloat16, "selective", 0.0),
        (torch.bfloat16, "full", 0.01),
        (torch.float32, None, 0.0),
    ],
)
def test_memory_is_as_planned(
    dtype: torch.dtype, recompute: str | None, entropy_coef: float, kind: Any
) -> None:
    sizes = {"num_layers": 6, "hidden_size": 1024, "ffn_hidden_size": 3072, "vocab_size": 16000}
    sizes |= {"num_attention_heads": 16, "num_query_groups": 8, "kv_channels": 128}
    a = ArchitectureConfig(**sizes, max_position_embeddings=4096, qk_layernorm=True, tie_word_embeddings=True)
    one, settings, device = ParallelConfig(), OptimizerConfig(), torch.device("cuda", 0)
    initialize_groups(one, device, seed=0)
    role_name, dtype_name = kind.__name__.lower(), str(dtype).removeprefix("torch.")
    more = {"head_init": "normal"} if kind is Critic else {}
    role = kind(
        role_name, a, one, settings, num_steps=10, dtype=dtype, device=device, recompute=recompute, **more
    )
    memory = role_memory(a, one, settings, dtype_name, role_name)
    assert allocations.planned_bytes(memory) == allocations.allocated(role)

    experience, rows = allocations.make_experience([200] * 6, [1200] * 6), list(range(6))
    losses = StepLoss(experience, rows, AlgorithmConfig(entropy_coef=entropy_coef), device)
    head, loss = (role.head(1.0), losses.actor) if kind is Actor else (role.head(), losses.critic)
    batch = role.pack(experience.rollouts, rows)

    def train() -> None:
        allocations.forward_loss(role, batch, head, loss).backward()

    train()  # kernels compile, and libraries take their workspaces
    planned = activations(
        a,
        one,
        len(batch.tokens),
        dtype_name,
        recompute,
        role_name,
        response_tokens=6 * 1200,
    )
    assert planned is not None
    assert planned.peak == pytest.approx(added_by(train), rel=0.2)
    role.optimizer.prepare_grads()
    role.optimizer.step()
    assert added_by(role.optimizer.step) < memory.optimizer / 100


def added_by(work: Callable[[], Any]) -> int:
    """Bytes that `work` takes at most beyond what was allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
