"""Who counts as stopped, and after how long."""

import os
import signal
import subprocess

from relax_lightning.distributed.processes import Place, is_stopped
from relax_lightning.distributed.stopped import MachineWatch

PLACES = {
    "the coordinator": Place(1, "here", "10.0.0.1", ()),
    "rank 0": Place(2, "here", "10.0.0.1", ()),
    "rank 1": Place(2, "there", "10.0.0.2", ()),
}


def test_a_part_is_lost_when_it_is_stopped_at_seven_looks_in_a_row():
    machine = MachineWatch("the coordinator", PLACES)
    assert [machine.lost([2]) for _ in range(6)] == [None] * 6
    assert machine.lost([]) is None
    assert [machine.lost([2]) for _ in range(7)] == [None] * 6 + ["rank 0"]


def test_silence_is_what_the_driver_waited_and_no_long_sleep_of_its_own():
    machine = MachineWatch("the coordinator", PLACES)
    assert not any(machine.is_silent(3600) for _ in range(20))
    assert machine.is_silent(0.1)


def test_a_process_is_stopped_from_the_signal_until_it_goes_on():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert is_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
        os.waitpid(process.pid, os.WCONTINUED)
        assert not is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)
