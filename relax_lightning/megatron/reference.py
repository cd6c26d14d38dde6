"""The frozen reference policy: weights on the host that take the actor's place for one forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from relax_lightning.batch import Rollouts
from relax_lightning.config import ReferenceConfig
from relax_lightning.config.checkpoints import role_folder
from relax_lightning.megatron.checkpoint import load_model_weights
from relax_lightning.megatron.hugging_face import load_weights
from relax_lightning.megatron.role import Actor


class Reference:
    """Host copies of the reference's weights, cut as the actor's are. There is no second model on the device.

    Args:
        actor: Just built, with the weights it starts from: they are the reference where `read` is None.
        read: Puts the reference's weights into the actor's model; the actor gets its own back.
    """

    def __init__(self, actor: Actor, read: Callable[[Actor], None] | None = None) -> None:
        self._actor = actor
        self._own: list[Tensor] = []
        if read is None:
            self._weights = self._to_host([])
            return
        own = self._to_host([])
        try:
            read(actor)
            self._weights = self._to_host([])
        finally:
            self._to_device(own)

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
        self._own = self._to_host(self._own)
        self._to_device(self._weights)
        try:
            yield
        finally:
            self._to_device(self._own)

    def _to_host(self, copies: list[Tensor]) -> list[Tensor]:
        """The actor's weights, in `copies` where there are some already."""
        weights = self._actor.tensors("weights")
        copies = copies or [_on_host(weight) for weight in weights]
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(weight, non_blocking=True)
        self._wait()
        return copies

    def _to_device(self, copies: list[Tensor]) -> None:
        for weight, copy in zip(self._actor.tensors("weights"), copies, strict=True):
            weight.copy_(copy, non_blocking=True)
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


def _on_host(weight: Tensor) -> Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device="cpu", pin_memory=weight.is_cuda)
