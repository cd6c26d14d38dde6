"""Placement and cutting: what cannot be gets one sentence, and the sizes of what can are right."""

import pytest

from relax_lightning.config import load, resolve
from relax_lightning.plan import check, machine
from relax_lightning.plan.topology import data_parallel_size, ranks

SIZES = (
    "{num_layers: 6, hidden_size: 64, ffn_hidden_size: 192, num_attention_heads: 8, num_query_groups: 4, "
    "vocab_size: 100, max_position_embeddings: 600}"
)
FOUR = "{actor: [1, 4], critic: [1, 4], rollout: [1, 4], advantages: [1, 0]}"


@pytest.fixture
def found():
    """The lines of a scratch model on four ranks with changes, `fit`'s refusals of what is not built yet left out."""

    def run(*changes, cluster=FOUR, subcommand="plan", **options):
        base = [
            "trainer.max_steps=10",
            f"model.actor.architecture={SIZES}",
            "model.actor.tokenizer=a.B",
            "data.rollout.train.path=x.jsonl",
            "data.rollout.batch_size=8",
            "data.rollout.reward=exact_match",
            *([] if cluster is None else ["cluster.accelerator=cpu", f"cluster.resources={cluster}"]),
        ]
        options = {"check_files": False} | options
        problems = check(load([], [*base, *changes]), subcommand=subcommand, **options)
        return [str(p) for p in problems if "not available in this version" not in p.message]

    return run


CASES = [
    (
        ["model.actor.parallel.tensor=3"],
        "model.actor.parallel: wanted tensor * pipeline * context to divide the actor's 4 ranks, got 3 * 1 * 1; "
        "change one, or cluster.resources",
    ),
    (
        ["model.actor.parallel={tensor: 4, pipeline: 2}"],
        "model.actor.parallel: wanted tensor * pipeline * context to divide the actor's 4 ranks, got 4 * 2 * 1; "
        "change one, or cluster.resources",
    ),
    (
        ["model.actor.parallel.pipeline=4"],
        "model.actor.parallel.pipeline: wanted a divisor of the model's 6 layers, got 4; change it",
    ),
    (
        ["model.global_batch_size=2"],
        "model.global_batch_size: wanted a multiple of the actor's 4 data-parallel ranks = 4, got 2; "
        "change one of them",
    ),
    (
        ["model.micro_batch_size=4"],
        "model.global_batch_size: wanted a multiple of the actor's 4 data-parallel ranks * micro_batch_size 4 = 16, "
        "got 8; change one of them",
    ),
    (
        ["data.rollout.engine={class_path: SGLangEngine, init_args: {tensor_parallel_size: 3}}"],
        "data.rollout.engine.init_args.tensor_parallel_size: wanted a divisor of the rollout's 4 GPUs, got 3; "
        "change it or cluster.resources",
    ),
    (
        ["cluster.colocate=false"],
        "cluster.colocate: wanted true, got false; synchronous colocate is what is supported; leave it out",
    ),
    (
        ["cluster.address=ray:/foo"],
        "cluster.address: wanted auto, HOST:PORT or ray://HOST:PORT, got 'ray:/foo'; change it, or leave it out to "
        "start a cluster here",
    ),
    (
        ["cluster.resources.rollout=[1, 2]"],
        "cluster.resources: wanted one shape for actor, critic and rollout, got actor [1, 4], critic [1, 4], "
        "rollout [1, 2]; roles that take turns on the same GPUs need the same shape; make them equal",
    ),
]


@pytest.mark.parametrize(("changes", "line"), CASES)
def test_one_sentence_for_what_cannot_be(found, changes, line):
    assert found(*changes) == [line]


def test_heads_groups_and_columns_are_cut_evenly_and_the_vocabulary_is_padded(found):
    eight = FOUR.replace("4", "8")
    # The 100 rows of the embedding are none of 8's multiples either.
    (line,) = found("model.actor.parallel.tensor=8", cluster=eight)
    assert line.startswith(
        "model.actor.parallel.tensor: wanted a divisor of the model's 4 key/value heads, got 8"
    )
    assert found("model.actor.parallel.tensor=2") == []
    # The critic's own cut is looked at by itself.
    (line,) = found("model.critic.parallel.pipeline=4")
    assert line.startswith("model.critic.parallel.pipeline: wanted a divisor of the model's 6 layers")


def test_missing_roles_are_named_with_an_example(found):
    lines = found(cluster="{actor: [1, 4], rollout: [1, 4]}")
    assert lines == [
        "cluster.resources: wanted the role critic, got none; add critic: [1, 8]",
        "cluster.resources: wanted the role advantages, got none; add advantages: [1, 0]",
    ]


def test_one_process_is_never_cut(found):
    (line,) = found("model.actor.parallel.tensor=2", cluster=None)
    assert line == (
        "model.actor.parallel.tensor: wanted 1 without a cluster, got 2; one process is all there is; add a cluster, "
        "or start ranks with torchrun"
    )


def test_a_launched_rank_is_one_of_its_job(found, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert found("model.actor.parallel.tensor=2", cluster=None) == []
    (line,) = found("model.actor.parallel.tensor=3", cluster=None)
    assert "wanted tensor * pipeline * context to divide the actor's 4 ranks, got 3 * 1 * 1" in line


def test_a_gpu_recipe_on_a_machine_without_gpus(found, monkeypatch):
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    lines = found("cluster.accelerator=gpu", check_files=True)
    assert [line for line in lines if "machine" in line] == [
        "cluster.resources: wanted at most 0 GPUs, all that this machine has, got 4; run it on a machine that has "
        "them, give cluster.address, or set cluster.accelerator: cpu",
    ]


def test_visible_gpus_are_counted_as_cuda_does(monkeypatch):
    monkeypatch.setattr(machine, "device_files", lambda: 4)
    for visible, number in {None: 4, "": 0, "0,2": 2, "-1": 0, "1,-1,2": 1, "0,1,2,3,4,5": 4}.items():
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machine.count_gpus() == number, visible


def test_sizes():
    changes = ["cluster.accelerator=cpu", f"cluster.resources={FOUR}", "model.actor.parallel.tensor=2"]
    base = ["data.rollout.train.path=x", "data.rollout.batch_size=8", "data.rollout.reward=exact_match"]
    config = resolve(load([], [*base, *changes, "model.critic.parallel={tensor: 1, pipeline: 2}"]))
    assert [ranks(config, role) for role in ("actor", "critic", "rollout", "advantages")] == [4, 4, 4, 0]
    assert (data_parallel_size(config, "actor"), data_parallel_size(config, "critic")) == (2, 2)
    assert data_parallel_size(resolve(load([], base)), "actor") == 1


def test_a_cluster_of_no_roles_is_answered_with_those_that_are_missing(found):
    lines = found("cluster.accelerator=gpu", cluster="{}", check_files=True)
    assert sum(line.startswith("cluster.resources: wanted the role ") for line in lines) == 4
