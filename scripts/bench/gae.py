"""Time GAE against a loop over time, a scan over time and one copy of the arrays, and print a table.

Every round runs all ways one after the other and counts CPU time, so that whatever else the machine does slows all of
them alike and mostly stays out; the ratios of a round are what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from relax_lightning.algorithms.gae import compute_gae

Pair = tuple[Tensor, Tensor]
GAMMA, LAMBD = 1.0, 0.95


def copy_once(rewards: Tensor, values: Tensor, mask: Tensor) -> Pair:
    """Read the three arrays once and write two: what no GAE can beat."""
    mask.any()
    return rewards.clone(), values.clone()


def loop_over_time(rewards: Tensor, values: Tensor, mask: Tensor) -> Pair:
    """The recursion as PPO code usually writes it, for right-padded samples."""
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        value = values[:, t] * mask[:, t]
        delta = rewards[:, t] + GAMMA * next_value - value
        next_advantage = (delta + GAMMA * LAMBD * next_advantage) * mask[:, t]
        advantages[:, t] = next_advantage
        next_value = value
    return advantages, (advantages + values) * mask


def scan_over_time(rewards: Tensor, values: Tensor, mask: Tensor) -> Pair:
    """The same as an associative scan by doubling over the whole arrays, without blocks."""
    values = values * mask
    sums = rewards * mask - values
    sums[:, :-1] += GAMMA * values[:, 1:]
    step, factor = 1, GAMMA * LAMBD
    while step < sums.shape[1]:
        sums = sums + factor * torch.nn.functional.pad(sums[:, step:], (0, step))
        step, factor = 2 * step, factor * factor
    return sums, sums + values


def ours(rewards: Tensor, values: Tensor, mask: Tensor) -> Pair:
    """The product's function."""
    return compute_gae(rewards, values, mask, gamma=GAMMA, lambd=LAMBD)


def ours_with_gaps(rewards: Tensor, values: Tensor, mask: Tensor) -> Pair:
    """The product's function with every tenth token masked, so that the gaps have to be closed."""
    return compute_gae(
        rewards, values, mask & (torch.arange(mask.shape[1]) % 10 != 5), gamma=GAMMA, lambd=LAMBD
    )


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Pair]] = {
    "copy of the arrays": copy_once,
    "compute_gae": ours,
    "compute_gae, masked gaps": ours_with_gaps,
    "scan over time": scan_over_time,
    "loop over time": loop_over_time,
}


def make_arrays(batch: int, response: int) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded samples of half to full length with a reward at the end."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(response // 2, response + 1, (batch, 1), generator=generator)
    steps = torch.arange(response)
    rewards = (steps == lengths - 1).float()
    return rewards, torch.randn(batch, response, generator=generator), steps < lengths


def measure(arrays: tuple[Tensor, Tensor, Tensor], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every way in every round, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for round_number in range(rounds + 1):
        for name, way in WAYS.items():
            start = time.process_time()
            way(*arrays)
            if round_number > 0:
                seconds[name].append(time.process_time() - start)
    return seconds


def table(seconds: dict[str, list[float]]) -> str:
    """Median milliseconds, and the median over the rounds of the ratio to the copy."""
    lines = ["| way | median CPU ms | times the copy | times compute_gae |", "|---|---:|---:|---:|"]
    for name, times in seconds.items():
        over_copy, over_ours = (
            statistics.median(t / r for t, r in zip(times, seconds[reference], strict=True))
            for reference in ("copy of the arrays", "compute_gae")
        )
        lines.append(
            f"| {name} | {1000 * statistics.median(times):.0f} | {over_copy:.2f} | {over_ours:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time GAE against what else there is.")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--response", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    arrays = make_arrays(args.batch, args.response)
    torch.testing.assert_close(ours(*arrays), loop_over_time(*arrays), atol=1e-4, rtol=1e-4)
    size = f"{args.batch} x {args.response} tokens"
    print(f"{size}, {args.threads} thread(s), {args.rounds} rounds, torch {torch.__version__}\n")
    print(table(measure(arrays, args.rounds)))


if __name__ == "__main__":
    main()
