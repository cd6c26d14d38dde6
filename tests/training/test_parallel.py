"""The same run on several ranks: what it learns, says, saves and exports does not depend on how the models are cut."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from relax_lightning.algorithms.gae import compute_gae
from relax_lightning.algorithms.statistics import whiten
from relax_lightning.algorithms.token_rewards import token_rewards
from relax_lightning.config import OptimizerConfig, ParallelConfig
from relax_lightning.config.architecture import read_architecture
from relax_lightning.megatron.export import export_checkpoint
from relax_lightning.megatron.optimizer import inner_optimizers
from relax_lightning.megatron.role import Actor, Critic

KEYS = (
    "trainer.max_steps=3",
    "callbacks.checkpoint.save_last=true",
    "model.actor.architecture=null",
    "model.actor.optimizer.lr=0.001",
    "model.critic.head_init=normal",
    "model.max_tokens_per_microbatch=24",
)
WRITER = (("replay.RankWriter", {}),)
CUTS = {
    "tp": ("model.actor.parallel={tensor: 2}",),
    "tp-sp": (
        "model.actor.parallel={tensor: 2, sequence: true}",
        "model.actor.optimizer.cpu_offload_fraction=1.0",
    ),
    "pp": ("model.actor.parallel={pipeline: 2}",),
    "dp": ("model.actor.optimizer.cpu_offload_fraction=0.5",),
    "critic-alone": (
        "model.actor.parallel={tensor: 2}",
        "model.critic.parallel={tensor: 1}",
        "model.actor.optimizer.distributed=false",
        "model.critic.optimizer.distributed=false",
    ),
}
COMPARED = (
    "actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/value_loss", "critic/grad_norm",
    "advantages/std", "values/mean", "reward/mean",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 whose vocabulary two ranks do not divide."""
    import transformers

    folder = tmp_path_factory.mktemp("odd")
    config = transformers.Qwen3Config(
        vocab_size=15, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=16, initializer_range=0.2,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(5)
    transformers.Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def train(command: Any, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that trains a few iterations in a folder of its own, and gives that or what came of it."""
    root = tmp_path_factory.mktemp("parallel")

    def train(
        name: str,
        *overrides: str,
        engine: str = "Replay",
        ranks: int | None = 2,
        more: Any = (),
        ckpt_path: str | None = None,
        status: Any = (0, [0, 0]),
    ) -> Any:
        folder = root / name
        arguments = "{}" if engine in ("Sparse", "Broken") else f"{{folder: {root / 'kept'}}}"
        chosen = f"{{class_path: replay.{engine}, init_args: {arguments}}}"
        keys = (*KEYS, f"model.actor.hf_checkpoint={model}", f"data.rollout.engine={chosen}", *overrides)
        callbacks = (*WRITER, *more)
        got, log, ended = command(folder, *keys, callbacks=callbacks, ranks=ranks, ckpt_path=ckpt_path)
        assert got in status, log
        return folder if 0 in status else (folder, log, ended)

    return train


@pytest.fixture(scope="module")
def one(train: Any) -> Path:
    """The run in one process that all others are held against."""
    return train("one", engine="Recording", ranks=None)


def metrics_of(folder: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        found.setdefault(record["step"], {}).update(record["metrics"])
    return found


def seen(folder: Path, num_ranks: int) -> list[dict[str, Any]]:
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(num_ranks)]


def loaded(folder: Path, model: Path, *, distributed: bool = True) -> dict[str, Tensor]:
    """Weights and moments of both roles of a checkpoint, in one process."""
    found = {}
    for kind, more in ((Actor, {}), (Critic, {"head_init": "zero"})):
        name = kind.__name__.lower()
        role = kind(
            name, read_architecture(model), ParallelConfig(), OptimizerConfig(distributed=distributed), num_steps=1,
            dtype=torch.float32, device=torch.device("cpu"), **more,
        )  # fmt: skip
        role.load(folder / name)
        for inner in inner_optimizers(role.optimizer):
            moments = [values[key] for values in inner.state.values() for key in ("exp_avg", "exp_avg_sq")]
            found[f"{name}.moments"] = torch.cat([m.flatten() for m in moments])
        found |= {f"{name}.{parameter}": p.detach() for parameter, p in role.model.named_parameters()}
    return found


def assert_same_training(folder: Path, one: Path, model: Path, rel: float = 1e-5) -> None:
    ours, theirs = metrics_of(folder), metrics_of(one)
    for step in range(1, 4):
        for name in COMPARED:
            # A loss is a mean of terms of both signs: what is left of them rounds as they do, not as it.
            assert ours[step][name] == pytest.approx(theirs[step][name], rel=rel, abs=rel / 10), (step, name)
    last = "checkpoints/iter_0000003"
    distributed = folder.name != "critic-alone"
    here, there = loaded(folder / last, model, distributed=distributed), loaded(one / last, model)
    assert here.keys() == there.keys() and len(here) >= 40
    for name, tensor in there.items():
        pair = here[name], tensor
        if name.endswith(".moments") and not distributed:
            # The distributed optimizer has the parameters in another order.
            pair = tuple(moments.sort().values for moments in pair)
        assert (pair[0] - pair[1]).norm() <= rel * tensor.norm(), name


@pytest.mark.parametrize(
    "cut", ["tp-sp", *(pytest.param(cut, marks=pytest.mark.slow) for cut in CUTS if cut != "tp-sp")]
)
def test_two_ranks_learn_what_one_learns(
    cut: str, train: Any, one: Path, model: Path, tmp_path: Path, process_group: None
) -> None:
    folder = train(cut, *CUTS[cut])
    assert_same_training(folder, one, model)
    ranks = seen(folder, 2)
    original = load_file(model / "model.safetensors")
    for rank in ranks:
        assert all(torch.equal(rank["start"][name], tensor) for name, tensor in original.items())
        assert rank["start"].keys() == original.keys()
    heads = [head for rank in ranks for head in rank["heads"][-1:]]
    assert all(torch.equal(a, b) for head in heads for a, b in zip(head, heads[0], strict=True))
    assert_same_advantages(ranks)
    # What is exported is what would have been published, bit for bit.
    export_checkpoint(folder / "checkpoints/iter_0000003", tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert exported.keys() == original.keys()
    assert all(torch.equal(tensor, ranks[1]["end"][name]) for name, tensor in exported.items())
    assert not all(torch.equal(tensor, original[name]) for name, tensor in exported.items())


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("cut", CUTS)
def test_two_gpus_learn_what_one_learns_in_bfloat16(cut: str, train: Any, one: Path) -> None:
    half = ("model.dtype=bfloat16", "model.critic.head_init=zero")
    alone = one.parent / "bfloat16-one"
    if not alone.exists():
        train(alone.name, *half, ranks=None)
    ours, theirs = metrics_of(train(f"bfloat16-{cut}", *half, *CUTS[cut])), metrics_of(alone)
    for name in COMPARED:
        assert ours[1][name] == pytest.approx(theirs[1][name], rel=2e-2, abs=1e-3), name


ALGORITHM = (
    "model.reference={}",
    *(f"model.algorithm.{key}" for key in (
        "kl_coef=0.2", "kl_target=0.001", "kl_horizon=40", "old_log_probs=recompute", "importance_cap=3.0",
        "importance_level=sequence", "importance_mode=mask", "positive_nll_coef=0.1", "positive_nll_threshold=0.1",
        "loss_aggregation=sequence_mean", "eps_clip_c=3.0", "lambd_critic=1.0",
    )),
    "data.rollout.shaping={overlong_buffer_tokens: 2, missing_eos_penalty: 0.3, normalize: true, clip_max: 1.5}",
    "data.rollout.drop_equal_rewards=true",
)  # fmt: skip
TOLD = (
    "actor/positive_nll", "reference/kl_coef", "reference/kl_per_response", "importance/ratio_mean",
    "importance/effective_sample_fraction", "importance/masked_fraction", "shaping/running_mean",
    "shaping/running_std", "shaping/reward_mean", "filter/dropped_tokens_fraction",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["tp-sp", "dp"])
def test_every_option_is_of_all_samples(
    cut: str, train: Any, one: Path, model: Path, process_group: None
) -> None:
    alone = one.parent / "options-one"
    if not alone.exists():
        train(alone.name, *ALGORITHM, ranks=None)
    folder = train(f"options-{cut}", *ALGORITHM, *CUTS[cut])
    # Products of ratios over a response, of generations that are not the policy's own, carry rounding further.
    assert_same_training(folder, alone, model, rel=1e-4)
    ours, theirs = metrics_of(folder), metrics_of(alone)
    for step in (1, 2, 3):
        for name in TOLD:
            assert ours[step][name] == pytest.approx(theirs[step][name], rel=1e-4, abs=1e-6), (step, name)
    assert ours[3]["reference/kl_coef"] != 0.2 and 0 < ours[1]["filter/dropped_tokens_fraction"] < 1


def assert_same_advantages(ranks: list[dict[str, Any]]) -> None:
    for first, second in zip(*(rank["experiences"] for rank in ranks), strict=True):
        rollouts, mask = first.rollouts, first.rollouts.response_mask
        rewards = token_rewards(rollouts.rewards, mask)
        advantages, returns = compute_gae(rewards, first.values, mask, gamma=1.0, lambd=0.95)
        alone = {"advantages": whiten(advantages, mask), "returns": returns, "values": first.values}
        for name, tensor in alone.items():
            assert torch.equal(getattr(first, name), tensor)
            assert torch.equal(getattr(second, name), tensor)


@pytest.mark.slow
def test_a_run_goes_on_at_other_sizes(train: Any, one: Path, model: Path, process_group: None) -> None:
    """Tensor ranks, then stages beside a critic of tensor ranks, then one process: as if it had been one all along."""
    parts = (
        (CUTS["tp-sp"], 2),
        (("model.actor.parallel={pipeline: 2}", "model.critic.parallel={tensor: 2}"), 2),
        ((), None),
    )
    for iteration, (cut, ranks) in enumerate(parts, 1):
        stop = (("Stopper", {"hook": "on_rollout_end", "iteration": iteration}),)
        folder = train("chain", *cut, ranks=ranks, more=stop, ckpt_path="auto")
    assert_same_training(folder, one, model)


@pytest.mark.slow
def test_a_run_goes_on_at_its_own_sizes_bit_for_bit(train: Any, one: Path) -> None:
    whole = one.parent / "dp"
    if not whole.exists():
        train("dp", *CUTS["dp"])
    train("again", *CUTS["dp"], more=(("Stopper", {"hook": "on_rollout_end", "iteration": 2}),))
    again = train("again", *CUTS["dp"], ckpt_path="auto")
    ours, theirs = metrics_of(again)[3], metrics_of(whole)[3]
    for name in (name for name in theirs if not name.startswith(("phase/", "perf/", "memory/"))):
        assert ours[name] == theirs[name], name
    for ranks in zip(seen(again, 2), seen(whole, 2), strict=True):
        ends, heads = zip(*((rank["end"], rank["heads"][-1]) for rank in ranks), strict=True)
        assert all(torch.equal(tensor, ends[0][name]) for name, tensor in ends[1].items())
        assert all(torch.equal(a, b) for a, b in zip(*heads, strict=True))


SPARSE = (
    "trainer.max_steps=4",
    "model.global_batch_size=2",
    "data.rollout.batch_size=6",
    "trainer.val_check_interval=1",
    "data.rollout.validation={mine: {class_path: relax_lightning.data.digits.ReversedDigits,"
    " init_args: {size: 5, seed: 3}}, short: {class_path: relax_lightning.data.digits.ReversedDigits,"
    " init_args: {size: 5, min_digits: 1, max_digits: 1}}}",
    "data.rollout.reward.class_path=broken_rewards.wants_two_digits",
)


@pytest.mark.slow
def test_ranks_generate_the_same_text_and_may_have_nothing_to_learn(train: Any) -> None:
    """Beside that, a signal to one rank ends the iteration on all, and an evaluation that fails on one fails on all."""
    alone = train("sparse-one", *SPARSE, engine="Sparse", ranks=None)
    there, expected = metrics_of(alone), seen(alone, 1)[0]["experiences"][0].rollouts
    signal = {"hook": "on_rollout_end", "iteration": 2, "signals": ["SIGTERM"], "rank": 1}
    for cut in ("dp", "pp", "tp-sp"):
        keys = (*SPARSE, *CUTS[cut])
        more = (("Signaler", signal), *([("replay.NoRoom", {})] if cut == "pp" else []))
        folder, log, _ = train(f"sparse-{cut}", *keys, engine="Sparse", more=more, status=([143, 143],))
        assert log.count("Stopped after iteration 2; resume with --ckpt_path auto") == 1
        assert (folder / "checkpoints/latest_checkpointed_iteration.txt").read_text() == "2\n"
        here = metrics_of(folder)
        assert sorted(here) == [1, 2]
        for rank in seen(folder, 2):
            ours = rank["experiences"][0].rollouts
            # The samples to learn from are fewer than the optimizer steps of two.
            assert 0 < int((ours.response_lengths > 0).sum()) < 6 and len(ours) == 12
            assert torch.equal(ours.response_tokens, expected.response_tokens)
            assert torch.equal(ours.rewards, expected.rewards)
        assert here[1]["val/short/failed"] == 1
        assert ("RuntimeError: stays on purpose" in log) == (cut == "pp")
        evaluated = "val/mine/failed" if cut == "pp" else "val/mine/reward_mean"
        there[1]["val/mine/failed"] = 1.0
        for name in (*COMPARED, evaluated):
            assert here[1][name] == pytest.approx(there[1][name], rel=1e-5, abs=1e-6), (cut, name)


@pytest.mark.slow
def test_one_ranks_error_hangs_none(train: Any) -> None:
    began = time.time()
    error = {"hook": "on_advantages_computed", "iteration": 1, "rank": 1}
    _, log, ended = train("error", engine="Sparse", more=(("Saboteur", error),), status=([1, 1],))
    assert ended - began < 60
    assert "RuntimeError: broken on purpose in on_advantages_computed" in log
    # In an evaluation, after which training would go on if it could.
    keys = (*SPARSE, *CUTS["tp"], "trainer.val_before_training=true")
    _, log, again = train("broken", *keys, engine="Broken", status=([1, 1],))
    assert again - ended < 60
    assert "RuntimeError: broken on purpose in a generation" in log
    prompts = "data.rollout.train={class_path: own_prompts.Unseeded, init_args: {size: 9}}"
    _, log, _ = train("unseeded", prompts, engine="Sparse", status=([1, 1],))
    for rank, other in ((0, 1), (1, 0)):
        assert (
            f"got 9 on rank {rank} and 9 others on rank {other}; a class of your own must draw from a seed"
            in log
        )
    assert "Traceback" not in log
