"""The worker process of a reward: `python -m relax_lightning.rewards.worker FD`, started by `WorkerProcess`.

It speaks over the connection FD alone, so whatever a reward prints cannot be taken for an answer.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from numbers import Real
from pathlib import Path
from typing import Any

from relax_lightning.rewards.records import RewardOutcome, RewardRequest
from relax_lightning.rewards.registry import Reward, load_answer, load_reward, whole_response

_GRACE_SECONDS = 10.0
_LONGEST_MESSAGE = 500
_LARGEST = 3.4028234663852886e38
"""Of the float32 numbers that rewards are learned from as."""


def main() -> None:
    """Load the reward, say whether that worked, then score what comes until the parent hangs up."""
    _end_with_parent()
    _go_first_without_memory()
    connection = Connection(int(sys.argv[1]))
    name, class_path, init_args, timeout_seconds = connection.recv()
    try:
        reward = load_reward(name, class_path, init_args)
        answer = load_answer(name, reward)
    except ValueError as error:
        connection.send(str(error))
        return
    connection.send(None)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        # The parent ends a hung reward; this is for a reward that hangs in C code after the parent was killed.
        signal.setitimer(signal.ITIMER_REAL, timeout_seconds + _GRACE_SECONDS)
        outcome = score(reward, request, answer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send(outcome)


def score(
    reward: Reward, request: RewardRequest, answer: Callable[[str], str | None] = whole_response
) -> RewardOutcome:
    """Call the reward; whatever it raises or wrongly returns becomes the outcome's error."""
    try:
        value: Any = reward(request.prompt, request.response, request.label, request.metadata)
        if hasattr(value, "item"):  # of numpy or torch
            value = value.item()
        if not isinstance(value, Real) or not math.isfinite(value):
            shown = repr(value) if isinstance(value, Real) else f"{type(value).__name__} {value!r:.80}"
            return RewardOutcome(request.sample_id, 0.0, f"returned {shown}, a finite number was wanted")
        if abs(float(value)) > _LARGEST:
            error = f"returned {value}, a number of single precision was wanted"
            return RewardOutcome(request.sample_id, 0.0, error)
        found = answer(request.response) if request.wants_answer else None
        return RewardOutcome(request.sample_id, float(value), answer=None if found is None else str(found))
    except (Exception, SystemExit) as error:  # noqa: BLE001 a user's reward can fail in any way
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        message = f"raised {type(error).__name__}: {_said(error)} ({place})"
        return RewardOutcome(request.sample_id, 0.0, message)


def _said(error: BaseException) -> str:
    """The start of the message, which a user's exception may fail to give."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 __str__ is the user's too
        return f"(its message cannot be shown: {type(second).__name__})"
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..."


def _go_first_without_memory() -> None:
    """A reward that takes all memory is ended by the kernel before the training is; its sample is named."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with_parent() -> None:
    """Die, children included, once the other end of stdin is closed, which happens however the parent ends."""
    parent = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def watch() -> None:
        os.read(parent, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
