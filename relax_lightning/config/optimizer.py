"""Configuration of the optimizers: `model.actor.optimizer` and `model.critic.optimizer`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from relax_lightning.config.faults import Fault, above, at_least, fault, one_of, refuse, within
from relax_lightning.config.keys import key


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam, its schedule, and where its state lives."""

    lr: float = key(1.0e-6, "learning rate")
    weight_decay: float = key(0.1, "decoupled weight decay")
    betas: tuple[float, float] = key((0.9, 0.98), "Adam's decay rates of the two moments")
    eps: float = key(1.0e-8, "Adam's epsilon")
    clip_grad: float = key(1.0, "largest gradient norm; 0: no clipping")
    decay: str = key(
        "constant", "decay of the learning rate over the role's own steps: constant | linear | cosine"
    )
    min_lr: float = key(
        0.0,
        "learning rate that the decay leads to; the last of n steps is (n - 1) / n of the way there, as in Megatron",
    )
    distributed: bool = key(True, "shard the optimizer state over data-parallel ranks")
    cpu_offload_fraction: float = key(
        0.0,
        "share of the parameters whose main weights and moments are on the host and stepped there, 0 to 1",
    )

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True)
class CriticOptimizerConfig:
    """The critic's optimizer; every null follows the actor's."""

    lr: float | None = key(None, "learning rate; null follows the actor's")
    weight_decay: float | None = key(None, "decoupled weight decay; null follows the actor's")
    betas: tuple[float, float] | None = key(None, "Adam's decay rates; null follows the actor's")
    eps: float | None = key(None, "Adam's epsilon; null follows the actor's")
    clip_grad: float | None = key(None, "largest gradient norm; 0: no clipping; null follows the actor's")
    decay: str | None = key(
        None, "decay of the learning rate: constant | linear | cosine; null follows the actor's"
    )
    min_lr: float | None = key(None, "learning rate at the end of the decay; null follows the actor's")
    distributed: bool | None = key(None, "shard the optimizer state; null follows the actor's")
    cpu_offload_fraction: float | None = key(None, "share stepped on the host; null follows the actor's")

    def __post_init__(self) -> None:
        _check(self)

    def following(self, actor: OptimizerConfig) -> OptimizerConfig:
        """This optimizer with every null filled from the actor's."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return OptimizerConfig(**{k: getattr(actor, k) if v is None else v for k, v in own.items()})


def _check(config: OptimizerConfig | CriticOptimizerConfig) -> None:
    refuse(
        above(config, 0, "lr", "eps"),
        at_least(config, 0, "weight_decay", "clip_grad", "min_lr"),
        within(config, 0, 1, "cpu_offload_fraction"),
        one_of(config, ("constant", "linear", "cosine"), "decay"),
        _bad_betas(config.betas),
    )


def _bad_betas(betas: Any) -> list[Fault]:
    if betas is None or (len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
        return []
    change = "change them, or leave them out for the default, [0.9, 0.98]"
    return [Fault("betas", fault("two numbers from 0 to below 1", list(betas), change))]
