"""Which memory leaves the GPU for each phase of an iteration. Pure arithmetic; imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEAVING_ORDER = ("gradients", "optimizer", "weights", "kv_cache", "engine_weights")
"""Tags from the cheapest to move to the dearest: gradients are zero between steps and need no copy, optimizer state is
needed once a phase, and the engine's parts cost it a pause."""


@dataclass(frozen=True)
class Holding:
    """Some memory on the GPU that one owner can give up and take back as a whole."""

    owner: str
    """`actor`, `critic` or `engine`."""
    tag: str
    """One of `LEAVING_ORDER`."""
    size: int
    """Bytes a GPU."""


@dataclass(frozen=True)
class Need:
    """What one phase uses."""

    holdings: frozenset[tuple[str, str]]
    """(owner, tag) of everything that must be on the GPU."""
    working: int = 0
    """Bytes a GPU that live only within the phase: activations, logits, buckets."""


PHASES = ("rollout", "reference", "critic", "actor", "publish")
"""The phases of an iteration, in order; `reference` is there only where a KL term needs it."""


def uses(phase: str, *, engine_has_weights: bool) -> frozenset[tuple[str, str]]:
    """(owner, tag) of all that a phase touches.

    Args:
        phase: One of `PHASES`.
        engine_has_weights: Whether the engine holds weights of its own, as SGLang does, or generates on the actor's.
    """
    trained = ("weights", "gradients", "optimizer")
    engine = {("engine", "engine_weights"), ("engine", "kv_cache")}
    if phase in ("critic", "actor"):
        return frozenset((phase, tag) for tag in trained)
    if phase == "reference":
        return frozenset({("actor", "weights")})
    if phase == "publish":
        return frozenset({("actor", "weights"), ("engine", "engine_weights")})
    return frozenset(engine) if engine_has_weights else frozenset({("actor", "weights")})


def leaving(
    holdings: Iterable[Holding], needs: Mapping[str, Need], *, budget: int | None, mode: str
) -> dict[str, list[Holding]]:
    """What must be off the GPU during each phase.

    Args:
        holdings: All that could be there.
        needs: What each phase uses, by its name.
        budget: Bytes of one GPU that are ours to fill; None: without bound.
        mode: `auto`: the least that makes room, in `LEAVING_ORDER`; `always`: all that the phase does not use;
            `never`: nothing.

    Returns:
        By phase, the holdings that leave. A phase that does not fit even without all others gets them all.
    """
    everything = sorted(holdings, key=lambda h: (LEAVING_ORDER.index(h.tag), -h.size, h.owner))
    return {phase: _for_phase(everything, need, budget, mode) for phase, need in needs.items()}


def occupied(holdings: Iterable[Holding], need: Need, left: Iterable[Holding]) -> int:
    """Bytes a GPU during a phase with `left` gone."""
    gone = set(left)
    return need.working + sum(h.size for h in holdings if h not in gone)


def _for_phase(everything: list[Holding], need: Need, budget: int | None, mode: str) -> list[Holding]:
    idle = [h for h in everything if (h.owner, h.tag) not in need.holdings and h.size > 0]
    if mode == "never" or (mode == "auto" and budget is None):
        return []
    if mode == "always":
        return idle
    assert budget is not None
    over = occupied(everything, need, ()) - budget
    left: list[Holding] = []
    for holding in idle:
        if over <= sum(h.size for h in left):
            break
        left.append(holding)
    # A later, larger one may have made an earlier, smaller one needless.
    for holding in list(left):
        if over <= sum(h.size for h in left) - holding.size:
            left.remove(holding)
    return left
