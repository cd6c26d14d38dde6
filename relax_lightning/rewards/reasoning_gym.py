"""The reward for tasks of reasoning-gym, by the scorer of the task itself."""

from __future__ import annotations

import json
import re
from typing import Any

import reasoning_gym

from relax_lightning.rewards.math_answer import find_answer_line

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)


class ReasoningGymReward:
    """Scores the answer in a response with `score_answer` of the task's data set, from 0 to 1.

    Args:
        task: Name of the data set, such as `chain_sum`; None takes it from the sample's metadata: `task`, as
            `relax_lightning.data.reasoning_gym.ReasoningGymPrompts` writes it, or reasoning-gym's own
            `source_dataset`.
        task_options: Options of the data set, where its scorer depends on them; those of the metadata come first.
    """

    def __init__(self, task: str | None = None, **task_options: Any) -> None:
        self._task = task
        self._task_options = task_options
        self._datasets: dict[str, Any] = {}
        if task is not None:
            self._dataset(task, task_options)

    def __call__(self, prompt: str, response: str, label: Any, metadata: dict[str, Any]) -> float:
        """The task's own score of the response's answer."""
        task = self._task or metadata.get("task") or metadata.get("source_dataset")
        if task is None:
            raise ValueError(
                "reasoning_gym does not know the task: the metadata has neither `task` nor `source_dataset`, only "
                f"{sorted(metadata)}; give init_args {{task: NAME}} or set metadata_key"
            )
        entry = {
            "question": metadata.get("question", prompt),
            "answer": label,
            "metadata": metadata.get("metadata", metadata),
        }
        dataset = self._dataset(task, metadata.get("task_options", self._task_options))
        return float(dataset.score_answer(find_answer(response), entry))

    def answer(self, response: str) -> str | None:
        """The answer that is scored; None for an empty one."""
        return find_answer(response) or None

    def _dataset(self, task: str, task_options: dict[str, Any]) -> Any:
        key = json.dumps([task, task_options], sort_keys=True, default=repr)
        if key not in self._datasets:
            self._datasets[key] = reasoning_gym.create_dataset(task, **task_options)
        return self._datasets[key]


def find_answer(response: str) -> str:
    """What the last `<answer>` tags enclose, else the last `Answer:` line, else the last line that is not empty."""
    enclosed = opened = None
    for tag in _TAG.finditer(response):
        if tag[1] and opened is not None:
            enclosed, opened = response[opened : tag.start()], None
        elif not tag[1]:
            opened = tag.end()
    answer = find_answer_line(response) if enclosed is None else enclosed
    if answer is None:
        answer = response.strip().rpartition("\n")[2]
    return answer.strip()
