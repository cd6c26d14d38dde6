"""The judge of float32: the same model in float64, one sample at a time, nothing packed, padded or cached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from relax_lightning.config import ParallelConfig
from relax_lightning.megatron.models.heads import CriticOutputs, PolicyOutputs
from relax_lightning.megatron.models.layout import SequenceLayout
from relax_lightning.megatron.models.model import PolicyModel, ValueHead, build_model, transformer_config
from relax_lightning.megatron.role import Critic, MegatronRole
from relax_lightning.ppo.batch import Rollouts

ROUNDINGS = 8
"""How often the nudge's effect float32 may be off: kernels from SSE to AVX-512 were at 1.5 to 3.3 times."""
_EPS = torch.finfo(torch.float32).eps


def judge_of(role: MegatronRole) -> PolicyModel:
    """The role's model in float64, with the weights that it has now."""
    head = "zero" if isinstance(role, Critic) else None
    config = transformer_config(role.architecture, ParallelConfig(), torch.float64, None)
    model = build_model(role.architecture, config, role.groups, torch.device("cpu"), head_init=head)
    model.load_state_dict(role.model.state_dict())
    model.leave_out(role.model._left_out.tolist())
    return model.eval()


def logits_of(judge: PolicyModel, tokens: Tensor) -> Tensor:
    """[tokens, vocabulary] float64 of one sequence; of a critic its values, [tokens, 1]."""
    hidden, head = judge(tokens, SequenceLayout(lengths=(len(tokens),))), judge.output_layer
    if isinstance(head, ValueHead):  # which computes in float32 by itself
        return F.linear(hidden.squeeze(1), head.weight, head.bias)
    return judge.logits(hidden)


def nudge(judge: PolicyModel) -> PolicyModel:
    """Move every weight by up to a float32 rounding, in place: what moves with it no float32 kernel can know better."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in judge.parameters():
            weight.mul_(1 + _EPS * (2 * torch.rand(weight.shape, generator=draw, dtype=weight.dtype) - 1))
    return judge


def assert_rounded(found: Tensor, exact: Tensor, nudged: Tensor) -> None:
    """`found`, by float32, is off from the judge's by no more than rounding of weights and of itself, all together."""
    assert (found - exact).norm() <= ROUNDINGS * ((nudged - exact).norm() + _EPS * exact.norm())


def exact_outputs(
    judge: PolicyModel, rollouts: Rollouts, temperature: float
) -> PolicyOutputs | CriticOutputs:
    """What the role's head gives of all samples, [batch, response] float64 with gradient."""
    columns: list[tuple[Tensor, Tensor]] = []
    for outputs, response in _responses(judge, rollouts):
        if isinstance(judge.output_layer, ValueHead):
            columns.append((outputs[:, 0], outputs[:, 0]))
            continue
        log_probs = torch.log_softmax(outputs / temperature, -1)
        columns.append(
            (log_probs.gather(-1, response[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1))
        )
    first, second = (_padded(column, rollouts) for column in zip(*columns, strict=True))
    return (
        CriticOutputs(first, None)
        if isinstance(judge.output_layer, ValueHead)
        else PolicyOutputs(first, second)
    )


def _responses(judge: PolicyModel, rollouts: Rollouts) -> Iterator[tuple[Tensor, Tensor]]:
    """What the judge says before each response token, [response, outputs], and the tokens, of every sample."""
    for row, (p, r) in enumerate(zip(rollouts.prompt_lengths, rollouts.response_lengths, strict=True)):
        prompt, response = rollouts.prompt_tokens[row, :p], rollouts.response_tokens[row, :r]
        yield logits_of(judge, torch.cat([prompt, response]))[p - 1 : p - 1 + r], response


def _padded(column: Sequence[Tensor], rollouts: Rollouts) -> Tensor:
    width = rollouts.response_tokens.shape[1]
    return torch.stack([F.pad(x, (0, width - len(x))) for x in column])
