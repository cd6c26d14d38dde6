"""Callbacks for tests: one records a run, others disturb it. Configured by `class_path`, as a user's own are."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import Trainer

from relax_lightning.megatron.optimizer import inner_optimizers
from relax_lightning.ppo.batch import Experience, Rollouts
from relax_lightning.ppo.callback import HOOKS, PPOCallback

LIGHTNING_HOOKS = (
    "on_train_start", "on_train_batch_start", "on_train_batch_end", "on_validation_start", "on_validation_end",
    "on_save_checkpoint", "on_train_end", "on_exception",
)  # fmt: skip


class Recorder(PPOCallback):
    """Keeps what every hook was called with; `Recorder.last` is that of the newest run."""

    last: ClassVar[Recorder]

    def __init__(self) -> None:
        Recorder.last = self
        self.trainer: Any = None
        self.module: Any = None
        self.events: list[str] = []
        self.rollouts: list[Rollouts] = []
        self.experiences: list[Experience] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self.validations: list[dict[str, float]] = []
        self.states: dict[int, dict[str, Any]] = {}
        self.exception: BaseException | None = None

    def note(self, hook: str, trainer: Trainer, module: Any, *args: Any) -> None:
        """Record one call."""
        self.trainer, self.module = trainer, module
        words = [hook, *(str(arg) for arg in args if isinstance(arg, str | int))]
        self.events.append(" ".join(words))
        if hook == "on_rollout_end":
            self.rollouts.append(args[0])
        elif hook == "on_advantages_computed":
            self.experiences.append(args[0])
        elif hook == "on_iteration_end":
            self.metrics[module.iteration] = dict(args[0])
            self.states[module.iteration] = state_of(module)
        elif hook == "on_validation_end":
            self.validations.append(
                {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
            )
        elif hook == "on_exception":
            self.exception = args[0]

    def of_iteration(self, iteration: int) -> list[str]:
        """The events from the start of an iteration's batch up to the next one."""
        starts = [n for n, event in enumerate(self.events) if event.startswith("on_train_batch_start")]
        ends = [*starts[1:], len(self.events)]
        return self.events[starts[iteration - 1] : ends[iteration - 1]]


def _recording(hook: str) -> Callable[..., Any]:
    answer = {"should_update_actor": True, "lr_scale": 1.0}.get(hook)

    def record(self: Recorder, trainer: Trainer, module: Any, *args: Any, **kwargs: Any) -> Any:
        self.note(hook, trainer, module, *args, *kwargs.values())
        return answer

    return record


for _hook in (*HOOKS, *LIGHTNING_HOOKS):
    setattr(Recorder, _hook, _recording(_hook))


def state_of(module: Any) -> dict[str, Any]:
    """Everything of both roles that training moves: weights, moments, steps, schedule."""
    state: dict[str, Any] = {}
    for role in (module.actor, module.critic):
        module.trainer.strategy.make_room(role.name)
        for name, value in role.model.state_dict().items():
            if isinstance(value, torch.Tensor):
                state[f"{role.name}.weights.{name}"] = value.clone()
        for inner in inner_optimizers(role.optimizer):
            for number, values in enumerate(inner.state.values()):
                for name, value in values.items():
                    state[f"{role.name}.optimizer.{number}.{name}"] = torch.as_tensor(value).clone()
            state[f"{role.name}.optimizer.lr"] = inner.param_groups[0]["lr"]
        state[f"{role.name}.schedule"] = dict(role.schedule.state_dict())
        state[f"{role.name}.num_steps_done"] = role.num_steps_done
    return state


