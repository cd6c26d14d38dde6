"""The memory arithmetic against what Megatron allocates and autograd saves."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, common
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch._subclasses.fake_tensor import FakeTensorMode

from relax_lightning.algorithms.losses import policy_loss, value_loss
from relax_lightning.config import (
    AlgorithmConfig,
    ArchitectureConfig,
    OptimizerConfig,
    ParallelConfig,
    SamplingConfig,
)
from relax_lightning.config.architecture import complete
from relax_lightning.megatron import cpu
from relax_lightning.megatron.groups import groups_of
from relax_lightning.megatron.microbatch import Microbatch
from relax_lightning.megatron.models import heads
from relax_lightning.megatron.models.fused_layer import PackedLayer
from relax_lightning.megatron.models.layers import RMSNorm
from relax_lightning.megatron.models.layout import SequenceLayout
from relax_lightning.megatron.models.model import build_model, transformer_config
from relax_lightning.megatron.role import Actor, Critic, MegatronRole
from relax_lightning.plan.memory import (
    HybridArchitecture,
    activations,
    checkpoint_bytes,
    embedded_engine,
    kv_cache,
    role_memory,
    rollout_bytes,
)
from relax_lightning.plan.memory.activations import CHUNK_TOKENS
from relax_lightning.plan.memory.generation import sampling_bytes
from relax_lightning.plan.memory.parameters import Parameter, stage_parameters
from relax_lightning.plan.memory.roles import buffer_layout
from relax_lightning.ppo.updates import StepLoss
from relax_lightning.rollout.sampling import sample_tokens
from relax_lightning.strategies.offload import TensorGroup
from tests.conftest import REPOSITORY
from tests.megatron.allocations import (
    LiveBytes,
    allocated,
    counting_saved,
    forward_loss,
    held_by,
    make_experience,
    planned_bytes,
)

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
ONE = ParallelConfig()
RAGGED, EVEN = ([10, 20, 5], [30, 40, 7]), ([20, 20, 20], [40, 40, 40])
pytestmark = [
    pytest.mark.usefixtures("process_group"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the CPU's kernels save"),
]


def shape(**changes: Any) -> ArchitectureConfig:
    """Sizes that nothing divides evenly."""
    sizes = {"num_layers": 2, "hidden_size": 72, "num_attention_heads": 6, "num_query_groups": 2}
    sizes |= {"kv_channels": 10, "ffn_hidden_size": 101, "vocab_size": 97, "max_position_embeddings": 4096}
    return complete(ArchitectureConfig(**(sizes | changes)))


SHAPES = (
    shape(tie_word_embeddings=True),
    shape(qk_layernorm=True),
    shape(qkv_bias=True, num_query_groups=6, tie_word_embeddings=True),
    shape(num_query_groups=1, qk_layernorm=True, vocab_size=128),
    shape(num_query_groups=6, qk_layernorm=True),
)


def make(kind: type[MegatronRole], a: ArchitectureConfig, dtype: torch.dtype, **more: Any) -> Any:
    more = {"optimizer": OptimizerConfig(), "recompute": None} | more
    settings, recompute = more.pop("optimizer"), more.pop("recompute")
    head = {"head_init": "normal"} if kind is Critic else {}
    name = kind.__name__.lower()
    return kind(
        name, a, ONE, settings, num_steps=3, dtype=dtype, device=CPU, recompute=recompute, **head, **more
    )


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_gradients_and_optimizer_are_exact(dtype: torch.dtype) -> None:
    fractions = itertools.cycle((0.0, 0.3, 1.0))
    for a, kind, distributed in itertools.product(SHAPES, (Actor, Critic), (True, False)):
        settings = OptimizerConfig(distributed=distributed, cpu_offload_fraction=next(fractions))
        role = make(kind, a, dtype, optimizer=settings)
        memory = role_memory(a, ONE, settings, name_of(dtype), role.name)
        assert planned_bytes(memory) == allocated(role)
        # What can leave the device is what lies there, but for the state of one element: a value head's bias.
        assert TensorGroup(partial(role.tensors, "weights")).size == memory.weights
        left = memory.optimizer - TensorGroup(partial(role.tensors, "optimizer")).size
        assert left == 0 or (kind is Critic and 0 < left <= 3 * 4)
        ours = stage_parameters(a, ONE, role.name, 0)
        theirs = list(role.model.named_parameters())
        assert len(ours) == len(theirs)
        for parameter, (name, tensor) in zip(ours, theirs, strict=True):
            assert name.endswith(parameter.name)
            assert tensor.numel() == parameter.size


def test_delta_net_layers_are_megatrons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built without flash-linear-attention: only its kernels are missing then, and nothing is computed."""
    monkeypatch.setattr(common, "HAVE_FLA", True)
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_conv_kernel_dim": 4}
    linear |= {"linear_key_head_dim": 12, "linear_value_head_dim": 20}
    hybrid = HybridArchitecture(shape(num_layers=1), full_attention_interval=4, **linear)
    config = transformer_config(hybrid.trunk, ONE, torch.float32, None)
    for name, value in (linear | {"deterministic_mode": True}).items():
        setattr(config, name, value)
    submodules = common.GatedDeltaNetSubmodules(ColumnParallelLinear, RMSNorm, RowParallelLinear)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    with cpu.cuda_stand_in():
        layer = GatedDeltaNet(config, submodules, layer_number=1, pg_collection=groups)
    ours = stage_parameters(hybrid, ONE, "actor", 0)
    theirs = [(name, tensor.numel()) for name, tensor in layer.named_parameters()]
    names = [name for name, _ in theirs]
    assert [(p.name, p.size) for p in ours if p.name in names] == theirs
    assert names == [
        "dt_bias",
        "A_log",
        "in_proj.weight",
        "conv1d.weight",
        "out_norm.weight",
        "out_proj.weight",
    ]


