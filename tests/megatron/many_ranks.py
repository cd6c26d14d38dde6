"""Builds ranks of parallel roles one after another, over process groups that transfer nothing; prints bytes as JSON.

A program of its own: the groups of a process cannot be changed under other tests.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch.testing._internal.distributed.fake_pg import FakeStore

from relax_lightning.config import ArchitectureConfig, OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import complete
from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.groups import destroy_groups, initialize_groups
from relax_lightning.megatron.models.layout import SequenceLayout
from relax_lightning.megatron.role import Actor, Critic
from relax_lightning.plan.memory import activations, role_memory
from tests.megatron.allocations import allocated, counting_saved, held_by, planned_bytes

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"num_layers": 4, "hidden_size": 48, "num_attention_heads": 4, "num_query_groups": 2}
SIZES |= {"kv_channels": 16, "ffn_hidden_size": 100, "vocab_size": 98}
SHAPES = (
    complete(ArchitectureConfig(**SIZES, tie_word_embeddings=True, qk_layernorm=True)),
    complete(ArchitectureConfig(**SIZES, qkv_bias=True)),
)
CUTS = (
    (ParallelConfig(tensor=2), 1),
    (ParallelConfig(pipeline=2), 1),
    (ParallelConfig(), 3),
    (ParallelConfig(tensor=2, pipeline=2, sequence=True), 2),
)


def enter(rank: int, world: int, parallel: ParallelConfig) -> None:
    """Become one rank of a world."""
    destroy_groups()
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    initialize_groups(parallel, CPU, seed=0)


def build(
    kind: Any, a: ArchitectureConfig, parallel: ParallelConfig, settings: OptimizerConfig, dtype: Any
) -> Any:
    """A role on the rank that was entered."""
    head = {"head_init": "zero"} if kind is Critic else {}
    name = kind.__name__.lower()
    return kind(name, a, parallel, settings, num_steps=3, dtype=dtype, device=CPU, **head)


def roles() -> list[dict[str, Any]]:
    """Every stage's largest rank, planned and allocated."""
    found = []
    choices = itertools.product(CUTS, SHAPES, ("float32", "bfloat16"), (True, False), (Actor, Critic))
    fractions = itertools.cycle((0.0, 0.4, 0.0, 0.0, 0.8))
    for (parallel, replicas), a, dtype, distributed, kind in choices:
        settings = OptimizerConfig(distributed=distributed, cpu_offload_fraction=next(fractions))
        by_stage: dict[int, list[tuple[int, ...]]] = {}
        world = parallel.tensor * parallel.pipeline * replicas
        for rank in range(0, world, parallel.tensor):
            enter(rank, world, parallel)
            stage = parallel_state.get_pipeline_model_parallel_rank()
            role = build(kind, a, parallel, settings, getattr(torch, dtype))
            by_stage.setdefault(stage, []).append(allocated(role))
        for stage, ranks in by_stage.items():
            memory = role_memory(a, parallel, settings, dtype, kind.__name__.lower(), replicas, stage)
            largest = [max(kind) for kind in zip(*ranks, strict=True)]
            found.append(
                {
                    "planned": planned_bytes(memory),
                    "allocated": largest,
                    "case": f"{parallel} {replicas} {kind} {stage}",
                }
            )
    return found


def trunks() -> list[dict[str, Any]]:
    """What the layers of a tensor rank save for 120 tokens, planned and seen; the head takes none."""
    found = []
    choices = itertools.product(SHAPES, (False, True), (None, "full"))
    for a, sequence, recompute in choices:
        parallel = ParallelConfig(tensor=2, sequence=sequence)
        enter(0, 2, parallel)
        role = Critic(
            "critic",
            a,
            parallel,
            OptimizerConfig(),
            num_steps=3,
            dtype=torch.float32,
            device=CPU,
            recompute=recompute,
            head_init="zero",
        )
        role.ddp.train()
        layout = SequenceLayout(lengths=(50, 40, 30))
        with cuda_stand_in(), counting_saved(held_by(role)) as saved:
            role.ddp(torch.zeros(120, dtype=torch.int64), layout)
        planned = activations(
            a,
            parallel,
            120,
            "float32",
            recompute,
            "critic",
            response_tokens=0,
            padded_tokens=150,
            on_gpu=False,
        )
        assert planned is not None
        found.append(
            {"planned": planned.saved, "saved": sum(saved.values()), "case": f"{sequence} {recompute}"}
        )
    return found


if __name__ == "__main__":
    print(json.dumps({"roles": roles(), "activations": trunks()}))
