"""Where processes meet: nobody listens on more than the loopback address where all of them are on this machine."""

import os
import socket
from datetime import timedelta

import psutil
import pytest

from relax_lightning.run.rendezvous import all_are_here, free_port, past_proxy, store_at, talk_on_loopback

HALF_A_MINUTE = timedelta(seconds=30)


def listening():
    """The addresses at which this process listens."""
    return {c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_store_listens_on_its_host_alone(host):
    before = listening()
    port = free_port(host)
    server = store_at(host, port, is_server=True, timeout=HALF_A_MINUTE)
    client = store_at(host, port, is_server=False, timeout=HALF_A_MINUTE)
    client.set("asked", "heard")
    assert server.get("asked") == b"heard"
    assert listening() - before <= {"127.0.0.1", "::1"}
    with pytest.raises(OSError, match="in use"):
        store_at(host, port, is_server=True, timeout=HALF_A_MINUTE)


def test_groups_of_one_process_listen_on_the_loopback_address(process_group):
    assert os.environ["GLOO_SOCKET_IFNAME"] in psutil.net_if_addrs()
    assert listening() <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("variables", "here"),
    [
        ({}, True),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node1"}, True),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node1"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "::1"}, True),
    ],
)
def test_whether_all_ranks_are_on_this_machine(monkeypatch, variables, here):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert all_are_here() is here


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    talk_on_loopback()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth9"
    interface = os.environ["NCCL_SOCKET_IFNAME"].removeprefix("=")
    addresses = {a.address for a in psutil.net_if_addrs()[interface] if a.family == socket.AF_INET}
    assert addresses == {"127.0.0.1"}


def test_no_proxy_is_asked_for_a_loopback_address():
    assert past_proxy({"PATH": "/bin", "http_proxy": ""}) == {}
    wanted = "10.0.0.1,localhost,127.0.0.1,::1"
    spared = past_proxy({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1,localhost"})
    assert spared == {"no_proxy": wanted, "NO_PROXY": wanted}
