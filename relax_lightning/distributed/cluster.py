"""The Ray cluster of a job: one of its own on this machine, or one that it joins."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._common.utils import get_default_ray_temp_dir
from ray._private import ray_constants

from relax_lightning.config import ClusterConfig
from relax_lightning.distributed.placement import resources_here
from relax_lightning.distributed.processes import RayProcesses

_KNOCK_SECONDS = 10.0
_OBJECT_STORE_BYTES = 256 * 2**20
"""Of a cluster of our own. Samples travel past Ray's object store, which holds a few small answers."""
_SOCKET = "/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
_MAX_SOCKET_BYTES = 107
"""Of the path of a Unix socket on Linux."""


def ray_folder() -> str:
    """Where a Ray that is started here keeps its sockets and logs."""
    return get_default_ray_temp_dir()


@contextmanager
def cluster_of(cluster: ClusterConfig) -> Iterator[tuple[str, RayProcesses]]:
    """Start Ray here, or join it; gives the job's id, and what was started. Leaving ends that.

    Raises:
        ValueError: Nothing answers at the address, or Ray's folder cannot be used.
        RuntimeError: Ray's processes did not come up.
    """
    job_id = uuid.uuid4().hex[:8]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settings: dict[str, Any] = {
        "address": cluster.address or "local",
        "namespace": f"relax-lightning-{job_id}",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if cluster.address is None:
        others = set(psutil.Process().children(recursive=True))
        _start(settings)
        started = [p for p in psutil.Process().children(recursive=True) if p not in others]
        processes = RayProcesses(ray_folder(), started)
    else:
        _join(cluster.address, settings)
        processes = RayProcesses()
    try:
        yield job_id, processes
    finally:
        ray.shutdown()
        processes.end_rest()


def _start(settings: dict[str, Any]) -> None:
    _check_folder()
    # Ray would end ranks when the machine's memory is nearly full, whoever fills it; pinned arenas are made to.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    # Of this job alone: Ray would keep one in the home directory, which may not be writable.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())
    here = resources_here()
    settings |= {"num_cpus": int(here["CPU"]), "num_gpus": int(here["GPU"])}
    settings |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        with _listening_here():
            ray.init(**settings)
    except Exception as error:
        # Ray raises bare exceptions when its own processes do not come up, and lets the machine's load decide.
        raise RuntimeError(
            f"cluster: Ray did not start: {_reason(error)}; start again, or look into {ray_folder()}"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _check_folder() -> None:
    folder = ray_folder()
    too_long = len(os.fsencode(folder + _SOCKET)) - _MAX_SOCKET_BYTES
    if too_long > 0:
        most = len(os.fsencode(folder)) - len("/ray") - too_long
        raise ValueError(
            f"cluster: wanted a TMPDIR of at most {most} bytes, with which Ray's sockets begin, got {folder[:-4]}; "
            "set RAY_TMPDIR to a shorter folder, which is Ray's alone"
        )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cluster: Ray's folder {folder} cannot be made: {error}; set RAY_TMPDIR") from error


@contextmanager
def _listening_here() -> Iterator[None]:
    """Let the Ray that is started meanwhile, and all its processes, listen on the loopback address alone.

    Ray replaces that address by the machine's in whatever asks for it, but where it knows of no clusters.
    """
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _join(address: str, settings: dict[str, Any]) -> None:
    try:
        _knock(address)
        ray.init(**settings)
    except OSError as error:
        raise ValueError(f"cluster.address: {_why_not_joined(address, error)}") from error
    except Exception as error:
        raise RuntimeError(f"cluster.address: {_reason(error)}") from error


def _why_not_joined(address: str, error: OSError) -> str:
    # Ray puts the traceback of its last try into the text of the cause.
    if "AuthenticationError" in str(error.__cause__):
        change = "set RAY_AUTH_MODE=token, and give this machine the token of the cluster's ~/.ray/auth_token"
        return f"the Ray cluster at {address} wanted its token, got none or another; {change}"
    change = "start one with `ray start --head`, or leave cluster.address out"
    return f"no Ray cluster answers at {address}: {error}; {change}"


def _knock(address: str) -> None:
    """See whether anyone listens at `host:port` or `ray://host:port`: Ray itself would try for minutes.

    Raises:
        OSError: Nobody does.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
