"""What goes to a reward, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_NUM_DETAILS = 10


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
    """

    def __init__(self, outcomes: Sequence[RewardOutcome]) -> None:
        self.outcomes = tuple(outcomes)
        failed = self.failed
        lines = [f"  sample {outcome.sample_id}: {outcome.error}" for outcome in failed[:_NUM_DETAILS]]
        if len(failed) > _NUM_DETAILS:
            lines.append(
                f"  and samples {', '.join(str(outcome.sample_id) for outcome in failed[_NUM_DETAILS:])}"
            )
        super().__init__(
            "\n".join(
                [
                    f"the reward failed on {len(failed)} of {len(self.outcomes)} samples:",
                    *lines,
                    "correct the reward, or set data.rollout.reward.on_error to zero to score such samples 0",
                ]
            )
        )

    @property
    def failed(self) -> tuple[RewardOutcome, ...]:
        """The outcomes that have an error."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)
