"""Updates of actor and critic alone on one GPU: speed against the card's peak, and memory against the plan.

    python scripts/bench/training.py --model Qwen3-0.6B

Random weights of a published shape, the samples of `scripts/bench/gpu.py` (256 of 512 + 512 tokens) in packed
micro-batches of 8,192 tokens, bfloat16, one optimizer step over all of them; no rollout engine. `--layers` takes other
ways through the same layers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from relax_lightning.megatron.build import build_actor, build_critic
from relax_lightning.megatron.groups import initialize_groups
from relax_lightning.megatron.models.fused_layer import PackedLayer
from relax_lightning.plan.memory import activations
from relax_lightning.ppo.batch import Experience, Rollouts
from relax_lightning.ppo.updates import Batching, run_steps
from scripts.bench.gpu import (
    LENGTH,
    PEAK_FLOPS,
    PROMPTS,
    SAMPLES,
    clocked,
    configuration,
    flops_per_token,
)


def experience(num_samples: int) -> Experience:
    """Random samples whose log-probs are those of a uniform policy."""
    draw = torch.Generator().manual_seed(0)
    shape = (num_samples, LENGTH)
    texts = ("",) * num_samples
    rollouts = Rollouts(
        sample_ids=torch.arange(num_samples),
        prompt_tokens=torch.randint(2, 1000, shape, generator=draw),
        prompt_lengths=torch.full((num_samples,), LENGTH),
        response_tokens=torch.randint(2, 1000, shape, generator=draw),
        response_lengths=torch.full((num_samples,), LENGTH),
        response_mask=torch.ones(shape, dtype=torch.bool),
        rollout_log_probs=torch.full(shape, -11.9),
        rewards=torch.zeros(num_samples),
        finish_reasons=("length",) * num_samples,
        prompts=texts,
        responses=texts,
        labels=texts,
        temperature=1.0,
        weight_version=1,
    )
    zeros = torch.zeros(shape)
    return Experience(
        rollouts, values=zeros, advantages=zeros, returns=zeros, old_log_probs=rollouts.rollout_log_probs
    )


def planned_peak(config: Any, role: Any) -> float:
    """GiB of a micro-batch's activations by the memory plan."""
    found = activations(
        config.model.actor.architecture,
        config.model.actor.parallel,
        config.model.max_tokens_per_microbatch,
        "bfloat16",
        None,
        role.name,
        response_tokens=config.model.max_tokens_per_microbatch // 2,
    )
    assert found is not None
    return found.peak / 2**30


def measure(config: Any, role: Any, samples: Experience, rounds: int) -> dict[str, float]:
    """Seconds of one step, MFU, and the peak of what it takes beside the role itself, planned and measured."""
    batching = Batching(config.model, on_gpu=True)

    def step() -> None:
        steps = iter([list(range(len(samples)))])
        run_steps(role, samples, batching, steps, config.model.algorithm, lambda _: 1.0, lambda *_: True)

    first = clocked(step)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    spent = min(clocked(step) for _ in range(rounds))
    num_tokens = len(samples) * 2 * LENGTH
    return {
        "first step, s": first,
        "step, s": spent,
        "tokens/s": num_tokens / spent,
        "MFU": flops_per_token(config) * num_tokens / spent / PEAK_FLOPS,
        "activations, GiB": (torch.cuda.max_memory_allocated() - before) / 2**30,
        "planned, GiB": planned_peak(config, role),
    }


def main() -> None:
    """Measure both roles, print, and write the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="Qwen3-0.6B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--layers",
        default="whole",
        choices=("whole", "parts", "modules"),
        help="whole: each compiled in one piece; parts: as tensor ranks run it; modules: as Megatron does",
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for other, name, value in (("parts", "_is_cut", True), ("modules", "_pays", lambda *_: False)):
        if arguments.layers == other:
            setattr(PackedLayer, name, value)
    with tempfile.TemporaryDirectory() as folder:
        config = configuration(arguments.model, folder, "never", 1)
    device = torch.device("cuda", 0)
    initialize_groups(config.model.actor.parallel, device, seed=1)
    samples = experience(PROMPTS * SAMPLES)
    found = {}
    for build in (build_actor, build_critic):
        role = build(config.model, device, 100)
        found[role.name] = measure(config, role, samples, arguments.rounds)
        print(
            f"{arguments.model} {role.name}: { ({k: round(v, 3) for k, v in found[role.name].items()}) }",
            flush=True,
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
