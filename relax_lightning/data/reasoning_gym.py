"""Prompts of reasoning-gym, made on the spot."""

from __future__ import annotations

from typing import Any


class ReasoningGymPrompts:
    """A seeded set of tasks, as a `class_path` of prompts; `reasoning_gym` is the reward that goes with it.

    Args:
        task: Name of the data set, such as `chain_sum`.
        size: Number of prompts.
        seed: Of the tasks: item i is drawn from `seed + i`, so a validation set needs a seed more than `size` away.
        system_prompt: Comes before the question, as the system's message; None: the question alone.
        instruction: Comes after the question, on a line of its own; None: nothing.
        task_options: Options of the data set, such as `min_terms`.

    Raises:
        ValueError: reasoning-gym has no such task, or does not accept the options.
    """

    def __init__(
        self,
        task: str,
        size: int,
        seed: int,
        system_prompt: str | None = None,
        instruction: str | None = None,
        **task_options: Any,
    ) -> None:
        import reasoning_gym

        try:
            self._dataset = reasoning_gym.create_dataset(task, size=size, seed=seed, **task_options)
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueError(f"reasoning-gym's task {task!r} with options {task_options}: {error}") from error
        self._task = task
        self._instruction = "" if instruction is None else f"\n{instruction}"
        self._task_options = task_options
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Messages, the answer as label, and in the metadata all that the task's scorer needs."""
        entry = self._dataset[index]
        return {
            "prompt": [*self._system, {"role": "user", "content": entry["question"] + self._instruction}],
            "label": entry["answer"],
            "metadata": {
                "task": self._task,
                "task_options": self._task_options,
                "question": entry["question"],
                "metadata": entry["metadata"],
            },
        }
