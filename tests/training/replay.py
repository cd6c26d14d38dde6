"""For runs of several ranks: engines that replay or thin out generations, and a callback that writes what it sees."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from relax_lightning.ppo.callback import PPOCallback
from relax_lightning.rollout.embedded import MegatronEngine
from relax_lightning.rollout.engine import Generation
from relax_lightning.strategies.pool import Resident


class Recording(MegatronEngine):
    """The embedded engine, which also keeps every round of generation.

    Args:
        folder: A file a round.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def generate(
        self, prompts: Any, sample_ids: Any, sampling: Any, seed: int, *rest: Any
    ) -> list[Generation]:
        """Generate and keep."""
        answers = super().generate(prompts, sample_ids, sampling, seed, *rest)
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"{seed}.pkl").write_bytes(pickle.dumps(dict(zip(sample_ids, answers, strict=True))))
        return answers


class Replay(MegatronEngine):
    """Answers with what `Recording` kept, whatever the weights are now."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)

    def generate(
        self, prompts: Any, sample_ids: Any, sampling: Any, seed: int, *rest: Any
    ) -> list[Generation]:
        """Look them up."""
        kept = pickle.loads((self._folder / f"{seed}.pkl").read_bytes())
        return [kept[sample_id] for sample_id in sample_ids]


class Sparse(MegatronEngine):
    """The embedded engine, most of whose answers are empty: optimizer steps with fewer samples than replicas."""

    def generate(
        self, prompts: Any, sample_ids: Any, sampling: Any, seed: int, *rest: Any
    ) -> list[Generation]:
        """Generate, and keep every fourth."""
        answers = super().generate(prompts, sample_ids, sampling, seed, *rest)
        empty = Generation((), (), "stop")
        return [a if i % 4 == 0 else empty for i, a in zip(sample_ids, answers, strict=True)]


class Broken(MegatronEngine):
    """The embedded engine, which rank 1 leaves in the middle of a generation."""

    def generate(
        self, prompts: Any, sample_ids: Any, sampling: Any, seed: int, *rest: Any
    ) -> list[Generation]:
        """Break on rank 1."""
        if os.environ["RANK"] == "1":
            raise RuntimeError("broken on purpose in a generation")
        return super().generate(prompts, sample_ids, sampling, seed, *rest)


class NoRoom(PPOCallback):
    """On rank 1, something stays where it is when the evaluation after iteration 1 wants room; later it leaves."""

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Put it there."""
        if module.iteration == 1:
            trainer.strategy._pool.mode = "always"
            trainer.strategy._pool.register("stubborn", _Stubborn(stays=trainer.global_rank == 1))

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """From here on nothing leaves, and what has left comes back when it is used."""
        trainer.strategy._pool.mode = "never"
        trainer.strategy._pool.register("stubborn", _Stubborn(stays=False))


class _Stubborn(Resident):
    def __init__(self, *, stays: bool) -> None:
        self._stays = stays

    def sizes(self) -> dict[str, int]:
        return {"weights": 1}

    def offload(self, tag: str) -> None:
        if self._stays:
            self._stays = False
            raise RuntimeError("stays on purpose")


class RankWriter(PPOCallback):
    """Writes what this rank sees to `rank<N>.pt` in the run folder."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {"start": {}, "end": {}, "heads": [], "experiences": []}

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """The weights that the run starts from, as a publication would take them."""
        self._seen["start"] = {name: t.clone() for name, t in module.actor.hf_weights()}

    def on_advantages_computed(self, trainer: Any, module: Any, experience: Any) -> None:
        """The record that every rank learns from."""
        self._seen["experiences"].append(experience)

    def on_iteration_end(self, trainer: Any, module: Any, metrics: dict[str, float]) -> None:
        """The value head of this rank, and the weights so far."""
        if module.critic.groups.is_last_stage:
            head = module.critic.model.output_layer
            self._seen["heads"].append([head.weight.detach().clone(), head.bias.detach().clone()])
        self._seen["end"] = {name: t.clone() for name, t in module.actor.hf_weights()}
        path = Path(trainer.default_root_dir) / f"rank{trainer.global_rank}.pt"
        torch.save(self._seen, path)
