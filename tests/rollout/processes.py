"""Whether processes are gone."""

from __future__ import annotations

import psutil


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs([p for p in processes if p.is_running()], timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
