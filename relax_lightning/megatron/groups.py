"""Megatron's process groups: made once a process, from the parallel sizes of the configuration."""

from __future__ import annotations

import atexit
import os
import socket

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from relax_lightning.config import ParallelConfig
from relax_lightning.megatron.cpu import cuda_stand_in


def initialize_groups(parallel: ParallelConfig, device: torch.device, seed: int) -> None:
    """Join the default process group (alone, when no launcher set one up) and make Megatron's groups.

    They last as long as the process: a second Trainer takes them as they are, for torch never ends all the threads of
    a group that was destroyed.

    Raises:
        RuntimeError: Groups of other parallel sizes already exist in this process.
    """
    if not dist.is_initialized():
        _initialize_default_group(device)
        atexit.register(destroy_groups)
    sizes = (parallel.tensor, parallel.pipeline, parallel.context)
    if parallel_state.model_parallel_is_initialized():
        have = (
            parallel_state.get_tensor_model_parallel_world_size(),
            parallel_state.get_pipeline_model_parallel_world_size(),
            parallel_state.get_context_parallel_world_size(),
        )
        if have != sizes:
            raise RuntimeError(f"process groups exist for (tensor, pipeline, context) {have}, wanted {sizes}")
    else:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor,
            pipeline_model_parallel_size=parallel.pipeline,
            context_parallel_size=parallel.context,
            create_gloo_process_groups=False,
        )
    with cuda_stand_in():
        model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


def destroy_groups() -> None:
    """Leave Megatron's groups and the default one."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def _initialize_default_group(device: torch.device) -> None:
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(device)
    backend, device_id = ("nccl", device) if is_gpu else ("gloo", None)
    if "RANK" in os.environ:
        dist.init_process_group(backend, device_id=device_id)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend, init_method=address, rank=0, world_size=1, device_id=device_id)
