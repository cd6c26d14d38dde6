"""Configuration of who holds the GPU: `strategy`."""

from __future__ import annotations

from dataclasses import dataclass

from relax_lightning.config.faults import one_of, refuse
from relax_lightning.config.keys import key


@dataclass(frozen=True)
class StrategyConfig:
    """What leaves the GPU between phases."""

    offload: str = key("auto", "auto: what the memory plan says must leave; or always | never")
    verify_publish: bool = key(False, "compare the engine's weights with the actor's after every publication")
    verify_checkpoints: bool = key(
        True, "compare the files of a checkpoint with its checksums before it is read"
    )
    trust_checkpoints: bool = key(
        False, "run the code that a checkpoint of others may hold, pickled, instead of refusing it"
    )

    def __post_init__(self) -> None:
        refuse(one_of(self, ("auto", "always", "never"), "offload"))
