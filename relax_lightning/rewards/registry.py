"""How a reward is built from the configuration, and what belongs to it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from relax_lightning.config.rewards import REWARDS
from relax_lightning.run.import_path import import_object


class Reward(Protocol):
    """Scores one response. A plain function is one; so is an instance of a class with `__call__`.

    A method `answer(response) -> str | None`, where there is one, says which answer a response gives, for the majority
    votes of an evaluation; without it the answer is the whole response.
    """

    def __call__(self, prompt: str, response: str, label: Any, metadata: dict[str, Any], /) -> float:
        """A finite number."""
        ...


def load_reward(name: str | None, class_path: str | None, init_args: dict[str, Any]) -> Reward:
    """Import the reward and, where it is a class, build it.

    Args:
        name: One of `REWARDS`, or None.
        class_path: Import path of a function or class, used where `name` is None.
        init_args: Arguments of the class.

    Raises:
        ValueError: The name is unknown, the path cannot be imported, the class cannot be built, or what comes out
            cannot be called with (prompt, response, label, metadata).
    """
    path = class_path if name is None else _path_of(name)
    if path is None:
        raise ValueError("a reward wants a name or a class_path, got neither")
    reward = import_object("class_path", path)
    if isinstance(reward, type):
        reward = _build(path, reward, init_args)
    elif init_args:
        raise ValueError(f"{path} is no class, so it takes no init_args, got {init_args}; leave them out")
    _check_signature(path, reward)
    return reward


def load_answer(name: str | None, reward: Reward) -> Callable[[str], str | None]:
    """What says which answer a response gives: equal answers get equal votes in maj@k.

    Args:
        name: One of `REWARDS`, or None for a reward of the user's own.
        reward: As it was loaded.
    """
    path = REWARDS[name].answer if name in REWARDS else None
    if path is not None:
        return import_object("reward", path)
    return getattr(reward, "answer", None) or whole_response


@dataclass(frozen=True)
class LabelReader:
    """What checks a label of the data and returns what the reward gets."""

    reward: str | None
    """One of `REWARDS`; None for a reward of the user's own, which takes any label."""

    def __call__(self, label: Any) -> Any:
        """The label as the reward gets it; a ValueError says why it does not suit."""
        if self.reward is None:
            return label
        try:
            return import_object("reward", REWARDS[self.reward].label)(label)
        except ValueError as error:
            raise ValueError(f"does not suit the reward {self.reward}: {error}") from error


ANY_LABEL = LabelReader(None)


def load_label(name: str | None) -> LabelReader:
    """The reader of a reward's labels.

    Args:
        name: One of `REWARDS`, or None for a reward of the user's own.
    """
    if name is not None:
        _path_of(name)
    return LabelReader(name)


def whole_response(response: str) -> str | None:
    """The response without white space around it; None for an empty one."""
    return response.strip() or None


def _path_of(name: str) -> str:
    if name in REWARDS:
        return REWARDS[name].path
    nearest = difflib.get_close_matches(name, REWARDS, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "; give a class_path for one of your own"
    raise ValueError(f"reward must be one of {', '.join(REWARDS)}, got {name!r}{hint}")


def _build(path: str, reward_class: type, init_args: dict[str, Any]) -> Any:
    try:
        return reward_class(**init_args)
    except Exception as error:
        raise ValueError(f"{path}(**{init_args}) failed: {type(error).__name__}: {error}") from error


def _check_signature(path: str, reward: Any) -> None:
    if not callable(reward):
        raise ValueError(f"{path} must be a function or a class with __call__, got {type(reward).__name__}")
    try:
        inspect.signature(reward).bind("prompt", "response", "label", {})
    except TypeError as error:
        raise ValueError(f"{path} must take (prompt, response, label, metadata): {error}") from error
