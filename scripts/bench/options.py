"""Whether each option of the algorithm, on its own, still learns: a table of rewards by option and seed.

    python scripts/bench/options.py --jobs 16 --seeds 3

Trains `configs/digits-cpu.yaml` once for every option and seed, each run in a process of one thread. Results are kept
in `<folder>/results.json` as they come: called again, it runs only what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

REPOSITORY = Path(__file__).resolve().parents[2]
LAST = 5
"""Iterations at the end whose mean reward is the result."""
SOLVED = 0.6
"""Reward of which it is told when it is reached first."""
NUM_PRETRAINING = 10
"""Critic-only iterations of the runs that have them."""
A, R = "model.algorithm", "data.rollout"
RECOMPUTE = f"{A}.old_log_probs=recompute"
KL_LOSS = ("model.reference={}", f"{A}.use_kl_loss=true", f"{A}.kl_loss_coef=0.01")
OPTIONS: dict[str, tuple[str, ...]] = {
    "as configured": (),
    "num_ppo_epochs 1": (f"{A}.num_ppo_epochs=1", f"{A}.num_critic_epochs=1"),
    "num_critic_epochs 1": (f"{A}.num_critic_epochs=1",),
    "target_kl 0.02": (f"{A}.target_kl=0.02",),
    "lambd 1": (f"{A}.lambd=1.0",),
    "decoupled: lambd_critic 1": (f"{A}.lambd_critic=1.0",),
    "lambd_length_alpha 0.5": (f"{A}.lambd=1.0", f"{A}.lambd_length_alpha=0.5", f"{A}.lambd_critic=1.0"),
    "truncation bootstrap": (f"{A}.truncation=bootstrap",),
    "truncation mask": (f"{A}.truncation=mask",),
    "12 tokens": (f"{R}.sampling.max_new_tokens=12",),
    "12 tokens, truncation bootstrap": (f"{R}.sampling.max_new_tokens=12", f"{A}.truncation=bootstrap"),
    "12 tokens, truncation mask": (f"{R}.sampling.max_new_tokens=12", f"{A}.truncation=mask"),
    "old_log_probs recompute": (RECOMPUTE,),
    "importance truncate, token": (RECOMPUTE, f"{A}.importance_cap=2.0"),
    "importance truncate, sequence": (RECOMPUTE, f"{A}.importance_cap=2.0", f"{A}.importance_level=sequence"),
    "importance mask, token": (
        RECOMPUTE, f"{A}.importance_cap=2.0", f"{A}.importance_floor=0.5", f"{A}.importance_mode=mask",
    ),
    "importance mask, sequence": (
        RECOMPUTE, f"{A}.importance_cap=2.0", f"{A}.importance_floor=0.5", f"{A}.importance_mode=mask",
        f"{A}.importance_level=sequence",
    ),
    "kl_coef 0.01": ("model.reference={}", f"{A}.kl_coef=0.01"),
    "kl_coef 0.01, kl_target 6": ("model.reference={}", f"{A}.kl_coef=0.01", f"{A}.kl_target=6.0"),
    "kl loss k2 0.01": (*KL_LOSS, f"{A}.kl_loss_type=k2"),
    "kl loss k3 0.01": (*KL_LOSS, f"{A}.kl_loss_type=k3"),
    "overlong buffer 2": (f"{R}.shaping.overlong_buffer_tokens=2",),
    "missing_eos_penalty 0.5": (f"{R}.shaping.missing_eos_penalty=0.5",),
    "rewards normalized": (f"{R}.shaping.normalize=true",),
    "rewards clipped at 0.8": (f"{R}.shaping.clip_max=0.8",),
    "drop_equal_rewards": (f"{R}.drop_equal_rewards=true",),
    "eps_clip_high 0.28": (f"{A}.eps_clip_high=0.28",),
    "eps_clip_c 3": (f"{A}.eps_clip_c=3.0",),
    "value_clip 0.2": (f"{A}.value_clip=0.2",),
    "sequence_mean": (f"{A}.loss_aggregation=sequence_mean",),
    "no entropy bonus": (f"{A}.entropy_coef=0.0",),
    "no whitening": (f"{A}.normalize_advantages=false",),
    "positive_nll_coef 0.1": (f"{A}.positive_nll_coef=0.1", f"{A}.positive_nll_threshold=0.9"),
    "critic-only warm-up": (f"callbacks.critic_only_warmup.num_steps={NUM_PRETRAINING}",),
    "critic pre-trained": ("model.critic.warm_start={before}/checkpoints",),
    "rewards shuffled (must not learn)": (f"{R}.shuffle_rewards=true",),
}  # fmt: skip
BEFORE: dict[str, tuple[str, ...]] = {
    "critic pre-trained": (
        f"trainer.max_steps={NUM_PRETRAINING}",
        f"callbacks.critic_only_warmup.num_steps={NUM_PRETRAINING}",
    ),
}
"""What runs first, in a folder of its own."""


@dataclass(frozen=True)
class Job:
    """One option and one seed."""

    option: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.option}, seed {self.seed}"


class Bench:
    """Runs jobs side by side and keeps their results.

    Args:
        folder: For run folders and results.
        overrides: `key=value`, for every run.
        deadline: `time.monotonic()` at which runs are ended; what is not done is left for the next call.
    """

    def __init__(self, folder: Path, overrides: list[str], deadline: float) -> None:
        self._folder = folder
        self._overrides = overrides
        self._deadline = deadline
        self._lock = Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "results.json"
        self.results: dict[str, dict[str, float]] = (
            json.loads(self._path.read_text()) if self._path.is_file() else {}
        )

    def run(self, job: Job) -> None:
        """Train and keep the result; nothing when it is there already, or there is no time left."""
        if job.key in self.results or time.monotonic() > self._deadline:
            return
        folder = self._folder / f"{list(OPTIONS).index(job.option):02d}-seed-{job.seed}"
        before = self._folder / f"{folder.name}-before"
        steps = [(before, BEFORE[job.option])] if job.option in BEFORE else []
        keys = tuple(key.format(before=before) if "{before}" in key else key for key in OPTIONS[job.option])
        start = time.monotonic()
        for place, overrides in [*steps, (folder, keys)]:
            if not self._fit(place, job.seed, overrides):
                return
        with self._lock:
            self.results[job.key] = {**_summary(folder), "seconds": time.monotonic() - start}
            self._path.write_text(json.dumps(self.results, indent=1) + "\n")
            print(f"{job.key}: {self.results[job.key]['final']:.3f}", flush=True)

    def _fit(self, folder: Path, seed: int, overrides: tuple[str, ...]) -> bool:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        fixed = [
            f"seed_everything={seed}", f"trainer.default_root_dir={folder}", "tracking.mlflow=null",
            "callbacks.curves=null", "callbacks.timeline=null", "callbacks.metrics.samples_per_table=0",
            "data.rollout.reward.num_workers=1", "trainer.enable_progress_bar=false",
        ]  # fmt: skip
        words = [f"--{key}" for key in [*fixed, *self._overrides, *overrides]]
        command = [sys.executable, "-m", "relax_lightning.cli", "fit", "--config", "configs/digits-cpu.yaml"]
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
        left = max(0.0, self._deadline - time.monotonic())
        with (folder / "log.txt").open("w") as log:
            try:
                done = subprocess.run(
                    [*command, *words], cwd=REPOSITORY, env=environment, stdout=log, stderr=log, timeout=left
                )
            except subprocess.TimeoutExpired:
                return False
        if done.returncode:
            print(f"{folder}: exit code {done.returncode}, see log.txt there", flush=True)
        return done.returncode == 0


def _summary(folder: Path) -> dict[str, float]:
    """The mean reward at the end and of all iterations, when it was solved, and what the critic explained at first."""
    lines = [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [line for line in lines if "reward/mean" in line]
    rewards = [point["reward/mean"] for point in points]
    solved = next((n for n, reward in enumerate(rewards, 1) if reward >= SOLVED), -1)
    explained = [point["critic/explained_variance"] for point in points[:LAST]]
    return {
        "final": statistics.mean(rewards[-LAST:]),
        "mean": statistics.mean(rewards),
        "first": rewards[0],
        "reached_at": solved,
        "explained_at_first": statistics.mean(explained),
    }


def table(results: dict[str, dict[str, float]], jobs: list[Job]) -> Iterator[str]:
    """The lines of a Markdown table: one option a line, over its seeds."""
    yield (
        f"| option | reward at the end, each seed | mean over all iterations | iterations to {SOLVED} "
        f"| explained variance, first {LAST} iterations |"
    )
    yield "|---|---|---|---|---|"
    for option in dict.fromkeys(job.option for job in jobs):
        found = [results[job.key] for job in jobs if job.option == option and job.key in results]
        if not found:
            yield f"| {option} | not run | | | |"
            continue
        final = ", ".join(f"{result['final']:.3f}" for result in found)
        mean = statistics.mean(result["mean"] for result in found)
        solved = ", ".join(
            "-" if result["reached_at"] < 0 else f"{result['reached_at']:.0f}" for result in found
        )
        explained = statistics.mean(result["explained_at_first"] for result in found)
        yield f"| {option} | {final} | {mean:.3f} | {solved} | {explained:.2f} |"


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, a thread each")
    parser.add_argument("--seeds", type=int, default=1, help="runs an option")
    parser.add_argument("--only", nargs="*", choices=list(OPTIONS), help="options; all without")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "runs" / "options")
    parser.add_argument("--budget_seconds", type=float, default=float("inf"), help="end what runs then")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="for every run")
    arguments = parser.parse_args()
    jobs = [Job(option, 1234 + n) for n in range(arguments.seeds) for option in arguments.only or OPTIONS]
    deadline = time.monotonic() + arguments.budget_seconds
    bench = Bench(arguments.folder.absolute(), arguments.set, deadline)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(bench.run, jobs))
    print()
    print("\n".join(table(bench.results, jobs)))


if __name__ == "__main__":
    main()
