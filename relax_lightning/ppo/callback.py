"""The moments of a PPO iteration that a callback can listen to, and the dispatcher that fires them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningModule, Trainer

if TYPE_CHECKING:
    from torch import Tensor

    from relax_lightning.ppo.batch import Experience, Prompts, Rollouts


class PPOCallback(Callback):
    """A Lightning callback that also hears the moments of a PPO iteration, in the order they are listed here.

    What is passed may be read, not changed. Every phase (`rollout`, `critic`, `actor`, `publish`, and `reference` where
    the rewards take a KL off) is wrapped by `on_phase_start` and `on_phase_end`. A method that begins with `on_`,
    `should_` or `lr_` and is no known hook is an error at start.
    """

    def on_iteration_start(self, trainer: Trainer, module: LightningModule, prompts: Prompts) -> None:
        """Prompts are here, nothing has run yet."""

    def on_phase_start(self, trainer: Trainer, module: LightningModule, phase: str) -> None:
        """A phase is about to own the GPU."""

    def on_phase_end(self, trainer: Trainer, module: LightningModule, phase: str, seconds: float) -> None:
        """A phase ended after `seconds` of wall time."""

    def on_rollout_end(self, trainer: Trainer, module: LightningModule, rollouts: Rollouts) -> None:
        """Responses are generated and rewarded."""

    def on_values_computed(
        self, trainer: Trainer, module: LightningModule, rollouts: Rollouts, values: Tensor
    ) -> None:
        """`values` is [batch, response] float32, from the critic before its update."""

    def on_advantages_computed(
        self, trainer: Trainer, module: LightningModule, experience: Experience
    ) -> None:
        """GAE is done; the updates come next."""

    def on_before_critic_step(self, trainer: Trainer, module: LightningModule, step: int) -> None:
        """The critic's optimizer step number `step` (from 0, over the whole training) is about to run."""

    def on_before_actor_step(self, trainer: Trainer, module: LightningModule, step: int) -> None:
        """The actor's optimizer step number `step` (from 0, over the whole training) is about to run."""

    def on_weights_published(self, trainer: Trainer, module: LightningModule, version: int) -> None:
        """The rollout engine holds the actor's weights as of now; `version` counts publications."""

    def on_iteration_end(self, trainer: Trainer, module: LightningModule, metrics: dict[str, float]) -> None:
        """`metrics` holds one number a name, of what ran in this iteration."""

    def should_update_actor(self, trainer: Trainer, module: LightningModule, iteration: int) -> bool:
        """Whether the actor trains in `iteration` (from 1). All callbacks must agree."""
        return True

    def lr_scale(self, trainer: Trainer, module: LightningModule, role: str, step: int) -> float:
        """Factor on the learning rate of `role` (`actor` or `critic`) at its optimizer step `step` (from 0)."""
        return 1.0


HOOKS = tuple(name for name in vars(PPOCallback) if not name.startswith("_"))


class HookDispatcher:
    """Fires hooks on the PPO callbacks of a trainer, and answers the two questions."""

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer = trainer
        self._module = module

    @property
    def _callbacks(self) -> list[PPOCallback]:
        callbacks: Iterable[Any] = self._trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        return [c for c in callbacks if isinstance(c, PPOCallback)]

    def fire(self, hook: str, *args: Any) -> None:
        """Call `hook` on every PPO callback, in the trainer's order."""
        assert hook in HOOKS, hook
        for callback in self._callbacks:
            getattr(callback, hook)(self._trainer, self._module, *args)

    def should_update_actor(self, iteration: int) -> bool:
        """True when every callback agrees; every callback is asked."""
        answers: list[bool] = []
        for callback in self._callbacks:
            answer = callback.should_update_actor(self._trainer, self._module, iteration)
            if not isinstance(answer, bool):
                name = type(callback).__name__
                raise ValueError(
                    f"{name}.should_update_actor({iteration}): wanted True or False, got {answer}"
                )
            answers.append(answer)
        return all(answers)

    def lr_scale(self, role: str, step: int) -> float:
        """Product of all callbacks' factors."""
        scale = 1.0
        for callback in self._callbacks:
            answer = callback.lr_scale(self._trainer, self._module, role, step)
            if not isinstance(answer, Real) or not 0 <= answer < math.inf:
                name = type(callback).__name__
                raise ValueError(
                    f"{name}.lr_scale({role!r}, {step}): wanted a factor of at least 0, got {answer}"
                )
            scale *= answer
        return scale


def check_hook_names(callback: Callback) -> None:
    """Refuse a misspelt hook on a PPO callback before anything runs.

    Raises:
        ValueError: A public method begins with `on_`, `should_` or `lr_` and is no hook of Lightning's or ours.
    """
    if not isinstance(callback, PPOCallback):
        return
    known = [name for name in dir(PPOCallback) if name.startswith(("on_", "should_", "lr_"))]
    for name in dir(type(callback)):
        if name.startswith(("on_", "should_", "lr_")) and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean `{nearest[0]}`?" if nearest else ""
            raise ValueError(
                f"{type(callback).__module__}.{type(callback).__name__}.{name} is no hook of a PPOCallback{hint} "
                "A method that is no hook must not begin with on_, should_ or lr_."
            )
