"""Configuration of the processes: `cluster`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relax_lightning.config.faults import Fault, at_least, fault, one_of, refuse
from relax_lightning.config.keys import key

ROLES = ("actor", "critic", "rollout", "advantages")


@dataclass(frozen=True)
class ClusterConfig:
    """Ray, and what each role gets of it."""

    address: str | None = key(None, "address of a Ray cluster; null: one is started here")
    accelerator: str = key("auto", "what the ranks run on: auto | gpu | cpu")
    resources: dict[str, tuple[int, int]] = key(
        {"actor": (1, 8), "critic": (1, 8), "rollout": (1, 8), "advantages": (1, 0)},
        "what each role gets, as role: [replicas, gpus]",
    )
    colocate: bool = key(True, "equal shapes share one placement group; only true is supported")
    max_restarts: int = key(0, "restarts of the training after a lost worker")

    def __post_init__(self) -> None:
        refuse(
            one_of(self, ("auto", "gpu", "cpu"), "accelerator"),
            at_least(self, 0, "max_restarts"),
            [found for role, shape in self.resources.items() for found in _bad_shape(role, shape)],
        )


def _bad_shape(role: str, shape: Any) -> list[Fault]:
    if role not in ROLES:
        message = fault(f"one of the roles {', '.join(ROLES)}", role, "rename or remove it")
        return [Fault(f"resources.{role}", message)]
    if role == "advantages":
        is_right, wanted, change = tuple(shape) == (1, 0), "[1, 0], one process without a GPU", "change it"
    else:
        is_right = len(shape) == 2 and min(shape) >= 1
        wanted, change = "[replicas, gpus], both of at least 1", "for example [1, 8]"
    return [] if is_right else [Fault(f"resources.{role}", fault(wanted, list(shape), change))]
