"""Embedded engine against transformers' `generate`: tokens a second on the same weights, in one process, in turns.

    python scripts/bench/rollout.py models/SmolLM2-135M-Instruct

Both sample at temperature 1 in float32 and give the log-prob of every token. The first table generates a fixed number
of tokens; in the second, sequences end of themselves, as in a rollout, and only tokens of responses count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_lightning.config import OptimizerConfig, ParallelConfig, SamplingConfig
from relax_lightning.config.architecture import read_architecture
from relax_lightning.megatron.groups import initialize_groups
from relax_lightning.megatron.role import Actor
from relax_lightning.rollout.embedded import MegatronEngine

QUESTION = [{"role": "user", "content": "Tell me one fact about the number seven."}]
Generate = Callable[[int], int]
"""Takes a number of sequences, gives the number of response tokens."""


def with_transformers(model: Any, prompt: list[int], eos: int, num_tokens: int, is_fixed: bool) -> Generate:
    """`generate` of transformers, with the scores that log-probs need."""

    @torch.inference_mode()
    def generate(num_sequences: int) -> int:
        tokens = torch.tensor([prompt] * num_sequences)
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens if is_fixed else None,
            do_sample=True,
            top_k=0,
            eos_token_id=eos,
            pad_token_id=eos,
            output_scores=True,
            return_dict_in_generate=True,
        )
        model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        ended = (out.sequences[:, len(prompt) :] == eos).cumsum(1) > 0
        return int((~ended).sum() + ended.any(1).sum())

    return generate


def with_engine(engine: MegatronEngine, prompt: list[int], num_tokens: int, is_fixed: bool) -> Generate:
    """The embedded engine."""
    seed = iter(range(10_000))

    def generate(num_sequences: int) -> int:
        sampling = SamplingConfig(max_new_tokens=num_tokens, ignore_eos=is_fixed)
        done = engine.generate([prompt] * num_sequences, range(num_sequences), sampling, next(seed))
        return sum(len(g.token_ids) for g in done)

    return generate


def tokens_a_second(generate: Generate, num_sequences: int) -> float:
    """Of one call."""
    start = time.perf_counter()
    return generate(num_sequences) / (time.perf_counter() - start)


def compare(ours: Generate, theirs: Generate, num_sequences: int, rounds: int) -> str:
    """A table row: median speeds, and the median of the ratios of neighboring calls."""
    for warm_up in (ours, theirs):
        warm_up(num_sequences)
    pairs = [
        (tokens_a_second(ours, num_sequences), tokens_a_second(theirs, num_sequences)) for _ in range(rounds)
    ]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = [one / other for one, other in pairs]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    return f"| {num_sequences} | {a:,.0f} | {b:,.0f} | {middle:.2f} ({low:.2f} to {high:.2f}) |"


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cpu = torch.device("cpu")
    initialize_groups(ParallelConfig(), cpu, seed=0)
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    actor = Actor(
        "actor",
        read_architecture(options.model),
        ParallelConfig(),
        OptimizerConfig(),
        num_steps=1,
        dtype=torch.float32,
        device=cpu,
        weights=str(options.model),
    )
    engine = MegatronEngine()
    engine.attach(actor, tokenizer)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, prompt of {len(prompt)} tokens\n")
    for title, is_fixed, num_tokens in (
        (f"{options.tokens} new tokens each", True, options.tokens),
        (f"sequences end of themselves, at most {4 * options.tokens} tokens", False, 4 * options.tokens),
    ):
        print(
            f"{title}\n\n| sequences | engine, tokens/s | transformers, tokens/s | ratio |\n|---|---|---|---|"
        )
        ours = with_engine(engine, prompt, num_tokens, is_fixed)
        theirs = with_transformers(model, prompt, tokenizer.eos_token_id, num_tokens, is_fixed)
        for num_sequences in (1, 8, 64):
            print(compare(ours, theirs, num_sequences, options.rounds), flush=True)
        print()


if __name__ == "__main__":
    main()
