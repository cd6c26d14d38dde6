"""The rewards that a configuration can name: the one place to add one."""

from __future__ import annotations

from dataclasses import dataclass

_PACKAGE = "relax_lightning.rewards"


@dataclass(frozen=True)
class RegisteredReward:
    """Import paths, so that only what is chosen is imported."""

    path: str
    """The reward: a function of (prompt, response, label, metadata), or a class of such."""
    label: str
    """What checks a label when the data is loaded and returns it, or raises a ValueError that says what it takes."""
    needs_label: bool = True
    """Whether `label_key: null` is refused."""
    answer: str | None = None
    """What finds the answer in a response, for majority votes; None: the reward's own `answer`, or all of it."""


REWARDS = {
    "dapo_math": RegisteredReward(
        path=f"{_PACKAGE}.dapo_math.dapo_math",
        label=f"{_PACKAGE}.labels.math_label",
        answer=f"{_PACKAGE}.math_answer.final_answer",
    ),
    "exact_match": RegisteredReward(
        path=f"{_PACKAGE}.exact_match.exact_match", label=f"{_PACKAGE}.labels.text_label"
    ),
    "reasoning_gym": RegisteredReward(
        path=f"{_PACKAGE}.reasoning_gym.ReasoningGymReward",
        label=f"{_PACKAGE}.labels.task_label",
        needs_label=False,
    ),
}
"""By name."""
