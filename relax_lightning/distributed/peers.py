"""The processes that train one job together, and how they tell each other things on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

DEADLINE = timedelta(hours=1)
"""How long a process waits for the others: longer than an engine may take for a round of generation."""


class PeerError(RuntimeError):
    """Another process of the job could not do its part."""


class BrokenExchange(PeerError):
    """An error in the midst of an exchange with some processes, which cannot be told to all: this process ends."""


@dataclass(frozen=True)
class Peers:
    """This process among those of its job; alone, every exchange is the identity.

    Every method but the properties is called by all processes, in the same order.
    """

    rank: int = 0
    size: int = 1
    group: Any = None
    """A group of all of them that takes tensors of the host; None: the default group does."""

    @classmethod
    def join(cls) -> Peers:
        """The processes of the default group, which has been initialized.

        NCCL knows no tensors of the host, so beside it gloo is set up.
        """
        group = dist.new_group(backend="gloo", timeout=DEADLINE) if dist.get_backend() == "nccl" else None
        return cls(dist.get_rank(), dist.get_world_size(), group)

    @property
    def is_first(self) -> bool:
        """Whether this process writes what one process writes."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Everyone's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def collect(self, action: Callable[[], T]) -> list[T]:
        """Everyone does their part and learns all answers, by rank.

        Raises:
            PeerError: Another process failed; its own error is raised there.
            BrokenExchange: `action` raised it; the others notice that this process ends.
        """
        if self.size == 1:
            return [action()]
        answer: T | None = None
        error: Exception | None = None
        try:
            answer = action()
        except BrokenExchange:
            raise
        except Exception as raised:  # noqa: BLE001 the others must learn of it, whatever it is
            error = raised
        text = None if error is None else f"{type(error).__name__}: {error}"
        answers = self.gather((answer, text))
        if error is not None:
            raise error
        for rank, (_, failure) in enumerate(answers):
            if failure is not None:
                raise PeerError(f"rank {rank} failed: {failure}")
        return [answer for answer, _ in answers]  # pyright: ignore[reportReturnType]

    def on_first(self, action: Callable[[], T]) -> T:
        """The first process does it, and all learn its answer.

        Raises:
            PeerError: It failed; its own error is raised there.
        """
        return self.collect(lambda: action() if self.is_first else None)[0]  # pyright: ignore[reportReturnType]

    def merge(self, part: Tensor) -> Tensor:
        """The sum of everyone's tensor, in place; exact where each element is zero on all processes but one."""
        if self.size > 1:
            dist.all_reduce(part, group=self.group)
        return part

    def largest(self, number: int) -> int:
        """The largest of everyone's numbers."""
        if self.size == 1:
            return number
        tensor = torch.tensor(number)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return int(tensor)


ALONE = Peers()
