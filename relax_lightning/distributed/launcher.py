"""The driver of a job on Ray: it starts or joins a cluster, and starts the job again when a part of it is lost."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from relax_lightning.config import ClusterConfig, Config
from relax_lightning.config.files import resumed_folder
from relax_lightning.config.manifest import read_manifest
from relax_lightning.distributed.interruptions import Aborted, Interruptions
from relax_lightning.distributed.job import Job, Task
from relax_lightning.distributed.placement import Demand, SharedGroup, resources_here
from relax_lightning.distributed.screen import Screen, without_rays_own_words
from relax_lightning.distributed.watch import LostPartError, RankError
from relax_lightning.interrupted import INTERRUPTED

_KNOCK_SECONDS = 10.0
_OBJECT_STORE_BYTES = 256 * 2**20
"""Of a cluster of our own. Samples travel past Ray's object store, which holds a few small answers."""


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
            with _cluster(config.cluster) as job_id:
                interruptions.arm()
                return _run(task, demand or _demand_there(config.cluster), job_id, interruptions)
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


@contextmanager
def _cluster(cluster: ClusterConfig) -> Iterator[str]:
    """Start Ray here, or join it; gives the job's id. Leaving ends what was started."""
    job_id = uuid.uuid4().hex[:8]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would end ranks when the machine's memory is nearly full, whoever fills it; pinned arenas are made to.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    settings: dict[str, Any] = {
        "address": cluster.address or "local",
        "namespace": f"relax-lightning-{job_id}",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if cluster.address is None:
        here = resources_here()
        settings |= {"num_cpus": int(here["CPU"]), "num_gpus": int(here["GPU"])}
        settings |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        _knock(cluster.address)
        ray.init(**settings)
    except OSError as error:
        raise ValueError(f"cluster.address: {_why_not_joined(cluster.address, error)}") from error
    except Exception as error:
        # Ray raises bare exceptions when its own processes do not come up, and lets the machine's load decide.
        raise RuntimeError(
            f"cluster: Ray did not start: {error}; start again, or look into /tmp/ray"
        ) from error
    try:
        yield job_id
    finally:
        ray.shutdown()


def _why_not_joined(address: str | None, error: OSError) -> str:
    # Ray puts the traceback of its last try into the text of the cause.
    if "AuthenticationError" in str(error.__cause__):
        change = "set RAY_AUTH_MODE=token, and give this machine the token of the cluster's ~/.ray/auth_token"
        return f"the Ray cluster at {address} wanted its token, got none or another; {change}"
    change = "start one with `ray start --head`, or leave cluster.address out"
    return f"no Ray cluster answers at {address}: {error}; {change}"


def _knock(address: str | None) -> None:
    """See whether anyone listens at `host:port` or `ray://host:port`: Ray itself would try for minutes.

    Raises:
        OSError: Nobody does.
    """
    host, colon, port = (address or "").rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


def _run(task: Task, demand: Demand, job_id: str, interruptions: Interruptions) -> int:
    """All attempts; tells the errors."""
    config = task.config
    assert config.cluster is not None
    max_restarts = _max_restarts(config.cluster, task.command)
    before = _newest(config)
    with SharedGroup(demand) as group:
        for restart in range(max_restarts + 1):
            result = _attempt(task, Job(f"{job_id}-{restart}", group, demand.num_ranks), interruptions)
            if isinstance(result, int):
                return result
            print(f"relax-lightning: {result}", file=sys.stderr)
            newest = _newest(config)
            if newest is not None and newest != before:
                task = replace(task, ckpt_path=newest[0])
            where = (
                "there is no checkpoint"
                if task.ckpt_path is None
                else f"the last checkpoint is {task.ckpt_path}"
            )
            print(f"The job ended; {where}", file=sys.stderr)
            if isinstance(result, RankError) or interruptions.received is not None:
                break
            if restart < max_restarts:
                print(f"Restart {restart + 1} of {max_restarts}", file=sys.stderr)
    return 1


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