def test_layout_over_ranks_is_megatrons() -> None:
    """Megatron's own functions on made-up parameters, for every rank of groups that do not exist."""
    draw = random.Random(0)
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    for ranks in (1, 2, 3, 8, 12, 64):
        sizes = [draw.choice([1, 63, 64, 65, draw.randrange(1, 5000)]) for _ in range(20)]
        tied = {0, draw.randrange(20)}
        ours = buffer_layout([Parameter("", n, i in tied) for i, n in enumerate(sizes)], ranks)
        tensors = [torch.nn.Parameter(torch.empty(n)) for n in sizes]
        for index in tied:
            tensors[index].shared_embedding = True  # pyright: ignore[reportAttributeAccessIssue]
        theirs = DistributedOptimizer._compute_per_buffer_param_layout(tensors, None, ranks, config)
        assert ours.buckets == tuple(theirs.bucket_indices)
        spans = {start: end for start, end, _ in theirs.param_index_map.values()}
        assert dict(ours.spans) == spans
        for rank in range(ranks):
            assert ours.share(rank) == _megatrons_share(theirs, ranks, rank)


def _megatrons_share(layout: Any, ranks: int, rank: int) -> int:
    buckets = [
        SimpleNamespace(grad_data=torch.empty(end - start, device="meta"), offset=start)
        for start, end in layout.bucket_indices
    ]
    buffer: Any = SimpleNamespace(
        data_parallel_group=SimpleNamespace(rank=lambda: rank, size=lambda: ranks),
        num_optimizer_shards=ranks,
        buckets=buckets,
        param_index_map=layout.param_index_map,
    )
    maps = [DistributedOptimizer._build_model_gbuf_range(buffer, n)["param_map"] for n in range(len(buckets))]
    return sum(ranges["param"].size for ranges in itertools.chain(*(m.values() for m in maps)))


def test_parallel_ranks_are_exact() -> None:
    """Megatron builds tensor, pipeline and data-parallel ranks, over groups that transfer nothing."""
    script = Path(__file__).with_name("many_ranks.py")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = json.loads(done.stdout.splitlines()[-1])
    assert len(cases["roles"]) == 96
    for case in cases["roles"]:
        assert case["planned"] == case["allocated"], case
    assert len(cases["activations"]) == 8
    for case in cases["activations"]:
        assert case["planned"] == pytest.approx(case["saved"], rel=0.05), case


