"""What does not fit is said before anything is built: the engine's fraction, a phase, the checkpoints."""

import shutil
from collections import namedtuple

import pytest

from relax_lightning.config import load, resolve
from relax_lightning.plan import check
from relax_lightning.plan.footprint import memory_plan

GIB = 2**30
EIGHT_BILLION = (
    "{num_layers: 36, hidden_size: 4096, ffn_hidden_size: 12288, num_attention_heads: 32, num_query_groups: 8, "
    "kv_channels: 128, vocab_size: 151936, max_position_embeddings: 40960, qk_layernorm: true}"
)


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Key and message of what is found for Qwen3-8B on eight GPUs, without what is not available yet."""
    monkeypatch.chdir(tmp_path)

    def run(*changes, gib=80, **options):
        base = [
            "trainer.max_steps=10",
            f"model.actor.architecture={EIGHT_BILLION}",
            "model.actor.tokenizer=a.B",
            "model.actor.parallel.tensor=8",
            "data.rollout.train={path: x.jsonl, max_prompt_tokens: 1024}",
            "data.rollout.batch_size=8",
            "data.rollout.reward=exact_match",
            "data.rollout.engine={class_path: SGLangEngine, init_args: {tensor_parallel_size: 8}}",
            "cluster={}",
        ]
        options = {"check_files": False, "subcommand": "plan"} | options
        problems = check(load([], [*base, *changes]), gpu_memory=gib * GIB, **options)
        return {p.key: p.message for p in problems if "not available in this version" not in p.message}

    return run


FRACTION = "data.rollout.engine.init_args.mem_fraction_static"


def test_a_fraction_that_does_not_fit_beside_what_stays(found):
    assert found(f"{FRACTION}=0.5") == {}
    stays = found(f"{FRACTION}=0.85", "strategy.offload=never")
    assert FRACTION in stays
    assert stays[FRACTION].startswith("wanted at most 0.")
    # 18 bytes a parameter of each role, an eighth of it on each GPU.
    assert "beside the 3" in stays[FRACTION] and "got 0.85; lower it, or let more leave" in stays[FRACTION]
    # With everything else gone the same fraction fits.
    assert found(f"{FRACTION}=0.85", "strategy.offload=always") == {}


def test_a_fraction_below_the_weights(found):
    message = found(f"{FRACTION}=0.01")[FRACTION]
    assert message.startswith("wanted a fraction above 0.02")
    assert "which the weights alone take, got 0.01" in message


def test_a_phase_that_does_not_fit_at_all(found):
    message = found(gib=12)["model"]
    assert message.startswith("wanted at most 10.5 GiB a GPU, got ")
    assert "GiB in the " in message


def test_no_room_on_the_disk(found, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 100 * GIB))
    changes = ["cluster.accelerator=cpu", "callbacks.checkpoint.keep_last=1"]
    found_here = found(*changes, check_files=True)
    # Weights and three states of four bytes each in float32, of twice 8.2 billion parameters; two of them.
    assert found_here["model.actor.save"].startswith("wanted 4")
    assert "for 2 checkpoints of 2" in found_here["model.actor.save"]
    assert "got 100.0 GiB" in found_here["model.actor.save"]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 3 * 2**20))
    assert "got 3.0 MiB" in found(*changes, check_files=True)["model.actor.save"]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 100 * GIB))
    apart = found(*changes, "model.critic.save=elsewhere", check_files=True)
    assert "wanted 4" in apart["model.actor.save"]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 1000 * GIB))
    assert "model.actor.save" not in found(*changes, check_files=True)


def planned(*changes):
    base = [
        f"model.actor.architecture={EIGHT_BILLION.replace('36', '4')}",
        "model.actor.tokenizer=a.B",
        "trainer.max_steps=10",
        "data.rollout.train={path: x.jsonl}",
        "data.rollout.batch_size=8",
        "data.rollout.reward=exact_match",
        "data.rollout.engine.class_path=SGLangEngine",
    ]
    plan = memory_plan(resolve(load([], [*base, *changes])), check_files=False, gpu_memory=139 * GIB)
    assert plan is not None
    return plan


def test_torch_keeps_what_a_phase_worked_with_while_nothing_leaves():
    stays, leaves = planned(), planned("strategy.offload=always")
    assert all(not phase.leaves for phase in stays.phases)
    assert set(stays.predicted.values()) == {max(phase.total for phase in stays.phases) + stays.contexts}
    assert leaves.predicted == {phase.phase: phase.total + leaves.contexts for phase in leaves.phases}


def test_prompts_without_a_bound_leave_room_to_train():
    """Of the sizes of 2,048 tokens and the response, not an engine that takes the whole GPU."""
    assumed, given = planned(), planned("data.rollout.train.max_prompt_tokens=2048")
    assert assumed.phases == given.phases and "2,048 tokens" in assumed.note and "2,048" not in given.note
    assert planned("data.rollout.train.max_prompt_tokens=1024").phases != given.phases