def differing(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> list[str]:
    """Names under which two states differ in any bit."""
    assert a.keys() == b.keys()
    assert any(name.startswith(prefix) for name in a), prefix
    return [name for name in a if name.startswith(prefix) and not _equal(a[name], b[name])]


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


class _AtMoment(PPOCallback, ABC):
    """Calls `act` once, when a hook is fired in an iteration; on one rank only, where that is given."""

    def __init__(self, hook: str, iteration: int, rank: int | None = None) -> None:
        setattr(self, hook, self._at)
        self._iteration = iteration
        self._hook = hook
        self._rank = rank

    def _at(self, trainer: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if module.iteration == self._iteration and self._rank in (None, trainer.global_rank):
            self.act(trainer, module)

    @abstractmethod
    def act(self, trainer: Any, module: Any) -> None:
        """What happens."""


class Saboteur(_AtMoment):
    """Raises."""

    def act(self, trainer: Any, module: Any) -> None:
        """Break the iteration."""
        raise RuntimeError(f"broken on purpose in {self._hook}")


class Breaker(_AtMoment):
    """Raises what says nothing to a user."""

    def act(self, trainer: Any, module: Any) -> None:
        """Break the iteration as a mistake in a callback does."""
        raise KeyError("a mistake")


class DiskFiller(_AtMoment):
    """Lets no file grow beyond a limit any more, as a full disk does not."""

    def __init__(self, hook: str, iteration: int, limit: int = 20_000) -> None:
        super().__init__(hook, iteration)
        self._limit = limit

    def act(self, trainer: Any, module: Any) -> None:
        """Set the limit of this process."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit, self._limit))


class FolderRemover(_AtMoment):
    """Removes the run folder, as a person does who takes it for an old one."""

    def act(self, trainer: Any, module: Any) -> None:
        """Remove it."""
        shutil.rmtree(trainer.default_root_dir)


class OddState(PPOCallback):
    """Keeps what a checkpoint cannot hold."""

    def state_dict(self) -> dict[str, Any]:
        """A list with an object in it."""
        return {"seen": [1, Path()]}


class RichState(PPOCallback):
    """Keeps one of everything that a checkpoint can hold; `RichState.loaded` is what came back."""

    loaded: ClassVar[Any] = None

    @staticmethod
    def held() -> dict[Any, Any]:
        """The state."""
        return {
            "!sign": (1, None, (2.5, float("inf"))), 3: "int", "text": "\ud800", "flags": {True, "a"}, "bytes": b"\0x",
            "tensor": torch.arange(3, dtype=torch.bfloat16), "array": np.arange(4, dtype=np.uint32).reshape(2, 2),
            "number": np.float32(0.1), "nested": [{"a": {(1, 2): [frozenset({1})]}}], "empty": {}, "!tuple": [1],
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return self.held()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember it."""
        RichState.loaded = state_dict


class Stopper(_AtMoment):
    """Asks for the end of training after the iteration."""

    def act(self, trainer: Any, module: Any) -> None:
        """Ask."""
        trainer.should_stop = True


class Poisoner(_AtMoment):
    """Puts NaN into one weight of the critic, as a broken GPU might."""

    def act(self, trainer: Any, module: Any) -> None:
        """Poison the value head."""
        with torch.no_grad():
            module.critic.model.output_layer.bias.fill_(float("nan"))


class Signaler(_AtMoment):
    """Sends signals to its own process; notes the time in the run folder's `sent` just before each."""

    def __init__(self, hook: str, iteration: int, signals: list[str], rank: int | None = None) -> None:
        super().__init__(hook, iteration, rank)
        self._signals = signals

    def act(self, trainer: Any, module: Any) -> None:
        """Send them."""
        for name in self._signals:
            (Path(trainer.default_root_dir) / "sent").write_text(str(time.time()))
            os.kill(os.getpid(), signal.Signals[name])


class Killer(PPOCallback):
    """Ends the process by SIGKILL when a file-system call names a path: no code of ours runs any more.

    Args:
        event: Python's audit event: `open`, `os.rename`, ...
        text: Part of any of its arguments.
        count: Which of such calls.
    """

    def __init__(self, event: str, text: str, count: int = 1) -> None:
        import sys

        self._left = count

        def hook(name: str, args: tuple[Any, ...]) -> None:
            if name == event and any(text in str(arg) for arg in args):
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
