"""One role to and from a Megatron distributed checkpoint: weights, Adam's moments and step, schedule."""

from __future__ import annotations

import queue
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.megatron.models.model import CriticModel, PolicyModel
from relax_lightning.megatron.optimizer import (
    adam_step,
    inner_optimizers,
    main_weights_on_device,
    outer_optimizers,
)
from relax_lightning.megatron.plain_reading import load_plainly


class SavedRole(Protocol):
    """What of a role goes into its checkpoint."""

    name: str
    num_steps_done: int
    """Optimizer steps over the whole training."""

    @property
    def model(self) -> PolicyModel:
        """This rank's part of the model."""
        ...

    @property
    def optimizer(self) -> Any:
        """Megatron's, outermost."""
        ...

    @property
    def schedule(self) -> Any:
        """Megatron's schedule of the learning rate."""
        ...


def save_role(role: SavedRole, directory: str | Path) -> None:
    """Write the role's whole state into a new or empty directory; every rank of the role calls it."""
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    # For asynchronous saving Megatron starts a manager process, which imports the caller's main script again and
    # outlives the save; ours is synchronous, so a queue in this process does.
    filesystem_async._results_queue = queue.Queue()  # pyright: ignore[reportAttributeAccessIssue]
    with cuda_stand_in(), _quiet(), main_weights_on_device(role.optimizer, changed=False):
        metadata = _metadata(role.model)
        model = role.model.sharded_state_dict(metadata=metadata)
        with _places_without_padding(role), _one_replica_gathers_nothing(role):
            optimizer = role.optimizer.sharded_state_dict(model, metadata=metadata)
        dict_list_map_inplace(_off_page_lock, optimizer)
        state = {
            "model": model,
            "optimizer": optimizer,
            "schedule": role.schedule.state_dict(),
            "num_steps_done": role.num_steps_done,
            "role": role.name,
        }
        dist_checkpointing.save(state, str(path))


def load_role(
    role: SavedRole, directory: str | Path, *, weights_only: bool = False, trusted: bool = False
) -> None:
    """Restore what `save_role` wrote, or Megatron's own training script, at any parallel sizes.

    Args:
        role: A role of the same architecture.
        directory: The checkpoint's directory.
        weights_only: Leave optimizer and schedule as they are.
        trusted: Run the code that the checkpoint may hold.

    Raises:
        ValueError: The directory is no Megatron distributed checkpoint of this role and model, or cannot be read.
    """
    if weights_only:
        load_model_weights(role.model, directory, trusted=trusted)
        with main_weights_on_device(role.optimizer, changed=True):
            role.optimizer.reload_model_params()
        return
    changing = main_weights_on_device(role.optimizer, changed=True)
    with cuda_stand_in(), torch.no_grad(), _quiet(), changing:
        metadata = _metadata(role.model)
        model = role.model.sharded_state_dict(metadata=metadata)
        with _places_without_padding(role):
            optimizer = role.optimizer.sharded_state_dict(model, is_loading=True, metadata=metadata)
        dict_list_map_inplace(_off_page_lock, optimizer)
        loaded = load_plainly(
            {"model": model, "optimizer": optimizer},
            Path(directory),
            role.name,
            num_tokens=role.model.num_rows,
            trusted=trusted,
        )
        role.model.load_state_dict(loaded["model"])
        _load_optimizer(role, loaded["optimizer"])
        # Megatron's schedule adds the saved steps to its own.
        role.schedule.num_steps = 0
        schedule = loaded.get("schedule") or loaded["opt_param_scheduler"]
        role.schedule.load_state_dict(schedule)
        role.num_steps_done = loaded.get("num_steps_done", schedule["num_steps"])


def load_model_weights(model: PolicyModel, directory: str | Path, *, trusted: bool = False) -> None:
    """Restore the weights alone.

    Args:
        model: An actor's or a critic's.
        directory: The checkpoint's directory.
        trusted: Run the code that the checkpoint may hold.

    Raises:
        ValueError: As of `load_role`.
    """
    role = "critic" if isinstance(model, CriticModel) else "actor"
    with cuda_stand_in(), torch.no_grad(), _quiet():
        state = {"model": model.sharded_state_dict(metadata=_metadata(model))}
        known = model.num_rows
        loaded = load_plainly(state, Path(directory), role, num_tokens=known, trusted=trusted)
        model.load_state_dict(loaded["model"])


def _metadata(model: PolicyModel) -> dict[str, Any]:
    return {
        "distrib_optim_sharding_type": "fully_reshardable",
        # Gathered on the host of the first replica; else every GPU takes the whole of each moment for a while.
        "distrib_optim_fully_reshardable_mem_efficient": True,
        "dp_cp_group": model.groups.collection.dp_cp,
    }


