"""The three records that travel through an iteration: prompts, rollouts, experience.

Shapes are written outermost first. `batch` counts samples (prompts x samples a prompt), `prompt` and `response` are the
longest prompt and response of the record; shorter ones are padded on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Prompts:
    """What one iteration starts from: `batch_size` prompts, each still to be sampled n times."""

    ids: tuple[int, ...]
    """Position of each prompt in its data set."""
    token_ids: tuple[tuple[int, ...], ...]
    """Tokens of each prompt, chat template applied."""
    texts: tuple[str, ...]
    """The prompts as text, for rewards and sample tables."""
    labels: tuple[Any, ...]
    """What the reward compares with; None where the data has none."""
    metadata: tuple[dict[str, Any], ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Rollouts:
    """What the rollout engine and the reward made of the prompts. Tensors only where a role computes with them."""

    sample_ids: Tensor
    """[batch] int64: global id of each sample within the iteration."""
    prompt_tokens: Tensor
    """[batch, prompt] int64."""
    prompt_lengths: Tensor
    """[batch] int64."""
    response_tokens: Tensor
    """[batch, response] int64."""
    response_lengths: Tensor
    """[batch] int64, 0 allowed."""
    response_mask: Tensor
    """[batch, response] bool: True on tokens the policy generated and may learn from."""
    rollout_log_probs: Tensor
    """[batch, response] float32: the engine's log-probs at the sampling temperature; 0 where masked."""
    rewards: Tensor
    """[batch] float32: one scalar a sample."""
    finish_reasons: tuple[str, ...]
    """`stop` or `length`, one a sample."""
    prompts: tuple[str, ...]
    responses: tuple[str, ...]
    labels: tuple[Any, ...]
    temperature: float
    """The sampling temperature, which every log-prob of this record is taken at."""
    weight_version: int
    """Number of publications the engine had received when it generated."""

    def __len__(self) -> int:
        return int(self.sample_ids.shape[0])

    @property
    def truncated(self) -> Tensor:
        """[batch] bool: True where the response ended for length, not of itself."""
        import torch

        return torch.tensor([reason == "length" for reason in self.finish_reasons], dtype=torch.bool)

    def select(self, rows: Sequence[int] | Tensor) -> Rollouts:
        """The given samples, in the given order, padding unchanged."""
        return _select(self, rows)


@dataclass(frozen=True)
class Experience:
    """Rollouts with everything the updates learn from."""

    rollouts: Rollouts
    values: Tensor
    """[batch, response] float32: V_t, the critic's output at the state before token t, before the update."""
    advantages: Tensor
    """[batch, response] float32: whitened when asked; 0 where masked."""
    returns: Tensor
    """[batch, response] float32: advantages before whitening + values; 0 where masked."""
    old_log_probs: Tensor
    """[batch, response] float32: log-probs of the policy before the update."""
    ref_log_probs: Tensor | None = None
    """[batch, response] float32: log-probs of the reference model; None where no KL term needs them."""

    def __len__(self) -> int:
        return len(self.rollouts)

    def select(self, rows: Sequence[int] | Tensor) -> Experience:
        """The given samples, in the given order, padding unchanged."""
        return _select(self, rows)


def _select(record: Any, rows: Sequence[int] | torch.Tensor) -> Any:
    import torch

    index = torch.as_tensor(rows, dtype=torch.int64)

    def pick(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value[index.to(value.device)]
        if isinstance(value, tuple):
            return tuple(value[i] for i in index.tolist())
        return value.select(rows) if isinstance(value, Rollouts) else value

    return type(record)(**{f.name: pick(getattr(record, f.name)) for f in fields(record)})
