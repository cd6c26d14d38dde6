"""The frozen reference policy: weights on the host that take the actor's place for one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from relax_lightning.checkpoints.folders import role_folder
from relax_lightning.config import ReferenceConfig
from relax_lightning.megatron.checkpoint import load_model_weights
from relax_lightning.megatron.hugging_face import load_weights
from relax_lightning.megatron.role import Actor
from relax_lightning.ppo.batch import Rollouts
from relax_lightning.run.host_memory import HostArena, bytes_of


class Reference:
    """Host copies of the reference's weights, cut as the actor's are. There is no second model on the device.

    Args:
        actor: Just built, with the weights it starts from: they are the reference where `read` is None.
        read: Puts the reference's weights into the actor's model; the actor gets its own back.
    """

    def __init__(self, actor: Actor, read: Callable[[Actor], None] | None = None) -> None:
        self._actor = actor
        self._own, self._weights = _arena(), _arena()
        if read is None:
            self._to_host(self._weights)
            return
        self._to_host(self._own)
        try:
            read(actor)
            self._to_host(self._weights)
        finally:
            self._to_device(self._own)

    def log_probs(self, rollouts: Rollouts, row_groups: Sequence[Sequence[int]]) -> Tensor:
        """Log-probs of the responses under the reference, at the sampling temperature.

        The actor's weights are on the device before and after, the same to the bit.

        Args:
            rollouts: The record.
            row_groups: Rows of each micro-batch.

        Returns:
            [batch, response] float32 on CPU; 0 in padding and for rows in no group.
        """
        with self._in_place():
            return self._actor.log_probs(rollouts, row_groups)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        self._to_host(self._own)
        self._to_device(self._weights)
        try:
            yield
        finally:
            self._to_device(self._own)

    def _to_host(self, arena: HostArena) -> None:
        for on_host, weight in arena.places(map(bytes_of, self._actor.tensors("weights"))):
            on_host.copy_(weight, non_blocking=True)
        self._wait()

    def _to_device(self, arena: HostArena) -> None:
        for on_host, weight in arena.places(map(bytes_of, self._actor.tensors("weights"))):
            weight.copy_(on_host, non_blocking=True)
        self._wait()

    def _wait(self) -> None:
        if self._actor.device.type == "cuda":
            torch.cuda.synchronize(self._actor.device)


def build_reference(
    config: ReferenceConfig, actor: Actor, hf_checkpoint: str | None, *, trusted: bool = False
) -> Reference:
    """The reference of a configuration.

    Args:
        config: Resolved.
        actor: Just built, nothing loaded yet.
        hf_checkpoint: What the actor's weights came from; None: a random start.
        trusted: Run the code that a checkpoint may hold.

    Raises:
        ValueError: The weights cannot be read.
    """
    if config.load is not None:
        folder = role_folder(Path(config.load), "actor")
        return Reference(actor, lambda a: load_model_weights(a.model, folder, trusted=trusted))
    source = config.hf_checkpoint
    if source is None or source == hf_checkpoint:
        return Reference(actor)
    return Reference(actor, lambda a: load_weights(a.model, source))


def _arena() -> HostArena:
    return HostArena("model.reference", "leave it out, with kl_coef and use_kl_loss")
