"""The whole order of hooks, and what an iteration that breaks leaves behind."""

import signal

import pytest

from relax_lightning.checkpoints.folders import complete_iterations
from relax_lightning.strategies.colocate import ColocateStrategy

ONE_STEP = (
    "model.global_batch_size=null",
    "model.algorithm.num_ppo_epochs=1",
    "callbacks.checkpoint.every_n_steps=1",
)
VALIDATION = "{class_path: relax_lightning.data.digits.ReversedDigits, init_args: {size: 5, seed: 3}}"

CRITIC_ONLY = [
    "on_train_batch_start 0",
    "on_iteration_start",
    "on_phase_start rollout",
    "on_rollout_end",
    "on_phase_end rollout",
    "on_phase_start critic",
    "on_values_computed",
    "on_advantages_computed",
    "on_before_critic_step 0",
    "lr_scale critic 0",
    "on_phase_end critic",
    "should_update_actor 1",
    "on_iteration_end",
    "on_train_batch_end 0",
    "on_save_checkpoint",
]
NORMAL = [
    "on_train_batch_start 1",
    "on_iteration_start",
    "on_phase_start rollout",
    "on_rollout_end",
    "on_phase_end rollout",
    "on_phase_start critic",
    "on_values_computed",
    "on_advantages_computed",
    "on_before_critic_step 1",
    "lr_scale critic 1",
    "on_phase_end critic",
    "should_update_actor 2",
    "on_phase_start actor",
    "on_before_actor_step 0",
    "lr_scale actor 0",
    "on_phase_end actor",
    "on_phase_start publish",
    "on_weights_published 2",
    "on_phase_end publish",
    "on_iteration_end",
    "on_train_batch_end 1",
    "on_save_checkpoint",
]


def test_hooks_fire_in_one_order(fit, tmp_path):
    run = fit(
        tmp_path, "trainer.val_check_interval=2", "callbacks.critic_only_warmup.num_steps=1",
        f"data.rollout.validation={{mine: {VALIDATION}}}", *ONE_STEP,
    )  # fmt: skip
    # The length of the learning-rate decay depends on which iterations train the actor.
    before = ["should_update_actor 1", "should_update_actor 2", "on_train_start"]
    after = ["on_validation_start", "on_validation_end", "on_train_end"]
    assert run.events == [*before, *CRITIC_ONLY, *NORMAL, *after]


# What is still fired in the second iteration when a callback raises in the hook.
BROKEN = {
    hook: [*NORMAL[: NORMAL.index(last) + 1], "on_exception"]
    for hook, last in {
        "on_values_computed": "on_values_computed",
        "on_before_actor_step": "on_before_actor_step 0",
    }.items()
}


@pytest.mark.parametrize("hook", BROKEN)
def test_a_broken_iteration_saves_nothing_and_the_process_goes_on(fit, recorder, tmp_path, hook):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    keys = (*ONE_STEP, "callbacks.critic_only_warmup.num_steps=1", "trainer.max_steps=3")
    with pytest.raises(RuntimeError, match=f"broken on purpose in {hook}") as raised:
        fit(tmp_path, *keys, callbacks=(("Saboteur", {"hook": hook, "iteration": 2}),))
    run = recorder.Recorder.last
    assert run.of_iteration(1) == CRITIC_ONLY
    assert run.of_iteration(2) == BROKEN[hook]

    strategy, root = run.trainer.strategy, tmp_path / "checkpoints"
    assert isinstance(strategy, ColocateStrategy) and strategy.is_dirty
    with pytest.raises(RuntimeError, match="refused to save in the middle of an iteration"):
        run.trainer.save_checkpoint(root / "iter_0000002")
    assert complete_iterations(root) == [1] and not list(root.glob("*iter_0000002*"))
    assert raised.value.__notes__[-1].endswith(f"resume with --ckpt_path {root / 'iter_0000001'}")
    # Nothing of the broken run is left: its reward workers are gone, the signals are as they were.
    assert run.trainer.datamodule.rollout._reward is None
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

    resumed = fit(tmp_path, *keys, ckpt_path="auto")
    # The engine of the new process has seen one publication so far, as after an iteration of the critic alone.
    assert resumed.of_iteration(1) == NORMAL
    assert sorted(resumed.metrics) == [2, 3] and complete_iterations(root) == [2, 3]


def test_a_broken_iteration_without_a_checkpoint_says_so(fit, recorder, tmp_path):
    saboteur = ("Saboteur", {"hook": "on_rollout_end", "iteration": 1})
    with pytest.raises(RuntimeError, match="broken on purpose") as raised:
        fit(tmp_path, callbacks=(saboteur,))
    assert raised.value.__notes__[-1].endswith("there is no checkpoint yet")
    assert not (tmp_path / "checkpoints").exists()
