"""Which errors say to a user what to do, and which are a program's own and keep their traceback."""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("relax_lightning")

_OURS = Path(__file__).resolve().parents[1]


_OF_DISKS = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "make room there",
    errno.EROFS: "give a folder that can be written",
    errno.EACCES: "change its permissions, or give another",
    errno.EPERM: "change its permissions, or give another",
    errno.ELOOP: "its links lead to each other; correct them",
    errno.EIO: "look after its disk",
    errno.ESTALE: "look after its disk",
}
"""What to do about what disks refuse."""


def is_for_user(error: BaseException) -> bool:
    """Whether our own code raised it knowing what to say, or a disk refused a file that is named.

    `RELAX_LIGHTNING_DEBUG=1` shows every traceback.
    """
    if os.environ.get("RELAX_LIGHTNING_DEBUG") == "1":
        return False
    if isinstance(error, OSError):
        return error.errno in _OF_DISKS and error.filename is not None
    if not isinstance(error, ValueError | RuntimeError):
        return False
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else frame.tb_frame.f_code.co_filename
    return Path(file).resolve().is_relative_to(_OURS)


def text_of(error: BaseException) -> str:
    """The message and its notes, where it is for a user; else the traceback."""
    if not is_for_user(error):
        return "".join(traceback.format_exception(error)).rstrip()
    text = str(error)
    if isinstance(error, OSError) and error.errno is not None:
        text = f"{error.filename}: {error.strerror}; {_OF_DISKS[error.errno]}"
    return "\n".join([text, *getattr(error, "__notes__", [])])


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes a file: an error of the disk names it, as Python's own does only when a file is opened."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def never_hiding_an_error(name: str) -> Iterator[None]:
    """Around what `name` does while an error is handled: its own failure, as on a full disk, is a line of warning."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the error that is being handled is the one to see
        text = " ".join(str(error).split())
        log.warning("%s failed too while the error was handled: %s: %s", name, type(error).__name__, text)
