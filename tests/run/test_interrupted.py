"""Ctrl-C among imports, in a process of its own."""

import signal
import subprocess
import sys

from relax_lightning.run.interrupted import leaving_at_once

CODE = """
import os, signal
from relax_lightning.run.interrupted import leaving_at_once
with leaving_at_once():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print("an exception that C++ would have met")
"""


def test_it_is_one_line_and_no_exception():
    """torch's C++ met one, which ended in a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "relax-lightning: interrupted\n")


def test_who_ignores_it_or_has_a_handler_keeps_that():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with leaving_at_once():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with leaving_at_once():
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, previous)
