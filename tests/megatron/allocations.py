"""What Megatron and torch really hold, to compare the memory arithmetic with."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.host_optimizer import HostAdamW
from relax_lightning.megatron.optimizer import inner_optimizers
from relax_lightning.plan.memory import RoleMemory
from relax_lightning.ppo.batch import Experience, Rollouts


def allocated(role: Any) -> tuple[int, int, int, int]:
    """Bytes of the unique storages behind a role's weights, gradients, optimizer state, and what the host steps.

    Adam's count of steps is left out: 4 bytes a parameter, on the host.
    """
    weights = _storages(role.model.parameters())
    gradients = _storages(buffer.grad_data for buffer in role.ddp.buffers)
    state, blocks = [], []
    for inner in inner_optimizers(role.optimizer):
        blocks += [inner.block] if isinstance(inner, HostAdamW) else []
        for parameter, values in inner.state.items():
            state += [parameter, *(tensor for name, tensor in values.items() if name != "step")]
    host = _storages(blocks)
    optimizer = {key: size for key, size in _storages(state).items() if key not in {*weights, *host}}
    kinds = (weights, gradients, optimizer, host)
    return tuple(sum(sizes.values()) for sizes in kinds)  # pyright: ignore[reportReturnType]


def planned_bytes(memory: RoleMemory) -> tuple[int, int, int, int]:
    """The same four, as planned."""
    return memory.weights, memory.gradients, memory.optimizer, memory.host_optimizer


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def held_by(role: Any) -> set[int]:
    """Storages that are no activations."""
    own = [b.grad_data for b in role.ddp.buffers] + [b.param_data for b in role.ddp.buffers]
    return set(_storages([*role.model.parameters(), *(t for t in own if t is not None)]))


@contextmanager
def counting_saved(excluded: set[int]) -> Iterator[dict[int, int]]:
    """Storages that autograd saves inside the block, and their bytes."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        found.update({k: n for k, n in _storages([tensor]).items() if k not in excluded})
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage that operations make, until it is freed; `peak` is the most at a time."""

    def __init__(self, excluded: set[int]) -> None:
        super().__init__()
        self._live: set[int] = set(excluded)
        self._now = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._live:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._live.add(key)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._live.discard(key)
        self._now -= size


def make_experience(prompts: list[int], responses: list[int]) -> Experience:
    """Samples of the given lengths, with noise for everything that is learned from."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.tensor(responses)
    mask = torch.arange(max(responses))[None] < lengths[:, None]
    texts = ("",) * len(prompts)
    rollouts = Rollouts(
        sample_ids=torch.arange(len(prompts)),
        prompt_tokens=torch.randint(0, 90, (len(prompts), max(prompts)), generator=draw),
        prompt_lengths=torch.tensor(prompts),
        response_tokens=torch.randint(0, 90, mask.shape, generator=draw),
        response_lengths=lengths,
        response_mask=mask,
        rollout_log_probs=torch.zeros(mask.shape),
        rewards=torch.zeros(len(prompts)),
        finish_reasons=("stop",) * len(prompts),
        prompts=texts,
        responses=texts,
        labels=texts,
        temperature=1.0,
        weight_version=0,
    )
    noise = [torch.randn(mask.shape, generator=draw) * mask for _ in range(4)]
    return Experience(rollouts, *noise)


def forward_loss(role: Any, batch: Any, head: Callable[..., Any], loss: Callable[..., Any]) -> Tensor:
    """The loss of one micro-batch as `MegatronRole.update` computes it, ready for backward."""
    with cuda_stand_in():
        role.ddp.train()
        value, _ = loss(head(role.model, role.ddp(batch.tokens, batch.layout), batch), batch.rows)
    return value
