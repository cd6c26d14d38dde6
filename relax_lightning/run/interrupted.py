"""Ctrl-C before training takes it over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "interrupted"
"""What is said of it."""


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Ctrl-C during imports: an exception may crash the C++ that it meets there, and nothing is to be undone yet."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    # A handler may interrupt a print, and a print inside a print raises.
    os.write(2, f"relax-lightning: {INTERRUPTED}\n".encode())
    os._exit(128 + number)