def saved_on_cpu(
    kind: type[MegatronRole],
    a: ArchitectureConfig,
    dtype: torch.dtype,
    recompute: str | None,
    lengths: tuple[list[int], list[int]],
) -> tuple[int, int]:
    """Bytes planned and bytes saved."""
    role, experience = make(kind, a, dtype, recompute=recompute), make_experience(*lengths)
    rows = list(range(len(experience)))
    batch = role.pack(experience.rollouts, rows)
    losses = StepLoss(experience, rows, AlgorithmConfig(entropy_coef=0.01), CPU)
    head, loss = (role.head(1.0), losses.actor) if kind is Actor else (role.head(), losses.critic)
    with counting_saved(held_by(role)) as saved:
        value = forward_loss(role, batch, head, loss)
    assert value.requires_grad
    planned = activations(
        a,
        ONE,
        len(batch.tokens),
        name_of(dtype),
        recompute,
        role.name,
        response_tokens=sum(lengths[1]),
        padded_tokens=len(rows) * batch.layout.max_length,
        on_gpu=False,
    )
    assert planned is not None
    return planned.saved, sum(saved.values())


@pytest.mark.parametrize("recompute", [None, "selective", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_on_a_cpu(dtype: torch.dtype, recompute: str | None) -> None:
    for a, lengths in itertools.product(SHAPES, (RAGGED, EVEN)):
        planned, saved = saved_on_cpu(Actor, a, dtype, recompute, lengths)
        assert planned == pytest.approx(saved, rel=0.03)
    for lengths in (RAGGED, EVEN, ([1], [1]), ([3] * 16, [2, 60] * 8), ([100] * 3, [400, 1500, 700])):
        # The loss pads responses to the longest, which counts where there are hardly any activations.
        tolerance = 0.03 if min(lengths[1]) > 2 else 0.2
        for kind in (Actor, Critic):
            planned, saved = saved_on_cpu(kind, SHAPES[1], dtype, recompute, lengths)
            assert planned == pytest.approx(saved, rel=tolerance)


def test_a_chunk_is_the_heads() -> None:
    assert CHUNK_TOKENS == heads.CHUNK_TOKENS


@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
@pytest.mark.parametrize("responses", [[200, 100, 300], [900, 1400]])
def test_peak_where_logits_dominate(responses: list[int], entropy_coef: float) -> None:
    a = shape(vocab_size=5000, num_layers=1)
    role, experience = make(Actor, a, torch.float32), make_experience([20] * len(responses), responses)
    rows = list(range(len(experience)))
    batch = role.pack(experience.rollouts, rows)
    loss = StepLoss(experience, rows, AlgorithmConfig(entropy_coef=entropy_coef), CPU)
    with cpu.cuda_stand_in(), LiveBytes(held_by(role)) as live:
        forward_loss(role, batch, role.head(1.0), loss.actor).backward()
    planned = activations(
        a,
        ONE,
        len(batch.tokens),
        "float32",
        None,
        "actor",
        response_tokens=sum(responses),
        padded_tokens=len(rows) * batch.layout.max_length,
        on_gpu=False,
    )
    assert planned is not None
    assert planned.peak == pytest.approx(live.peak, rel=0.1)
    assert planned.working > 0.4 * planned.peak


@pytest.mark.parametrize("recompute", [None, "selective", "full"])
def test_activations_on_a_gpu(recompute: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's paths on tensors without contents, which need no GPU; only forward can run on them."""
    # Megatron's names for the current device then mean a GPU, and nothing else has to be redirected.
    monkeypatch.setattr(cpu, "_CudaOnCpu", contextlib.nullcontext)
    monkeypatch.setattr(cpu, "CPU", GPU)
    # Compiled, it keeps the same; run as it stands, it would not.
    monkeypatch.setattr(PackedLayer, "_pays", lambda *_: False)
    with torch.compiler.set_stance("force_eager"):
        for a, lengths, critic in [
            *((a, RAGGED, False) for a in SHAPES),
            (SHAPES[1], RAGGED, True),
            (SHAPES[1], ([100] * 4, [900] * 4), False),
        ]:
            saved = _saved_by_gpu_kernels(a, recompute, lengths, critic=critic)
            tokens = sum(lengths[0]) + sum(lengths[1]) - len(lengths[0])
            role = "critic" if critic else "actor"
            planned = activations(
                a, ONE, tokens, "bfloat16", recompute, role, response_tokens=sum(lengths[1])
            )
            assert planned is not None
            assert planned.saved == pytest.approx(saved, rel=0.03)


def _saved_by_gpu_kernels(
    a: ArchitectureConfig, recompute: str | None, lengths: tuple[list[int], list[int]], *, critic: bool
) -> int:
    config = transformer_config(a, ONE, torch.bfloat16, recompute)
    config.bias_activation_fusion = True
    on_cpu = build_model(a, config, groups_of(ONE), CPU, head_init="normal" if critic else None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model: Any = _without_contents(on_cpu)
        batch = _packed_without_contents(*lengths)
        # Its cached table of angles was made on the CPU; no gradient flows through it.
        angles = [
            torch.empty(len(batch.tokens), 1, a.kv_channels, dtype=torch.bfloat16, device=GPU)
            for _ in range(2)
        ]
        model._rotary = lambda positions: tuple(angles)
        mask = torch.ones(len(batch.rows), batch.width, dtype=torch.bool, device=GPU)
        noise = torch.zeros(mask.shape, device=GPU)
        excluded = {p.untyped_storage()._cdata for p in model.parameters()}
        with cpu.cuda_stand_in(), counting_saved(excluded) as saved:
            hidden = model(batch.tokens, batch.layout)
            if critic:
                outputs: Any = heads.critic_outputs(model, hidden, batch)
                loss, _ = value_loss(outputs.values, noise, noise, mask, value_clip=0.2)
            else:
                outputs = heads.policy_outputs(model, hidden, batch, 1.0)
                loss, _ = policy_loss(outputs.log_probs, noise, noise, mask, eps_clip=0.2)
        assert loss.device == GPU
        return sum(saved.values())


def _without_contents(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device=GPU))
                empty.__dict__.update(parameter.__dict__)
                module._parameters[name] = empty
    return model.train()


def _packed_without_contents(prompts: list[int], responses: list[int]) -> Microbatch:
    lengths = tuple(p + r - 1 for p, r in zip(prompts, responses, strict=True))
    layout = SequenceLayout(lengths=lengths, device=GPU)

    def index(length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int64, device=GPU)

    layout.__dict__["positions"] = index(sum(lengths))
    layout.__dict__["cu_seqlens"] = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=GPU)
    states, targets, cells = (index(sum(responses)) for _ in range(3))
    rows = tuple(range(len(lengths)))
    return Microbatch(rows, index(sum(lengths)), layout, states, targets, cells, max(responses))


def test_cache_and_sampling_of_the_embedded_engine() -> None:
    a = shape()
    decoder = make(Actor, a, torch.float32).decoder()
    logits = decoder.begin([[1, 2, 3], [4]], [0, 1, 1, 0, 1], 16)
    cache = [*decoder._cache.keys.values(), *decoder._cache.values.values()]
    assert sum(t.untyped_storage().nbytes() for t in cache) == kv_cache(a, ONE, 5 * 16, "float32")
    assert embedded_engine(a, ONE, 5, 16, "float32").kv_cache == kv_cache(a, ONE, 5 * 16, "float32")
    assert logits.shape == (5, 97)
    for dtype in (torch.float32, torch.bfloat16):
        many = torch.randn(50, 4000).to(dtype)
        with LiveBytes({many.untyped_storage()._cdata}) as live:
            sample_tokens(many, torch.rand(50, dtype=torch.float64), SamplingConfig())
        assert sampling_bytes(many.numel()) == pytest.approx(live.peak, rel=0.05)


def test_records_on_the_host_are_exact() -> None:
    experience = make_experience([3, 7, 5], [11, 4, 2])
    tensors = [v for r in (experience, experience.rollouts) for v in vars(r).values() if torch.is_tensor(v)]
    assert rollout_bytes(3, 7, 11) == sum(t.nbytes for t in tensors)


@pytest.mark.parametrize(
    ("dtype", "distributed", "on_host"),
    [(torch.float32, True, 0.0), (torch.float32, False, 0.5), (torch.bfloat16, True, 0.5)],
)
def test_checkpoints_take_what_is_planned(
    dtype: torch.dtype, distributed: bool, on_host: float, tmp_path: Path
) -> None:
    a = shape(hidden_size=256, ffn_hidden_size=1024, vocab_size=2000)
    actor = OptimizerConfig(distributed=distributed, cpu_offload_fraction=on_host)
    for kind in (Actor, Critic):
        make(kind, a, dtype, optimizer=replace(actor)).save(tmp_path / kind.__name__)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    planned = checkpoint_bytes(a, name_of(dtype), actor, actor)
    assert planned == pytest.approx(size, rel=0.02)
    assert planned < size
