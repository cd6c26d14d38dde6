"""Whole runs in which everything leaves that a phase does not use: the same run, bit for bit."""

from functools import partial

import pytest
import torch

from relax_lightning.megatron.reference import Reference
from relax_lightning.run.host_memory import bytes_of
from relax_lightning.strategies import colocate
from relax_lightning.strategies.pool import GpuPool
from tests.training.test_resume import untimed

KEYS = (
    "trainer.max_steps=3",
    "trainer.val_check_interval=2",
    "trainer.val_before_training=true",
    "data.rollout.validation={mine: {class_path: relax_lightning.data.digits.ReversedDigits,"
    " init_args: {size: 5, seed: 3}}}",
    "callbacks.critic_only_warmup={num_steps: 1}",
    "callbacks.checkpoint={every_n_steps: 1}",
    "model.reference={}",
    "model.algorithm.kl_coef=0.1",
)


@pytest.mark.parametrize("engine", ["MegatronEngine", "copying_engine.CopyingEngine"])
def test_a_run_whose_every_phase_is_alone_is_the_same(fit, recorder, tmp_path, monkeypatch, engine):
    keys = (*KEYS, f"data.rollout.engine.class_path={engine}")
    plain = fit(tmp_path / "plain", *keys)
    monkeypatch.setattr(colocate, "GpuPool", partial(GpuPool, "always"))
    moved = fit(tmp_path / "moved", *keys)
    assert plain.status == moved.status == 0
    assert untimed(moved.metrics) == untimed(plain.metrics) and len(plain.metrics) == 3
    assert moved.validations == plain.validations and len(plain.validations) == 2
    assert recorder.differing(plain.states[3], moved.states[3]) == []
    again = fit(tmp_path / "moved", *keys, "trainer.max_steps=4", ckpt_path="auto")
    assert sorted(again.metrics) == [4]
    # It was offloaded in earnest: whose turn it is not has no memory.
    roles = (again.module.actor, again.module.critic)
    assert any(not p.untyped_storage().nbytes() for role in roles for p in role.model.parameters())


def test_the_references_copies_lie_on_the_host(tiny_actor):
    with torch.device("meta"):  # the Trainer builds models under the device's own
        reference = Reference(tiny_actor)
    weights = tiny_actor.tensors("weights")
    pairs = list(reference._weights.places(map(bytes_of, weights)))
    assert all(copy.device.type == "cpu" and torch.equal(copy, weight) for copy, weight in pairs)
    # What the plan says: once, and again only once the actor's own have to make way.
    size = sum(weight.nbytes for weight in weights)
    assert size <= reference._weights.size < size + 2**20 and reference._own.size == 0
