"""Where the processes of a job meet: on the loopback address, where all of them run on this machine."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from torch.distributed import Store

LOOPBACK = "127.0.0.1"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_ALL_HERE = "LOCAL_WORLD_SIZE", "WORLD_SIZE"


def all_are_here() -> bool:
    """Whether every rank of the job runs on this machine, as far as its launcher says in the environment."""
    if "RANK" not in os.environ:
        return True
    local, whole = (os.environ.get(name) for name in _ALL_HERE)
    return local == whole or _is_loopback(os.environ.get("MASTER_ADDR", ""))


def talk_on_loopback() -> None:
    """Let gloo and NCCL listen on the loopback interface alone; what the user has set stays.

    Otherwise they take the interface of the host's name or the first network, and anyone there could connect. It
    changes the environment, so it comes before torch is imported, or at least before threads are started.
    """
    interface = _loopback_interface()
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        # Without the sign it would be the beginning of a name.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def past_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep programs from asking the environment's proxy, if any, for loopback addresses.

    Args:
        environment: Their other variables.
    """
    if not any(name.lower() in _PROXIES and value for name, value in environment.items()):
        return {}
    known = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = ",".join(dict.fromkeys([*filter(None, known.split(",")), "localhost", LOOPBACK, "::1"]))
    return {"no_proxy": hosts, "NO_PROXY": hosts}


def free_port(host: str) -> int:
    """A port on which nobody listens at an address of this machine."""
    with socket.create_server((host, 0), family=_family(host)) as probe:
        return probe.getsockname()[1]


def store_at(host: str, port: int, *, is_server: bool, timeout: timedelta) -> Store:
    """The store at which processes meet; its server listens on its host's address, torch's own on all of them.

    Args:
        host: Of the process that serves it. Where the name is of no address of this machine, as behind a translation
            of addresses, its server listens on all.
        port: There.
        is_server: Whether this process serves it.
        timeout: How long to wait for it, and for its answers.
    """
    from torch.distributed import TCPStore

    if not is_server:
        return TCPStore(host, port, is_master=False, timeout=timeout)
    try:
        server = socket.create_server((host, port), family=_family(host), backlog=4096)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout)
    listens = server.detach()
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=listens
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def _loopback_interface() -> str | None:
    """The name of the interface of 127.0.0.1 or ::1."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(_is_loopback(address.address) for address in addresses):
            return name
    return None


def is_first_rank() -> bool:
    """Whether this process is the one of its job that writes what one process writes."""
    return os.environ.get("RANK", "0") == "0"
