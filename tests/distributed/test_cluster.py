"""What is refused before Ray is started, and where ranks meet; no Ray runs."""

import os

import pytest

from relax_lightning.config import ClusterConfig

pytest.importorskip("ray")

from relax_lightning.distributed.cluster import cluster_of
from relax_lightning.distributed.environment import RankPlace, meeting_address, rank_environments
from relax_lightning.distributed.processes import Place


def entered(cluster):
    """The error of starting a cluster, as its text."""
    with pytest.raises(ValueError, match="cluster: ") as caught, cluster_of(cluster):
        pass
    return str(caught.value)


def test_a_folder_too_long_for_sockets_is_refused(monkeypatch, tmp_path):
    # 107 bytes less those of /ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store, which are 68.
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    long = "/" + "x" * 60
    monkeypatch.setenv("TMPDIR", long)
    message = entered(ClusterConfig())
    assert f"wanted a TMPDIR of at most 39 bytes, with which Ray's sockets begin, got {long}; " in message
    assert "set RAY_TMPDIR" in message and "\n" not in message
    monkeypatch.setenv("TMPDIR", "/" + "é" * 20)
    assert "wanted a TMPDIR of at most 39 bytes" in entered(ClusterConfig())


def test_a_folder_that_cannot_be_made_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_TMPDIR", "file")
    message = entered(ClusterConfig())
    assert message.startswith("cluster: Ray's folder file/ray cannot be made: ")
    assert "RAY_TMPDIR" in message and "\n" not in message


def test_ranks_of_one_machine_meet_on_its_loopback_address(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TQ_NUM_THREADS", "3")
    one, two = (RankPlace(Place(1, node, f"10.0.0.{node}", ()), None, 8) for node in ("1", "2"))
    assert meeting_address([one, one]) == "127.0.0.1"
    assert meeting_address([one, two]) == "10.0.0.1"
    variables = rank_environments([one, one], "127.0.0.1", 7)[1]
    assert (variables["LOCAL_WORLD_SIZE"], variables["WORLD_SIZE"]) == ("2", "2")
    assert (variables["OMP_NUM_THREADS"], variables["TQ_NUM_THREADS"]) == ("4", "3")
    assert os.environ["TQ_NUM_THREADS"] == "3"
