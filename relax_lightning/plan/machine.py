"""What this machine has, as far as it can be seen without torch, and what a configuration wants of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.tree import Config


def count_gpus() -> int:
    """NVIDIA GPUs that a process started here would see, by the driver's device files and CUDA_VISIBLE_DEVICES."""
    present = device_files()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    names = [name for name in visible.split(",") if name.strip()]
    return min(present, len(names) if "-1" not in names else names.index("-1"))


def device_files() -> int:
    """NVIDIA GPUs that the driver shows in /dev."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def machine_problems(config: Config) -> Iterator[Problem]:
    """A resolved configuration that needs more GPUs than this machine has, where it runs on this machine alone."""
    cluster, present = config.cluster, count_gpus()
    if cluster is not None and cluster.address is None and cluster.accelerator != "cpu":
        wanted = max((replicas * gpus for replicas, gpus in cluster.resources.values()), default=0)
        if wanted > present:
            change = (
                "run it on a machine that has them, give cluster.address, or set cluster.accelerator: cpu"
            )
            message = fault(f"at most {present} GPUs, all that this machine has", wanted, change)
            yield Problem("cluster.resources", message)
