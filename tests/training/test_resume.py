"""An interrupted and resumed run is the uninterrupted one, bit for bit."""

import json

import pytest
import torch

UNTIMED = ("phase/", "perf/", "memory/")
KEYS = (
    "trainer.max_steps=6",
    "trainer.val_check_interval=2",
    "data.rollout.validation={mine: {class_path: relax_lightning.data.digits.ReversedDigits,"
    " init_args: {size: 5, seed: 3}}}",
)


def same_rollouts(one, other):
    tensors = (
        "sample_ids",
        "prompt_tokens",
        "response_tokens",
        "response_mask",
        "rollout_log_probs",
        "rewards",
    )
    return one.prompts == other.prompts and all(
        torch.equal(getattr(one, t), getattr(other, t)) for t in tensors
    )


def untimed(metrics):
    return {step: {k: v for k, v in of.items() if not k.startswith(UNTIMED)} for step, of in metrics.items()}


# Five, three and four batches an epoch: the third iteration is in the middle, at the end, and before the last of one.
@pytest.mark.parametrize("num_prompts", [40, 24, 32])
def test_three_and_three_are_six(fit, recorder, tmp_path, num_prompts):
    keys = (*KEYS, f"data.rollout.train.init_args.size={num_prompts}")
    whole = fit(tmp_path / "whole", *keys)
    stop = (("Signaler", {"hook": "on_rollout_end", "iteration": 3, "signals": ["SIGINT"]}),)
    first = fit(tmp_path / "parts", *keys, callbacks=stop)
    assert sorted(first.metrics) == [1, 2, 3] and first.status == 130
    second = fit(tmp_path / "parts", *keys, ckpt_path="auto")

    assert untimed(first.metrics | second.metrics) == untimed(whole.metrics)
    assert first.validations + second.validations == whole.validations and len(whole.validations) == 3
    assert len(whole.rollouts) == 6
    pairs = zip(whole.rollouts, first.rollouts + second.rollouts, strict=True)
    assert [same_rollouts(one, other) for one, other in pairs] == [True] * 6
    assert recorder.differing(whole.states[6], second.states[6]) == []
    # The comparison can fail: everything moved between the third and the sixth iteration.
    moved = recorder.differing(first.states[3], second.states[6])
    assert {name.split(".")[1] for name in moved} == {"weights", "optimizer", "schedule", "num_steps_done"}
    assert "actor.num_steps_done" in moved and second.states[6]["actor.num_steps_done"] == 24


def test_an_iteration_twice_from_one_seed_is_bit_equal(fit, recorder, tmp_path):
    one, two = (fit(tmp_path / name, "trainer.max_steps=1") for name in ("one", "two"))
    assert same_rollouts(one.rollouts[0], two.rollouts[0])
    assert recorder.differing(one.states[1], two.states[1]) == []
    other = fit(tmp_path / "other", "trainer.max_steps=1", "seed_everything=5")
    assert not same_rollouts(one.rollouts[0], other.rollouts[0])


def test_a_resumed_run_may_be_made_longer(fit, tmp_path):
    fit(tmp_path, "trainer.max_steps=2", "callbacks.checkpoint.save_last=true")
    longer = fit(tmp_path, "trainer.max_steps=4", ckpt_path="auto")
    assert sorted(longer.metrics) == [3, 4]
    # Linear decay over the new length, 4 iterations of 4 steps; the warm-up is over; step 15 is the last.
    assert longer.metrics[4]["actor/lr"] == pytest.approx(1e-4 + (3e-3 - 1e-4) * (1 - 15 / 16))


def test_a_resumed_run_may_change_its_learning_rate(fit, tmp_path):
    keys = ("model.actor.optimizer.decay=constant", "model.actor.optimizer.weight_decay=0.1")
    fit(tmp_path, *keys, "trainer.max_steps=1", "callbacks.checkpoint.save_last=true")
    changed = ("model.actor.optimizer.lr=0.001", "model.actor.optimizer.weight_decay=0.0")
    resumed = fit(tmp_path, *keys[:1], *changed, "trainer.max_steps=2", ckpt_path="auto")
    assert resumed.metrics[2]["actor/lr"] == pytest.approx(1e-3)


def test_other_data_is_refused(fit, tmp_path):
    fit(tmp_path, "trainer.max_steps=1", "callbacks.checkpoint.save_last=true")
    with pytest.raises(
        ValueError, match=r"made with other prompts or another order .*model\.actor\.warm_start"
    ):
        fit(tmp_path, "data.rollout.train.init_args.size=32", ckpt_path="auto")


def test_journal_holds_each_point_once(fit, tmp_path):
    stop = (("Stopper", {"hook": "on_rollout_end", "iteration": 3}),)
    fit(
        tmp_path,
        *KEYS,
        "callbacks.checkpoint.every_n_steps=1",
        "callbacks.checkpoint.keep_last=9",
        callbacks=stop,
    )
    fit(tmp_path, *KEYS, ckpt_path=str(tmp_path / "checkpoints" / "iter_0000001"))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    points = [(name, record["step"]) for record in records for name in record["metrics"]]
    assert len({record["run"] for record in records}) == 1
    assert len(points) == len(set(points)) and {step for _, step in points} == {1, 2, 3, 4, 5, 6}
