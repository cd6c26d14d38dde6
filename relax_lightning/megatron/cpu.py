"""A stand-in for CUDA that lets Megatron-Core run unchanged on a machine without a GPU.

Megatron names the CUDA device literally in many places. Where CUDA is absent, `cuda_stand_in` redirects those literals
to the CPU for the time of a `with` block and puts everything back at its end. With CUDA it does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class _Stream:
    """Stands for a CUDA stream or event: on a CPU everything is already in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = record = wait = _nothing

    def record_event(self, *args: Any) -> _Stream:
        return self


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    if isinstance(value, str):
        if value.split(":")[0] == "cuda":
            return "cpu"
        return value.replace("torch.cuda.", "torch.")
    return value


class _CudaOnCpu(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _on_cpu(kwargs["device"])}
        if name in ("to", "type", "new_tensor"):
            args = tuple(_on_cpu(a) for a in args)
        result = func(*args, **kwargs)
        if name == "type" and len(args) == 1 and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


def _stand_ins() -> list[tuple[Any, str, Any]]:
    import megatron.core.tensor_parallel.random as megatron_random

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    stream = _Stream()
    cuda = torch.cuda
    return [
        (cuda, "current_device", lambda: CPU),
        *((cuda, name, nothing) for name in ("synchronize", "empty_cache", "set_device")),
        (cuda, "Stream", _Stream),
        (cuda, "Event", _Stream),
        (cuda, "current_stream", lambda *a, **k: stream),
        (cuda, "default_stream", lambda *a, **k: stream),
        (cuda, "stream", lambda _: contextlib.nullcontext()),
        (cuda, "get_rng_state", lambda *a, **k: torch.get_rng_state()),
        (cuda, "set_rng_state", lambda state, *a, **k: torch.set_rng_state(state)),
        (cuda, "manual_seed", torch.manual_seed),
        (megatron_random, "_set_cuda_rng_state", lambda state, *a, **k: torch.set_rng_state(state)),
        (megatron_random, "_get_cuda_rng_state", lambda *a, **k: torch.get_rng_state()),
    ]


_depth = 0


@contextlib.contextmanager
def cuda_stand_in() -> Iterator[None]:
    """Let Megatron's CUDA literals mean the CPU inside the block; nothing where CUDA is present. May be nested."""
    global _depth
    if torch.cuda.is_available() or _depth:
        yield
        return
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in _stand_ins()]
    for owner, name, value in _stand_ins():
        setattr(owner, name, value)
    _depth += 1
    try:
        with _CudaOnCpu():
            yield
    finally:
        _depth -= 1
        for owner, name, value in originals:
            setattr(owner, name, value)
