"""One PPO iteration on GPUs, phase by phase: SGLang, critic and actor in turn, random weights of a published shape.

    python scripts/bench/gpu.py --model Qwen3-0.6B --offload always --json out.json
    torchrun --nproc-per-node 2 scripts/bench/gpu.py --model Qwen3-0.6B --set model.actor.parallel.tensor=2

Runs `fit` as the command does (64 prompts x 4, prompts and responses of 512 tokens, packed micro-batches of 8,192
tokens, bfloat16), then measures in the same process: the engine alone on such prompts, each transfer against a plain
pinned copy, and 20 rounds of every phase switch, which must leave all weights and optimizer state bit for bit as they
were. `--baseline` adds transformers' `generate` and plain training steps of the same model. Several ranks run the
iterations only. Numbers are printed as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from relax_lightning.config import SamplingConfig, load, resolve, to_dict
from relax_lightning.lightning_cli import RelaxLightningCLI
from relax_lightning.plan.memory import PUBLISHED
from relax_lightning.ppo.callback import PPOCallback
from relax_lightning.strategies.offload import RoleResident
from relax_lightning.strategies.residency import PHASES

PROMPTS, SAMPLES, LENGTH = 64, 4, 512
WARM_UP = 2
PEAK_FLOPS = 989e12
"""Dense bfloat16 of an H200 or H100 SXM, by its data sheet."""


class LongPrompts(Sequence[dict[str, Any]]):
    """Prompts of exactly 512 tokens of the digits' tokenizer."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self):
            raise IndexError(index)
        return {"prompt": f"{index:0{LENGTH - 1}d}=", "label": str(index)}


