"""The driver of a job on Ray: it starts or joins a cluster, and starts the job again when a part of it is lost."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from relax_lightning.checkpoints.manifest import read_manifest
from relax_lightning.checkpoints.resuming import resumed_folder
from relax_lightning.config import ClusterConfig, Config
from relax_lightning.distributed.cluster import cluster_of
from relax_lightning.distributed.interruptions import Aborted, Interruptions
from relax_lightning.distributed.job import Job, Task
from relax_lightning.distributed.placement import Demand, SharedGroup, resources_here
from relax_lightning.distributed.processes import LostRayError, RayProcesses
from relax_lightning.distributed.screen import Screen, without_rays_own_words
from relax_lightning.distributed.watch import LostPartError, RankError
from relax_lightning.run.interrupted import INTERRUPTED


def launch(entry: str, command: str, config: Config, ckpt_path: str | None) -> int:
    """Run `fit` or `validate` on Ray as the configuration's cluster says.

    Args:
        entry: Import path of the function that a rank calls with command, config, ckpt_path, and what it is given of
            the cluster: store, advantages and progress.
        command: `fit` or `validate`.
        config: Resolved and checked, with a cluster.
        ckpt_path: The iteration's folder to resume from, or None.

    Returns:
        The exit status, as in one process.

    Raises:
        ValueError: The cluster lacks what is wanted; with a table.
    """
    assert config.cluster is not None
    task = Task(entry, command, config, ckpt_path)
    interruptions = Interruptions()
    try:
        with interruptions, without_rays_own_words():
            demand = None
            if config.cluster.address is None:
                here = resources_here()
                demand = Demand.of(config.cluster, here["GPU"])
                demand.check(here, here, "this machine")
            with cluster_of(config.cluster) as (job_id, processes):
                interruptions.arm()
                return _run(task, demand or _demand_there(config.cluster), job_id, processes, interruptions)
    except BaseException as error:
        aborted = _signal_behind(error, interruptions)
        if aborted is None:
            raise
        if aborted.is_second:
            # As one process ends: by the signal itself.
            signal.signal(aborted.number, signal.SIG_DFL)
            os.kill(os.getpid(), aborted.number)
        print(f"relax-lightning: {INTERRUPTED}", file=sys.stderr)
        return 128 + aborted.number


def _signal_behind(error: BaseException, interruptions: Interruptions) -> Aborted | None:
    """The signal that ended the job, whatever Ray made of it; None where none did."""
    if isinstance(error, SystemExit):
        # `ray.init` takes SIGTERM, and exits with statuses of its own.
        return Aborted(signal.SIGTERM, is_second=False)
    return error if isinstance(error, Aborted) else interruptions.aborted


def _demand_there(cluster: ClusterConfig) -> Demand:
    present = ray.cluster_resources()
    demand = Demand.of(cluster, present.get("GPU", 0))
    demand.check(ray.available_resources(), present, f"the cluster at {cluster.address}")
    return demand


def _run(
    task: Task, demand: Demand, job_id: str, processes: RayProcesses, interruptions: Interruptions
) -> int:
    """All attempts; tells the errors."""
    config = task.config
    assert config.cluster is not None
    max_restarts = _max_restarts(config.cluster, task.command)
    before = _newest(config)
    try:
        with SharedGroup(demand, processes) as group:
            for restart in range(max_restarts + 1):
                job = Job(f"{job_id}-{restart}", group, demand.num_ranks)
                result = _attempt(task, job, interruptions)
                if isinstance(result, int):
                    return result
                task = _tell(result, task, before)
                if isinstance(result, RankError) or interruptions.received is not None:
                    break
                if restart < max_restarts:
                    print(f"Restart {restart + 1} of {max_restarts}", file=sys.stderr)
    except LostRayError as error:
        _tell(error, task, before)
    return 1


def _tell(error: RuntimeError, task: Task, before: tuple[str, Any] | None) -> Task:
    """Say what ended an attempt, and where the next one would begin, with the task of that one."""
    print(f"relax-lightning: {error}", file=sys.stderr)
    newest = _newest(task.config)
    if newest is not None and newest != before:
        task = replace(task, ckpt_path=newest[0])
    found = task.ckpt_path
    where = "there is no checkpoint" if found is None else f"the last checkpoint is {found}"
    print(f"The job ended; {where}", file=sys.stderr)
    return task


def _max_restarts(cluster: ClusterConfig, command: str) -> int:
    """Only training has checkpoints to go on from."""
    return cluster.max_restarts if command == "fit" else 0


def _attempt(task: Task, job: Job, interruptions: Interruptions) -> int | LostPartError | RankError:
    """One attempt: its status, or what ended it."""
    screen = Screen(is_enabled=task.config.trainer.enable_progress_bar)
    try:
        with job:
            try:
                return job.run(task, screen, interruptions)
            except (LostPartError, RankError) as error:
                return error
    finally:
        screen.close()


def _newest(config: Config) -> tuple[str, Any] | None:
    """The newest checkpoint of the save root, and the mark of the save that made it; None without."""
    folder = resumed_folder(config, "auto")
    return None if folder is None else (str(folder), (read_manifest(Path(folder)) or {}).get("pair"))
