"""The sample store of one process, and what the advantages side makes of it."""

import pytest
import torch

from relax_lightning.config import AlgorithmConfig
from relax_lightning.data.advantages import AdvantagesDataModule
from relax_lightning.data.store import LocalStore
from relax_lightning.ppo.batch import Rollouts

VALUES = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_columns_come_back_whole_in_any_order_and_once():
    store = LocalStore()
    store.put("a", range(2), {"values": VALUES})
    assert store.get("a", range(2), ["values"], reader="x")["values"] is VALUES
    store.put("a", [4, 3], {"values": torch.tensor([[5.0, 6.0, 7.0], [8.0, 0.0, 0.0]])})
    got = store.get("a", [3, 0, 4], ["values"], reader="y")["values"]
    assert got.tolist() == [[8.0, 0.0, 0.0], [1.0, 2.0, 0.0], [5.0, 6.0, 7.0]]
    with pytest.raises(ValueError, match=r"a: x has read the column values of rows 0, 1 before"):
        store.get("a", range(2), ["values"], reader="x")
    with pytest.raises(ValueError, match=r"a: wanted new rows of the column values, got 1, 3 again"):
        store.put("a", [1, 3, 9], {"values": torch.zeros(3, 2)})
    with pytest.raises(
        RuntimeError, match=r"x wanted columns that nobody wrote: values \(rows 9\), gone \(no row\)"
    ):
        store.get("a", [3, 9], ["values", "gone"], reader="x")


def test_what_does_not_fit_is_refused_and_what_is_cleared_is_gone():
    store = LocalStore()
    with pytest.raises(ValueError, match=r"a: wanted 3 rows of the column values, got 2"):
        store.put("a", range(3), {"values": VALUES})
    with pytest.raises(ValueError, match=r"a: wanted 1 rows of the column values, got none"):
        store.put("a", [0], {"values": torch.tensor(1.0)})
    store.put("a", range(2), {"values": VALUES})
    store.put("b", range(2), {"values": VALUES})
    store.clear("a")
    store.clear("never there")
    with pytest.raises(RuntimeError, match=r"a: x wanted columns that nobody wrote: values \(no row\)"):
        store.get("a", range(2), ["values"], reader="x")
    store.put("a", range(2), {"values": VALUES})
    assert torch.equal(store.get("b", [1], ["values"], reader="x")["values"], VALUES[1:])


def test_the_advantages_side_writes_computes_and_clears():
    """By hand: V = .5 .4 .3 .2, r = 0 0 0 1, gamma 1, lambda .95: advantages .40065 .527 .66 .8."""
    rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    values = torch.tensor([[0.5, 0.4, 0.3, 0.2]])
    rollouts = Rollouts(
        sample_ids=torch.tensor([7]),
        prompt_tokens=torch.tensor([[1, 2]]),
        prompt_lengths=torch.tensor([2]),
        response_tokens=torch.tensor([[3, 4, 5, 6]]),
        response_lengths=torch.tensor([4]),
        response_mask=torch.ones(1, 4, dtype=torch.bool),
        rollout_log_probs=torch.full((1, 4), -1.0),
        rewards=torch.tensor([1.0]),
        finish_reasons=("stop",),
        prompts=("",),
        responses=("",),
        labels=(None,),
        temperature=1.0,
        weight_version=1,
    )
    module, store = AdvantagesDataModule(), LocalStore()
    from relax_lightning.data.experience import LocalAdvantages

    module.connect(store, LocalAdvantages(store))
    for iteration in (1, 2):
        experience, metrics = module.compute(
            rollouts, values, None, AlgorithmConfig(lambd=0.95), rewards=rewards, iteration=iteration
        )
        assert experience.advantages[0].tolist() == pytest.approx([0.40065, 0.527, 0.66, 0.8])
        assert experience.returns[0].tolist() == pytest.approx([0.90065, 0.927, 0.96, 1.0])
        assert experience.old_log_probs is rollouts.rollout_log_probs
        assert metrics["values/mean"] == pytest.approx(0.35)
    assert store.get("iteration 2", [0], ["values"], reader="test")["values"] is values
    with pytest.raises(RuntimeError, match="nobody wrote"):
        store.get("iteration 1", [0], ["values"], reader="test")
