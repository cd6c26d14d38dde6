"""What an iteration's samples cost on their way through Ray and TransferQueue, against the same in one process.

    python scripts/bench/cluster.py --rounds 7

The driver plays a rank: it writes an iteration's rewards and values, has the advantages service compute, and reads
what comes back, in turns within this process and through the store's and the service's own processes.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import ray
import torch

from relax_lightning.config import AlgorithmConfig
from relax_lightning.data.advantages import AdvantagesDataModule
from relax_lightning.distributed.coordinator import Coordinator
from relax_lightning.distributed.services import AdvantagesProcess, RemoteAdvantages, StoreProcess
from relax_lightning.distributed.store import DEADLINE_SECONDS, TransferQueueStore
from relax_lightning.ppo.batch import Rollouts

PAYLOADS_MIB = (0.1, 1.0, 16.0, 64.0)
PROMPT, RESPONSE = 128, 1024
BYTES_PER_SAMPLE = RESPONSE * (1 + 4 + 4 + 4 + 4)
"""Mask, rewards, values, advantages, returns."""


def rollouts_of(num_samples: int) -> Rollouts:
    """Random rollouts, every response of full length."""
    return Rollouts(
        sample_ids=torch.arange(num_samples),
        prompt_tokens=torch.randint(0, 9999, (num_samples, PROMPT)),
        prompt_lengths=torch.full((num_samples,), PROMPT),
        response_tokens=torch.randint(0, 9999, (num_samples, RESPONSE)),
        response_lengths=torch.full((num_samples,), RESPONSE),
        response_mask=torch.ones(num_samples, RESPONSE, dtype=torch.bool),
        rollout_log_probs=-torch.rand(num_samples, RESPONSE),
        rewards=torch.rand(num_samples),
        finish_reasons=("length",) * num_samples,
        prompts=("",) * num_samples,
        responses=("",) * num_samples,
        labels=(None,) * num_samples,
        temperature=1.0,
        weight_version=1,
    )


def iteration(module: AdvantagesDataModule, rollouts: Rollouts, number: int) -> float:
    """Seconds of one iteration's exchange."""
    values, rewards = torch.rand(2, len(rollouts), RESPONSE)
    algorithm = AlgorithmConfig(lambd=0.95, normalize_advantages=True)
    start = time.perf_counter()
    module.compute(rollouts, values, None, algorithm, rewards=rewards, iteration=number)
    return time.perf_counter() - start


def remote_module() -> AdvantagesDataModule:
    """A module whose store and service are processes on Ray."""
    options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 1000}
    remote: Any = ray.remote
    coordinator = remote(Coordinator).options(**options).remote()
    process = remote(StoreProcess).options(**options).remote()
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    service = remote(AdvantagesProcess).options(**options).remote(process, coordinator, threads)
    module = AdvantagesDataModule()
    store = TransferQueueStore(process, coordinator)
    module.connect(store, RemoteAdvantages(service, DEADLINE_SECONDS))
    return module


def round_trip(rounds: int) -> float:
    """Median seconds of an empty call of a Ray actor: the floor of anything that goes through one."""
    remote: Any = ray.remote
    coordinator = remote(Coordinator).options(num_cpus=0).remote()

    def call() -> None:
        ray.get(coordinator.post.remote([]))

    return _median(call, 20 * rounds)


def _median(call: Callable[[], None], times: int) -> float:
    seconds = []
    for _ in range(times + 1):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds: int = parser.parse_args().rounds
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    here, there, number = AdvantagesDataModule(), remote_module(), 0
    print("| payload, MiB | samples | in process, ms | Ray + TransferQueue, ms | ratio | more, ms |")
    print("|---:|---:|---:|---:|---:|---:|")
    for payload in PAYLOADS_MIB:
        rollouts = rollouts_of(max(1, round(payload * 2**20 / BYTES_PER_SAMPLE)))
        seconds: dict[str, list[float]] = {"here": [], "there": []}
        for _ in range(rounds + 1):
            number += 1
            seconds["here"].append(iteration(here, rollouts, number))
            seconds["there"].append(iteration(there, rollouts, number))
        local, remote = (1000 * statistics.median(seconds[side][1:]) for side in ("here", "there"))
        row = (f"{payload:g}", len(rollouts), f"{local:.1f}", f"{remote:.1f}", f"{remote / local:.1f}")
        print("| " + " | ".join(map(str, (*row, f"{remote - local:.1f}"))) + " |", flush=True)
    print(f"\nAn empty call of a Ray actor: {1000 * round_trip(rounds):.2f} ms")
    ray.shutdown()


if __name__ == "__main__":
    main()
