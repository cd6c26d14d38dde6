"""AdamW that keeps a share of its state in host memory and steps it on the CPU, while the GPU steps the rest."""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import AdamW, adamw

from relax_lightning.megatron.cpu import cuda_stand_in
from relax_lightning.plan.memory.roles import host_share


@dataclass(frozen=True)
class HostState:
    """What the host holds of one parameter, each in the parameter's shape, fp32."""

    weight: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    is_main: bool
    """Whether the parameter is an fp32 copy of a model's weight; False: it is the model's weight itself."""
    arrived: Any
    """CUDA event: the gradient is here."""


class HostAdamW(AdamW):
    """Stands in for Megatron's inner AdamW, over the same parameter groups.

    Of the parameters on the host, Megatron goes on seeing tensors of the device, and sets, measures and clips their
    gradients there. Main weights among them have memory on the device from `step`, which leaves the new weights there
    for Megatron to copy, until `release`.

    Args:
        inner: The optimizer as Megatron built it, before its first step.
        fraction: Share of the elements that the host steps: `memory.roles.host_share` says which parameters.
        model_weights: Addresses of the storages of the model's own weights.
    """

    def __init__(self, inner: AdamW, fraction: float, model_weights: set[int]) -> None:
        # Shards of fp32 weights are views, which torch's own constructor refuses; Megatron sets groups likewise.
        super().__init__([torch.zeros(1)])
        self.defaults = inner.defaults
        self.param_groups = inner.param_groups
        parameters = [p for group in self.param_groups for p in group["params"]]
        chosen = [parameters[n] for n in host_share([p.numel() for p in parameters], fraction)]
        self.block = torch.zeros(4, sum(p.numel() for p in chosen), dtype=torch.float32, device="cpu")
        """[weight, gradient, exp_avg, exp_avg_sq; elements on the host] fp32: all that the host holds."""
        if any(p.is_cuda for p in chosen):
            _page_lock(self.block, self)
        self.held: dict[Tensor, HostState] = {}
        """By parameter, those on the host."""
        device = parameters[0].device
        start = 0
        with cuda_stand_in(), torch.no_grad():
            self._stream = torch.cuda.Stream(device)
            for parameter in chosen:
                rows = [row.view_as(parameter) for row in self.block[:, start : start + parameter.numel()]]
                is_main = parameter.untyped_storage().data_ptr() not in model_weights
                self.held[parameter] = HostState(*rows, is_main=is_main, arrived=torch.cuda.Event())
                start += parameter.numel()
        self._device = device
        self.take_weights()
        self.release()

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Step all parameters; the new weights are on the device, in the order of its current stream."""
        assert closure is None
        gradients = {parameter: parameter.grad for parameter in self.held}
        with cuda_stand_in(), torch.no_grad():
            self._allocate()
            here = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                for parameter, state in self.held.items():
                    assert parameter.grad is not None
                    state.gradient.copy_(parameter.grad, non_blocking=True)
                    state.arrived.record()
                    parameter.grad = None
            # Parameters without a gradient are left out.
            super().step()
            self._step_held()
            here.wait_stream(self._stream)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient

    def _step_held(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.held:
                    continue
                held, state = self.held[parameter], self.state[parameter]
                held.arrived.synchronize()
                adamw(
                    [held.weight],
                    [held.gradient],
                    [held.exp_avg],
                    [held.exp_avg_sq],
                    [],
                    [state["step"]],
                    fused=True,
                    amsgrad=False,
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    lr=group["lr"],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    maximize=False,
                )
                with torch.cuda.stream(self._stream):
                    parameter.copy_(held.weight, non_blocking=True)

    def bring_weights(self) -> None:
        """Put the main weights that the host holds on the device, for Megatron to read."""
        self._allocate()
        with torch.no_grad():
            for parameter, held in self.held.items():
                if held.is_main:
                    parameter.copy_(held.weight)

    def take_weights(self) -> None:
        """Take the weights of the host's share from the device, after they were set there."""
        with torch.no_grad():
            for parameter, held in self.held.items():
                held.weight.copy_(parameter)

    def release(self) -> None:
        """Free the device memory of the main weights that the host holds."""
        for parameter, held in self.held.items():
            if held.is_main:
                parameter.untyped_storage().resize_(0)

    def _allocate(self) -> None:
        for parameter, held in self.held.items():
            if held.is_main:
                parameter.untyped_storage().resize_(parameter.nbytes)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As torch's, which would move all moments to the device: those of the host are copied into its memory."""
        ids = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        places = dict(zip(parameters, ids, strict=True))
        own = {parameter: state_dict["state"][places[parameter]] for parameter in self.held}
        on_host = {places[parameter] for parameter in self.held}
        rest = {number: values for number, values in state_dict["state"].items() if number not in on_host}
        super().load_state_dict({**state_dict, "state": rest})
        for parameter, values in own.items():
            held = self.held[parameter]
            held.exp_avg.copy_(values["exp_avg"])
            held.exp_avg_sq.copy_(values["exp_avg_sq"])
            step = torch.tensor(float(values["step"]))
            own[parameter] = {"step": step, "exp_avg": held.exp_avg, "exp_avg_sq": held.exp_avg_sq}
        self.state = defaultdict(dict, {p: own.get(p) or self.state[p] for p in parameters})


def _page_lock(block: Tensor, owner: object) -> None:
    """Let a GPU copy the block at full speed, as long as its owner lives.

    Registered with CUDA rather than allocated by torch, which rounds pinned memory up to a power of two.
    """
    runtime: Any = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0))
    if code:
        raise RuntimeError(
            f"optimizer.cpu_offload_fraction: wanted {block.nbytes / 2**30:.1f} GiB of pinned host memory, got CUDA "
            f"error {code}; give the machine more memory, or lower the fraction"
        )
    weakref.finalize(owner, runtime.cudaHostUnregister, block.data_ptr())
