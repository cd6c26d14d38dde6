"""What a job asks of Ray, whether the cluster has it, and the one placement group that the roles share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from relax_lightning.config import ClusterConfig
from relax_lightning.distributed.processes import RayProcesses
from relax_lightning.plan.machine import count_gpus

_SECONDS = 60.0


@dataclass(frozen=True)
class Demand:
    """One rank per GPU, or per CPU core; actor, critic and rollout take turns on them."""

    num_ranks: int
    resource: str
    """Ray's name of what a rank takes one of: `GPU` or `CPU`."""

    @classmethod
    def of(cls, cluster: ClusterConfig, gpus_there: float) -> Demand:
        """What the configuration asks for; `accelerator: auto` takes GPUs where there are any."""
        replicas, per_replica = cluster.resources["actor"]
        on_gpu = cluster.accelerator == "gpu" or (cluster.accelerator == "auto" and gpus_there > 0)
        return cls(replicas * per_replica, "GPU" if on_gpu else "CPU")

    @property
    def on_gpu(self) -> bool:
        """Whether ranks run on GPUs."""
        return self.resource == "GPU"

    def check(self, available: Mapping[str, float], present: Mapping[str, float], where: str) -> None:
        """Refuse what cannot be placed now.

        Args:
            available: What is free, by resource.
            present: What there is in all, by resource.
            where: The cluster's name in the message.

        Raises:
            ValueError: With a table of wanted and available.
        """
        free = available.get(self.resource, 0)
        if free >= self.num_ranks:
            return
        rows = [("resource", "wanted", "available", "in all")]
        for name in ("GPU", "CPU"):
            wanted = self.num_ranks if name == self.resource else 0
            rows.append((name, f"{wanted}", f"{available.get(name, 0):g}", f"{present.get(name, 0):g}"))
        table = "\n".join("  " + "".join(f"{cell:<12}" for cell in row).rstrip() for row in rows)
        change = "lower it, wait until other jobs have ended, or add machines"
        message = (
            f"wanted {self.num_ranks} {self.resource}s for its ranks, {where} has {free:g} free; {change}"
        )
        raise ValueError(f"cluster.resources: {message}\n{table}")


def resources_here() -> dict[str, float]:
    """What a Ray cluster that is started on this machine will have."""
    return {"CPU": len(os.sched_getaffinity(0)), "GPU": count_gpus()}


class SharedGroup:
    """The placement group: a bundle a rank, as few machines as possible. Leaving the context gives it back.

    Args:
        demand: What is placed.
        processes: Ray's own, where they are this process's.
    """

    def __init__(self, demand: Demand, processes: RayProcesses) -> None:
        self._demand = demand
        self.processes = processes
        self._group: Any = None

    def __enter__(self) -> SharedGroup:
        """Wait until it is placed, which takes a moment.

        Raises:
            RuntimeError: Others were quicker.
        """
        bundles = [{self._demand.resource: 1.0}] * self._demand.num_ranks
        self._group = placement_group(bundles, strategy="PACK")
        if not self._group.wait(timeout_seconds=_SECONDS):
            remove_placement_group(self._group)
            free = ray.available_resources().get(self._demand.resource, 0)
            raise RuntimeError(
                f"cluster.resources: {self._demand.num_ranks} {self._demand.resource}s were not placed within "
                f"{_SECONDS:g} s, {free:g} are free now; another job may have taken them: start again later"
            )
        return self

    def __exit__(self, *exception: object) -> None:
        # Of a dead Ray it would ask for a minute, after which Ray ends this process.
        if self.processes.lost() is None:
            remove_placement_group(self._group)

    def options(self, bundle: int) -> dict[str, Any]:
        """Actor options that place a rank into a bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        amount = {"num_gpus": 1, "num_cpus": 0} if self._demand.on_gpu else {"num_cpus": 1}
        return {"scheduling_strategy": strategy, **amount}
