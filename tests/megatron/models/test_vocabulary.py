"""Rows that stand for no token have no part in what the policy says, against the same numbers without these rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_lightning.megatron.hugging_face import hugging_face_tensors
from relax_lightning.megatron.models.fused import MIN_ROWS, log_probs_and_entropy
from tests.conftest import actor_of

pytestmark = pytest.mark.usefixtures("process_group")
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
ABSENT = (0, 41, 42, 90, 94, 95)
TEMPERATURE = 0.7


@pytest.mark.parametrize(
    ("device", "dtype", "tolerance"),
    [
        ("cpu", torch.float32, 1e-6),
        pytest.param("cuda", torch.float32, 1e-6, marks=[pytest.mark.gpu, NO_GPU]),
        pytest.param("cuda", torch.bfloat16, 0.02, marks=[pytest.mark.gpu, NO_GPU]),
    ],
)
def test_log_probs_entropy_and_gradient_are_those_of_the_other_rows(
    device: str, dtype: torch.dtype, tolerance: float, tiny_model: Callable[[str], Path]
) -> None:
    model: Any = actor_of(tiny_model("llama")).model.to(device, dtype)
    exported = {name: tensor.clone() for name, tensor in hugging_face_tensors(model)}
    model.leave_out(ABSENT)
    draw = torch.Generator().manual_seed(3)
    # Enough for the compiled path where there is one.
    hidden = torch.randn(MIN_ROWS, 1, 64, generator=draw).to(device, dtype)
    kept = torch.tensor([row for row in range(96) if row not in ABSENT], device=device)
    targets = torch.randint(0, len(kept), (MIN_ROWS,), generator=draw).to(device)
    weight = model.output_layer.weight
    log_probs, entropy = log_probs_and_entropy(model.logits(hidden), kept[targets], TEMPERATURE)
    (log_probs.sum() + 0.3 * entropy.sum()).backward()

    alone = weight.detach().double()[kept].requires_grad_()
    wanted = (hidden.squeeze(1).double() @ alone.T / TEMPERATURE).log_softmax(-1)
    of_targets, wanted_entropy = (
        wanted.gather(1, targets[:, None]).squeeze(1),
        -(wanted.exp() * wanted).sum(-1),
    )
    (of_targets.sum() + 0.3 * wanted_entropy.sum()).backward()
    scale = float(wanted.detach().abs().max())
    assert (log_probs - of_targets).abs().max() < tolerance * scale
    assert (entropy - wanted_entropy).abs().max() < tolerance * scale
    gradient = weight.grad if weight.grad is not None else weight.main_grad
    assert not gradient[list(ABSENT)].any()
    assert (gradient[kept] - alone.grad).norm() < 10 * tolerance * alone.grad.norm()

    # What is published and exported stays whole, and all rows can be taken back.
    assert all(torch.equal(tensor, exported[name]) for name, tensor in hugging_face_tensors(model))
    with torch.no_grad():
        assert (model.whole_logits(hidden)[:, list(ABSENT)] < -1e8).all()
        model.leave_out(())
        assert (model.whole_logits(hidden) > -1e8).all()
