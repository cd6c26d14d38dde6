"""Critic-only iterations: the actor stands still, everything else goes on."""

import pytest

from relax_lightning.checkpoints.folders import complete_iterations

ROLE_METRICS = {"grad_norm", "lr"}
OF_CRITIC = {"value_loss", "value_clipfrac", "explained_variance", *ROLE_METRICS}
OF_ACTOR = {"pg_loss", "pg_clipfrac", "ppo_kl", "ppo_kl_k3", "entropy", "ratio_max", "ratio_mean",
            "effective_sample_fraction", *ROLE_METRICS}  # fmt: skip
ALWAYS = {
    *(f"critic/{name}" for name in OF_CRITIC),
    "reward/mean", "reward/std", "response/length_mean", "response/truncated_fraction",
    "response/untrainable_fraction", "response/trainable_token_fraction", "response/num_turns_mean",
    "response/repeated_fraction", "advantages/mean", "advantages/std", "advantages/abs_max", "values/mean",
    "values/std", "returns/mean", "returns/std", "values/bias_early", "values/bias_middle", "values/bias_late",
    "phase/rollout_seconds", "phase/critic_seconds", "phase/switch_seconds",
    "perf/tokens_per_second",
}  # fmt: skip
WITH_ACTOR = {*(f"actor/{name}" for name in OF_ACTOR), "mismatch/log_prob_abs_diff", "mismatch/kl_k1",
              "mismatch/kl_k3", "phase/actor_seconds", "phase/publish_seconds"}  # fmt: skip


def test_five_critic_only_iterations(fit, recorder, tmp_path):
    run = fit(
        tmp_path, "trainer.max_steps=7", "trainer.val_check_interval=1", "callbacks.critic_only_warmup.num_steps=5",
        "model.global_batch_size=null", "model.algorithm.num_ppo_epochs=1",
        "model.actor.optimizer.decay=constant", "callbacks.lr_warmup.actor.num_iters=0",
        "callbacks.checkpoint={every_n_steps: 2, keep_last: 2, save_last: true}",
        "data.rollout.validation={mine: {class_path: relax_lightning.data.digits.ReversedDigits,"
        " init_args: {size: 12, seed: 3}, n_samples_per_prompt: 2}}",
    )  # fmt: skip
    states = run.states
    for before, after in zip(range(1, 5), range(2, 6), strict=True):
        assert recorder.differing(states[before], states[after], "actor.") == []
        assert "critic.weights.output_layer.weight" in recorder.differing(
            states[before], states[after], "critic."
        )
    # The actor is the one that was built: no step, no moment, and the whole rate ahead.
    assert states[5]["actor.num_steps_done"] == 0 and states[5]["actor.schedule"]["num_steps"] == 0
    moments = [v for k, v in states[5].items() if k.startswith("actor.optimizer") and "exp_avg" in k]
    assert moments and not any(m.any() for m in moments)
    moved = recorder.differing(states[5], states[6], "actor.weights")
    assert moved == [name for name in states[5] if name.startswith("actor.weights")]

    # Same weights and draws give the same evaluation; the sixth iteration's is another.
    assert len(run.validations) == 7 and run.validations[:5] == [run.validations[0]] * 5
    assert run.validations[5] != run.validations[0]

    # Warm-up over 5 steps: step i has lr * (i + 1) / 5.
    rates = [run.metrics[i]["critic/lr"] for i in (1, 2, 3, 4, 5, 6)]
    assert rates == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.005, 0.005], rel=1e-9)
    assert run.metrics[6]["actor/lr"] == pytest.approx(3e-3)

    assert sorted(run.metrics) == [1, 2, 3, 4, 5, 6, 7]
    assert [set(run.metrics[i]) for i in range(1, 6)] == [ALWAYS] * 5
    assert [set(run.metrics[i]) for i in (6, 7)] == [ALWAYS | WITH_ACTOR] * 2
    # Saved at 2, 4, 6 and at the end; two are kept.
    root = tmp_path / "checkpoints"
    assert complete_iterations(root) == [6, 7]
    assert sorted(p.name for p in root.iterdir()) == [
        "iter_0000006",
        "iter_0000007",
        "latest_checkpointed_iteration.txt",
    ]


@pytest.mark.parametrize("source", ["rollout", "recompute"])
def test_the_first_update_starts_from_the_policy_that_generated(fit, tmp_path, source):
    run = fit(
        tmp_path, "trainer.max_steps=3", "model.global_batch_size=null", "model.algorithm.num_ppo_epochs=1",
        f"model.algorithm.old_log_probs={source}",
    )  # fmt: skip
    for metrics in run.metrics.values():
        assert metrics["actor/pg_clipfrac"] == 0
        assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["actor/ppo_kl_k3"] == pytest.approx(0, abs=1e-9)
        assert metrics["mismatch/log_prob_abs_diff"] < 1e-5
        # With ratio 1 the loss is minus the mean whitened advantage, which is 0, less the entropy bonus.
        assert metrics["actor/pg_loss"] == pytest.approx(-0.01 * metrics["actor/entropy"], abs=1e-6)