def length_reward(prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
    """Some number that differs between responses."""
    return sum(map(ord, response)) % 7 / 7


def configuration(model: str, folder: str, offload: str, iterations: int, more: Sequence[str] = ()) -> Any:
    """The configuration of the run."""
    name = next(known for known in PUBLISHED if known.endswith("/" + model))
    architecture: Any = replace(PUBLISHED[name], max_position_embeddings=2 * LENGTH + 8)  # pyright: ignore[reportArgumentType]
    tree = {
        "trainer.max_steps": iterations,
        "trainer.default_root_dir": folder,
        "model.actor.architecture": to_dict(architecture),
        "model.actor.tokenizer": "relax_lightning.data.digits.digit_tokenizer",
        "model.actor.optimizer.lr": 1e-6,
        "model.max_tokens_per_microbatch": 8192,
        "callbacks.checkpoint": None,
        "callbacks.curves": None,
        "strategy.offload": offload,
        "data.rollout.train": {"class_path": "scripts.bench.gpu.LongPrompts", "max_prompt_tokens": LENGTH},
        "data.rollout.batch_size": PROMPTS,
        "data.rollout.n_samples_per_prompt": SAMPLES,
        "data.rollout.sampling": {"max_new_tokens": LENGTH, "ignore_eos": True},
        "data.rollout.reward": {"class_path": "scripts.bench.gpu.length_reward", "num_workers": 4},
        "data.rollout.engine": {"class_path": "SGLangEngine", "init_args": {}},
        "tracking.mlflow": None,
    }
    return resolve(load([], [*(f"{key}={json.dumps(value)}" for key, value in tree.items()), *more]))


class Measurements(PPOCallback):
    """Collects every iteration's metrics, and measures the parts alone once training is over."""

    # ruff: noqa: D102

    def __init__(self) -> None:
        self.iterations: list[dict[str, float]] = []

    def on_iteration_start(self, trainer: Any, module: Any, prompts: Any) -> None:
        self._start = time.perf_counter()

    def on_iteration_end(self, trainer: Any, module: Any, metrics: dict[str, float]) -> None:
        self.iterations.append({**metrics, "seconds": time.perf_counter() - self._start})
        if trainer.is_global_zero:
            tell({f"iteration {len(self.iterations)}": json.dumps(self.iterations[-1])})

    def medians(self) -> dict[str, float]:
        """Of the iterations after the first ones."""
        counted = self.iterations[WARM_UP:]
        kept = [key for key in counted[0] if key.startswith(("phase/", "memory/", "mismatch/", "sec"))]
        return {key: statistics.median(i[key] for i in counted) for key in kept}

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.world_size > 1:
            return
        engine, strategy = trainer.datamodule.rollout.engine, trainer.strategy
        strategy.make_room("rollout")
        prompts = [list(range(2, 12)) * 51 + [2, 1 + n % 9] for n in range(PROMPTS) for _ in range(SAMPLES)]
        sampling = SamplingConfig(max_new_tokens=LENGTH, ignore_eos=True)
        spent = [
            clocked(lambda n=n: engine.generate(prompts, range(len(prompts)), sampling, n)) for n in range(3)
        ]
        tell({"engine alone, tokens/s": PROMPTS * SAMPLES * LENGTH / statistics.median(spent)})
        tell(transfers(pl_module, strategy))
        tell(rounds(pl_module, strategy))


FOUND: dict[str, Any] = {}


def tell(numbers: dict[str, Any]) -> None:
    """Print lines of a table, and keep them."""
    FOUND.update(numbers)
    for key, value in numbers.items():
        print(f"| {key} | {value if not isinstance(value, float) else round(value, 4)} |", flush=True)


def clocked(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes, the GPU's part included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def transfers(module: Any, strategy: Any) -> dict[str, Any]:
    """GB/s of each part of the actor out and in, and of a plain copy between pinned and GPU memory."""
    strategy.make_room("actor")
    host, plain = (
        torch.empty(2**30, dtype=torch.uint8, pin_memory=True),
        torch.empty(2**30, dtype=torch.uint8, device="cuda"),
    )
    directions = ((host, plain), (plain, host))
    rates = [2**30 / median_seconds(partial(a.copy_, b, non_blocking=True)) / 1e9 for a, b in directions]
    found: dict[str, Any] = {"plain copy out and in, GB/s": rates}
    del plain, directions
    resident = RoleResident(module.actor)
    for tag in ("weights", "optimizer"):
        size = resident.sizes()[tag]
        spent = []
        for _ in range(4):
            spent.append((clocked(partial(resident.offload, tag)), clocked(partial(resident.onload, tag))))
        # The first one pins the arena.
        rates = [size / statistics.median(column) / 1e9 for column in zip(*spent[1:], strict=True)]
        found[f"actor {tag} out and in, {size / 2**30:.2f} GiB, GB/s"] = rates
    return found


def median_seconds(work: Callable[[], Any]) -> float:
    """Of five times, after one that does not count."""
    work()
    return statistics.median(clocked(work) for _ in range(5))


def rounds(module: Any, strategy: Any) -> dict[str, Any]:
    """20 rounds of all phase switches: seconds of one, and whether any bit or byte changed."""

    def state() -> list[torch.Tensor]:
        held = []
        for name in ("critic", "actor"):
            strategy.make_room(name)
            role = getattr(module, name)
            held += [t.cpu() for tag in ("weights", "optimizer") for t in role.tensors(tag)]
        return held

    before, memory = state(), torch.cuda.memory_allocated()
    spent = []
    for _ in range(20):
        start = time.perf_counter()
        for phase in PHASES:
            strategy.make_room(phase)
            if phase == "publish":
                module._to_engine()
        spent.append(time.perf_counter() - start)
    kept = all(torch.equal(*pair) for pair in zip(before, state(), strict=True))
    grown = torch.cuda.memory_allocated() - memory
    return {"20 rounds": {"bits kept": kept, "bytes grown": grown, "seconds": statistics.median(spent)}}


def flops_per_token(config: Any) -> float:
    """6 a parameter without embedding, 6 of the output layer, 6 * layers * length * attention width (causal)."""
    a = config.model.actor.architecture
    heads, groups, size = a.num_attention_heads, a.num_query_groups, a.kv_channels
    layer = a.hidden_size * size * (2 * heads + 2 * groups) + 3 * a.hidden_size * a.ffn_hidden_size
    return 6 * (a.num_layers * (layer + 2 * LENGTH * heads * size) + a.vocab_size * a.hidden_size)


def baseline(config: Any) -> dict[str, float]:
    """Tokens a second of transformers' `generate`, and of plain training steps, on the same shape."""
    import transformers

    from relax_lightning.config.architecture import hugging_face_config

    described = hugging_face_config(config.model.actor.architecture, "bfloat16", {})
    model: Any = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**described), dtype=torch.bfloat16
    ).cuda()
    prompts = torch.randint(2, 12, (PROMPTS * SAMPLES, LENGTH), device="cuda")

    def generate(length: int) -> None:
        settings: Any = {"max_new_tokens": length, "min_new_tokens": length, "top_k": 0, "pad_token_id": 0}
        model.generate(prompts, do_sample=True, **settings)

    with torch.inference_mode():
        generate(8)
        tokens_per_second = prompts.shape[0] * LENGTH / clocked(partial(generate, LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    rows = torch.randint(2, 12, (8, 2 * LENGTH), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            model(rows, labels=rows).loss.backward()
        optimizer.step()

    step()
    return {
        "transformers generate, tokens/s": tokens_per_second,
        "plain steps, tokens/s": 2 * rows.numel() / clocked(step),
    }


def main() -> None:
    """Run, measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="Qwen3-0.6B")
    parser.add_argument("--offload", default="auto", choices=("auto", "always", "never"))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--baseline", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more configuration")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    measurements = Measurements()
    # Ranks of one job share a folder.
    folder = Path(tempfile.gettempdir()) / f"relax-lightning-gpu-{os.environ.get('MASTER_PORT', os.getpid())}"
    config = configuration(
        arguments.model, str(folder), arguments.offload, arguments.iterations, arguments.set
    )
    cli = RelaxLightningCLI(config, None, "fit")
    cli.trainer.callbacks.append(measurements)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    finally:
        if cli.trainer.is_global_zero:
            shutil.rmtree(folder, ignore_errors=True)
    if not cli.trainer.is_global_zero:
        return
    world = cli.trainer.world_size
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"\n{arguments.model}, offload: {arguments.offload}, {world} x {card}")
    tell(measurements.medians())
    num_tokens = config.data.rollout.batch_size * SAMPLES * 2 * LENGTH
    tell({"rollout, tokens/s": num_tokens / 2 / FOUND["phase/rollout_seconds"]})
    for role in ("critic", "actor"):
        flops = flops_per_token(config) * num_tokens / world
        tell({f"{role}, MFU": flops / FOUND[f"phase/{role}_seconds"] / PEAK_FLOPS})
    if arguments.baseline:
        plain = baseline(config)
        tell(plain)
        generation, training = plain.values()
        seconds = num_tokens / 2 / generation + 2 * num_tokens / training
        tell({"the same work plain, s": seconds, "times as fast": seconds / FOUND["seconds"]})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(FOUND, indent=1))


if __name__ == "__main__":
    main()