def _off_page_lock(value: Any) -> Any:
    """What lies in page-locked host memory as a plain copy: torch's checkpoints refuse such shards beside others."""
    if (
        isinstance(value, ShardedTensor | ShardedTensorFactory)
        and value.data is not None
        and value.data.is_pinned()
    ):
        value.data = value.data.clone()
    return value


def _load_optimizer(role: SavedRole, state: dict[str, Any]) -> None:
    """Restore the optimizer, Adam's step included.

    Megatron drops the step from the reshardable format without Transformer Engine and then misses it, and hands one
    tensor of it to all parameters. So the parameters' state is loaded apart from the rest, and each gets its own step.
    """
    outer = outer_optimizers(role.optimizer)[0]
    parameters = state.pop("param_state") if isinstance(outer, DistributedOptimizer) else None
    state.pop("param_state_sharding_type", None)
    inner_state = state.get("optimizer", state)
    _take_settings(inner_state["param_groups"], outer.param_groups)
    if parameters is None:
        # Megatron leaves out a step of 0, and then misses it too.
        inner_state["state"].setdefault("common_step", torch.tensor(0.0))
    role.optimizer.load_state_dict(state)
    steps = []
    for inner in inner_optimizers(role.optimizer):
        steps.append({parameter: float(values.pop("step")) for parameter, values in inner.state.items()})
    if parameters is not None:
        outer.load_parameter_state_from_fully_reshardable(parameters)
    for inner, step in zip(inner_optimizers(role.optimizer), steps, strict=True):
        for parameter, values in inner.state.items():
            inner.state[parameter] = {"step": adam_step(values["exp_avg"], step[parameter]), **values}


@contextmanager
def _one_replica_gathers_nothing(role: SavedRole) -> Iterator[None]:
    """Its part of the state is the whole: Megatron would copy it five times on its way to the disk."""
    parts = [part for part in _distributed_optimizers(role) if part.data_parallel_group_gloo.size() == 1]
    for part in parts:
        part.get_parameter_state_dp_zero = partial(_whole_state, part)
    try:
        yield
    finally:
        for part in parts:
            del part.get_parameter_state_dp_zero


def _whole_state(optimizer: Any, **_: Any) -> dict[Any, Any]:
    """As Megatron's `get_parameter_state_dp_zero` gives it: main weights and moments, flat, by buffer."""
    state: dict[Any, Any] = {"buckets_coalesced": True}
    for index, (buffer, ranges) in enumerate(zip(optimizer.buffers, optimizer.gbuf_ranges, strict=True)):
        ((dtype, buckets),) = ranges.items()
        keys = ("param", *optimizer.optimizer_state_keys)
        flat = {key: torch.empty(buffer.numel_unpadded, dtype=torch.float32) for key in keys}
        start = 0
        for bucket, places in zip(buffer.buckets, buckets, strict=True):
            for parameter, place in places["param_map"].items():
                values = optimizer._get_main_param_and_optimizer_states(parameter)
                here = slice(start + place["gbuf_local"].start, start + place["gbuf_local"].end)
                for key in keys:
                    flat[key][here].copy_(values[key].detach())
            start += bucket.numel_unpadded
        state[index] = {dtype: {**flat, "numel_unpadded": buffer.numel_unpadded}}
    return state


def _distributed_optimizers(role: SavedRole) -> list[Any]:
    """None where state is not sharded."""
    return [part for part in outer_optimizers(role.optimizer) if isinstance(part, DistributedOptimizer)]


@contextmanager
def _places_without_padding(role: SavedRole) -> Iterator[None]:
    """Where each parameter's state lies once Megatron has taken out the padding between its buckets.

    Megatron looks for it where it lay before, and so takes the state of other parameters; a tied embedding under
    pipelining is what makes a second bucket.
    """
    buffers = [buffer for part in _distributed_optimizers(role) for buffer in part.buffers]
    originals = [buffer.param_index_map for buffer in buffers]
    for buffer, places in zip(buffers, originals, strict=True):
        shifts, unpadded = [], 0
        for bucket in buffer.buckets:
            shifts.append(bucket.offset - unpadded)
            unpadded += bucket.numel_unpadded
        buffer.param_index_map = {
            parameter: (start - shifts[number], end - shifts[number], number)
            for parameter, (start, end, number) in places.items()
        }
    try:
        yield
    finally:
        for buffer, places in zip(buffers, originals, strict=True):
            buffer.param_index_map = places


def _take_settings(saved: list[dict[str, Any]], current: list[dict[str, Any]]) -> None:
    """Rates, betas and decay come from the configuration; Megatron finds a saved group by its rates."""
    for group, now in zip(saved, current, strict=True):
        group.update({name: value for name, value in now.items() if name not in ("params", "step")})


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch warns at length about its own deprecated storages while Megatron saves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
