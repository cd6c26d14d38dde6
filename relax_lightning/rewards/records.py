"""What goes to a reward, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NOT_TRIED = "not tried, since the reward failed before"


@dataclass(frozen=True)
class RewardRequest:
    """One response to be scored."""

    sample_id: int
    prompt: str
    response: str
    label: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    wants_answer: bool = False
    """Whether the outcome should say which answer the response gives."""


@dataclass(frozen=True)
class RewardOutcome:
    """The reward of one sample, or why it has none."""

    sample_id: int
    reward: float
    """0 where `error` is set."""
    error: str | None = None
    answer: str | None = None
    """What the response answers, for majority votes, where it was asked for; None: it answers nothing."""


class RewardError(RuntimeError):
    """Some samples could not be scored; every other one was.

    Args:
        outcomes: Of all samples, in the order of the requests.
        is_hopeless: Whether it failed in a way, and so often, that `on_error: zero` does not help.
    """

    def __init__(self, outcomes: Sequence[RewardOutcome], *, is_hopeless: bool = False) -> None:
        self.outcomes = tuple(outcomes)
        failed = self.failed
        num_left = sum(outcome.error == NOT_TRIED for outcome in outcomes)
        first = f"the reward failed on {len(failed)} of {len(self.outcomes) - num_left} samples"
        lines = [f"{first}; sample {failed[0].sample_id}: {failed[0].error}"]
        others = [f"samples {', '.join(str(outcome.sample_id) for outcome in failed[1:])} failed too"]
        others = others if len(failed) > 1 else []
        others += [f"the other {num_left} were not tried any more"] if num_left else []
        if others:
            lines.append(f"  {'; '.join(others)}")
        change = (
            "raise data.rollout.reward.timeout_seconds if it needs more time"
            if is_hopeless
            else "set data.rollout.reward.on_error to zero to score such samples 0"
        )
        super().__init__("\n".join([*lines, f"  correct the reward, or {change}"]))

    @property
    def failed(self) -> tuple[RewardOutcome, ...]:
        """The outcomes that have an error of their own."""
        return tuple(outcome for outcome in self.outcomes if outcome.error not in (None, NOT_TRIED))
