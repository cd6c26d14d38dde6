"""Who is on the GPU: before each phase what it does not use makes room, and what it uses comes back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from relax_lightning.strategies.residency import PHASES, Holding, Need, leaving, occupied, uses


class Resident(Protocol):
    """An owner of GPU memory that can give it up part by part."""

    def sizes(self) -> Mapping[str, int]:
        """Bytes of each part, wherever it is now."""
        ...

    def offload(self, tag: str) -> None:
        """Give up the memory of a part; its contents are kept wherever they matter."""
        ...

    def onload(self, tag: str, *, stays: bool = False) -> None:
        """Take it back; `stays`: for good, so what kept its contents meanwhile can go."""
        ...


@dataclass
class GpuPool:
    """The residents of one GPU and where their parts are.

    Args:
        mode: `auto`, `always` or `never`: `strategy.offload`.
        budget: Bytes of the GPU that are ours to fill; None: without bound.
        working: Bytes that each phase needs besides the residents.
        together: Has an action done on all ranks, gives all answers, and raises on all where it raises on one. An
            engine's memory may lie on the GPUs of several: what leaves one must leave all, and have left before
            anything comes back.
    """

    mode: str = "never"
    budget: int | None = None
    working: Mapping[str, int] = field(default_factory=dict)
    together: Callable[[Callable[[], Any]], list[Any]] = lambda action: [action()]
    _residents: dict[str, Resident] = field(default_factory=dict)
    _away: set[tuple[str, str]] = field(default_factory=set)
    _leaving: set[tuple[str, str]] = field(default_factory=set)
    _holdings: list[Holding] = field(default_factory=list)
    _plan: dict[str, list[Holding]] | None = None

    def register(self, owner: str, resident: Resident) -> None:
        """Add an owner whose parts are all on the GPU now; on all ranks."""
        self._residents[owner] = resident
        self._plan = None

    @property
    def plan(self) -> dict[str, list[Holding]]:
        """What leaves for each phase, by the sizes that the residents really have, where they are largest."""
        if self._plan is None:
            largest: dict[tuple[str, str], int] = {}
            for sizes in self.together(self._sizes):
                largest |= {part: max(size, largest.get(part, 0)) for part, size in sizes.items()}
            self._holdings = [Holding(owner, tag, size) for (owner, tag), size in largest.items()]
            needs = {phase: self._need(phase) for phase in PHASES}
            self._plan = leaving(self._holdings, needs, budget=self.budget, mode=self.mode)
        return self._plan

    def _sizes(self) -> dict[tuple[str, str], int]:
        return {
            (owner, tag): size
            for owner, resident in self._residents.items()
            for tag, size in resident.sizes().items()
        }

    def _need(self, phase: str) -> Need:
        return Need(self._uses(phase), self.working.get(phase, 0))

    @property
    def engine_keeps_weights(self) -> bool:
        """Whether an engine's own weights stay on the GPU in every phase: an unchanged actor need not publish then."""
        return not any(h.tag == "engine_weights" for left in self.plan.values() for h in left)

    def clear(self, room_for: int | None = None) -> None:
        """Let everything leave, so that what is about to be made finds the GPU empty; nothing with `never`.

        Args:
            room_for: Bytes that it takes: where they fit beside what is there, nothing leaves with `auto`. None: all.
        """
        if self.mode == "never":
            return

        def action() -> None:
            sizes = self._sizes()
            fits = room_for is not None and sum(sizes.values()) + room_for <= (self.budget or math.inf)
            if self.mode == "always" or not fits:
                self._send_away(set(sizes) - self._away)

        self.together(action)

    @contextmanager
    def vacated(self) -> Iterator[None]:
        """The roles leave while an engine starts anew, which takes its memory from what it finds free.

        What was there is back afterwards; with `never`, what torch keeps for later goes, and nothing else.
        """
        roles = {part for part in self._sizes() if part[0] != "engine"}
        going = set() if self.mode == "never" else roles - self._away
        self._send_away(going)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            yield
        finally:
            for owner, tag in sorted(going):
                self._bring(owner, tag)

    @contextmanager
    def borrowed(self, owner: str, tag: str) -> Iterator[None]:
        """Have a part on the GPU besides what the phase uses; afterwards it is where it was."""
        is_away = (owner, tag) in self._away | self._leaving
        if is_away:
            self._bring(owner, tag)
        try:
            yield
        finally:
            if is_away:
                self._send_away({(owner, tag)})

    def enter(self, phase: str) -> None:
        """Make the GPU ready for a phase: first what must go leaves, then what it uses and is away returns."""
        going = {(h.owner, h.tag) for h in self.plan[phase]}
        self.together(lambda: self._clear_for(phase, going))
        self.together(lambda: self._fetch(phase))

    def _clear_for(self, phase: str, going: set[tuple[str, str]]) -> None:
        self._send_away(going - self._away)
        # In a phase of its own torch takes from what it keeps.
        if "engine" in self._residents and phase in ("rollout", "publish") and not self._fits(phase):
            torch.cuda.empty_cache()

    def _fetch(self, phase: str) -> None:
        for owner, tag in sorted(self._uses(phase) & (self._away | self._leaving)):
            self._bring(owner, tag)

    def _bring(self, owner: str, tag: str) -> None:
        self._residents[owner].onload(tag, stays=self._never_leaves(owner, tag))
        self._away.discard((owner, tag))
        self._leaving.discard((owner, tag))

    def _never_leaves(self, owner: str, tag: str) -> bool:
        """Whether no phase sends the part away, as far as that is known: it left for an engine's start alone."""
        if self._plan is None:
            return False
        return not any((h.owner, h.tag) == (owner, tag) for left in self._plan.values() for h in left)

    def _fits(self, phase: str) -> bool:
        """Whether the phase has room beside what this process's allocator keeps for itself."""
        if self.budget is None or not torch.cuda.is_available():
            return True
        left = self.plan[phase]
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return occupied(self._holdings, self._need(phase), left) + kept <= self.budget

    def _send_away(self, going: set[tuple[str, str]]) -> None:
        for owner, tag in sorted(going):
            # Where this breaks off it may have left or not: it is sent away again, and fetched when it is used.
            self._leaving.add((owner, tag))
            self._residents[owner].offload(tag)
            self._away.add((owner, tag))
            self._leaving.discard((owner, tag))
        if going and torch.cuda.is_available():
            # Another process takes the room that this one's allocator would keep.
            torch.cuda.empty_cache()

    def _uses(self, phase: str) -> frozenset[tuple[str, str]]:
        return uses(phase, engine_has_weights="engine" in self._residents)
