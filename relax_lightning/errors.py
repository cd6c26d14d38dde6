"""Which errors say to a user what to do, and which are a program's own and keep their traceback."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("relax_lightning")

_OURS = Path(__file__).resolve().parent


def is_for_user(error: BaseException) -> bool:
    """Whether our own code raised it knowing what to say. `RELAX_LIGHTNING_DEBUG=1` shows every traceback."""
    if os.environ.get("RELAX_LIGHTNING_DEBUG") == "1" or not isinstance(error, ValueError | RuntimeError):
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else frame.tb_frame.f_code.co_filename
    return Path(file).resolve().is_relative_to(_OURS)


def text_of(error: BaseException) -> str:
    """The message and its notes, where it is for a user; else the traceback."""
    if is_for_user(error):
        return "\n".join([str(error), *getattr(error, "__notes__", [])])
    return "".join(traceback.format_exception(error)).rstrip()


@contextmanager
def never_hiding_an_error(name: str) -> Iterator[None]:
    """Around what `name` does while an error is handled: its own failure, as on a full disk, is a line of warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the error that is being handled is the one to see
        text = " ".join(str(error).split())
        log.warning("%s failed too while the error was handled: %s: %s", name, type(error).__name__, text)
