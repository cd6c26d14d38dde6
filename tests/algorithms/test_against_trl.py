"""Our GAE, whitening, losses and KL penalty against TRL's on random batches.

TRL keeps its PPO in one long method. Its statements are read from the installed file and run as they stand, without
importing the package, which would bring transformers' Trainer along.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from relax_lightning.algorithms.gae import compute_gae
from relax_lightning.algorithms.kl import estimate_kl
from relax_lightning.algorithms.losses import policy_loss, value_loss
from relax_lightning.algorithms.statistics import whiten
from relax_lightning.algorithms.token_rewards import token_rewards

FUNCTIONS = ("masked_mean", "masked_var", "masked_whiten")
REWARDS = ("logr", "kl", "non_score_reward", "rewards", "actual_start", "actual_end")
ADVANTAGES = ("lastgaelam", "advantages_reversed", "gen_length", "advantages", "returns")
LOSSES = (
    "vpredclipped", "vf_losses1", "vf_losses2", "vf_loss_max", "vf_loss", "vf_clipfrac",
    "logprobs_diff", "ratio", "pg_losses", "pg_losses2", "pg_loss_max", "pg_loss", "pg_clipfrac",
)  # fmt: skip


class TRL:
    """Parts of TRL's PPO by the names that they assign."""

    def __init__(self) -> None:
        spec = find_spec("trl")
        assert spec is not None and spec.origin is not None
        tree = ast.parse((Path(spec.origin).parent / "experimental/ppo/ppo_trainer.py").read_text())
        found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in FUNCTIONS]
        assert len(found) == len(FUNCTIONS)
        self._names: dict[str, Any] = {"torch": torch}
        exec(compile(ast.Module(found, []), "trl", "exec"), self._names)
        trainer = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "PPOTrainer")
        self._train = next(n for n in trainer.body if isinstance(n, ast.FunctionDef) and n.name == "train")

    def run(self, assigned: tuple[str, ...], first_line: str, **names: Any) -> dict[str, Any]:
        """Run the statements that assign these names, from the block that holds `first_line` on, in order."""
        blocks = [n for n in ast.walk(self._train) if isinstance(getattr(n, "body", None), list)]
        (block,) = [b.body for b in blocks if any(ast.unparse(s) == first_line for s in b.body)]
        start = next(n for n, s in enumerate(block) if ast.unparse(s) == first_line)
        wanted = []
        for statement in block[start:]:
            # `with torch.no_grad()` holds a metric of the losses.
            inner = statement.body if isinstance(statement, ast.With) else [statement]
            wanted += [s for s in inner if _assigns(s, assigned)]
        space = {**self._names, **names}
        exec(compile(ast.Module(wanted, []), "trl", "exec"), space)
        return space


def _assigns(statement: ast.stmt, names: tuple[str, ...]) -> bool:
    if isinstance(statement, ast.For):
        return any(_assigns(s, names) for s in statement.body)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Name) and target.id in names


@pytest.fixture(scope="module")
def trl() -> TRL:
    return TRL()


def batch(seed: int) -> tuple[torch.Generator, torch.Tensor, torch.Tensor]:
    """A generator, right-padded lengths of at least 1, and their mask."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 20, (9,), generator=draw)
    lengths[0] = 19
    return draw, lengths, torch.arange(19) < lengths[:, None]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.97, 0.8), (1.0, 1.0)])
def test_gae_and_whitening(trl: TRL, seed: int, gamma: float, lam: float) -> None:
    draw, _, mask = batch(seed)
    rewards, values = torch.randn(2, *mask.shape, generator=draw, dtype=torch.float64) * mask
    theirs = trl.run(
        ADVANTAGES, "lastgaelam = 0", rewards=rewards, values=values, responses=values, padding_mask=~mask,
        args=SimpleNamespace(gamma=gamma, lam=lam),
    )  # fmt: skip
    advantages, returns = compute_gae(rewards, values, mask, gamma=gamma, lambd=lam)
    torch.testing.assert_close(returns, theirs["returns"] * mask)
    torch.testing.assert_close(whiten(advantages, mask), theirs["advantages"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("margin", [0.1, 0.2, 0.5])
def test_losses_and_their_gradients(trl: TRL, seed: int, margin: float) -> None:
    draw, _, mask = batch(seed)
    old, values, advantages, returns, new, predicted = torch.randn(
        6, *mask.shape, generator=draw, dtype=torch.float64
    )
    new, predicted = (old + 0.3 * new).requires_grad_(), (values + 0.3 * predicted).requires_grad_()
    arguments = SimpleNamespace(cliprange_value=margin, cliprange=margin)
    theirs = trl.run(
        LOSSES, "vpredclipped = torch.clamp(vpred, mb_values - args.cliprange_value, mb_values + args.cliprange_value)",
        vpred=predicted, mb_values=values, mb_return=returns, new_logprobs=new, mb_logprobs=old,
        mb_advantage=advantages,
        padding_mask=~mask, padding_mask_p1=~mask, micro_batch_inds=torch.arange(len(mask)), args=arguments,
    )  # fmt: skip
    pg_loss, pg = policy_loss(new, old, advantages, mask, eps_clip=margin)
    vf_loss, vf = value_loss(predicted, values, returns, mask, value_clip=margin)
    assert 0 < pg["pg_clipfrac"] < 1 and 0 < vf["value_clipfrac"] < 1
    for ours, name in ((pg_loss, "pg_loss"), (vf_loss, "vf_loss")):
        torch.testing.assert_close(ours, theirs[name])
    torch.testing.assert_close(pg["pg_clipfrac"], theirs["pg_clipfrac"], check_dtype=False)
    torch.testing.assert_close(vf["value_clipfrac"], theirs["vf_clipfrac"], check_dtype=False)
    inputs = (new, predicted)
    expected = torch.autograd.grad(theirs["pg_loss"] + theirs["vf_loss"], inputs)
    torch.testing.assert_close(torch.autograd.grad(pg_loss + vf_loss, inputs), expected)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_rewards_with_kl(trl: TRL, estimator: str) -> None:
    draw, lengths, mask = batch(7)
    log_probs, ref_log_probs = torch.randn(2, *mask.shape, generator=draw)
    scores = torch.randn(len(mask), generator=draw)
    # They put the score one token behind the last one of a response that ended; told of its last token, where ours is.
    theirs = trl.run(
        REWARDS, "logr = ref_logprobs - logprobs", logprobs=log_probs * mask, ref_logprobs=ref_log_probs * mask,
        scores=scores, sequence_lengths_p1=lengths - 1, sequence_lengths=lengths - 1,
        args=SimpleNamespace(kl_estimator=estimator, kl_coef=0.1, whiten_rewards=False),
    )  # fmt: skip
    kl = estimate_kl(log_probs, ref_log_probs, mask, estimator=estimator)
    torch.testing.assert_close(token_rewards(scores, mask, kl=kl, kl_coef=0.1), theirs["rewards"])
