"""The one shape check at the door of every pure function."""

from __future__ import annotations

import torch
from torch import Tensor


def check_shapes(mask: Tensor, **tensors: Tensor | None) -> None:
    """Require a boolean [batch, response] mask and tensors of its shape.

    Args:
        mask: [batch, response] bool.
        tensors: By name; None is skipped.

    Raises:
        ValueError: The mask is not boolean or not two-dimensional, or a tensor has another shape.
    """
    if mask.dtype != torch.bool or mask.dim() != 2:
        raise ValueError(f"mask must be bool [batch, response], got {mask.dtype} {list(mask.shape)}")
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != mask.shape:
            raise ValueError(
                f"{name} must have the shape of mask, [batch, response] = {list(mask.shape)}, got {list(tensor.shape)}"
            )


def at_least_float32(*tensors: Tensor) -> torch.dtype:
    """The dtype to compute in: float64 when any tensor has it, else float32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
