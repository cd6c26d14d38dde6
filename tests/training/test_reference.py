"""The reference model in training: its weights come and go without a trace, and both KL terms do what they say."""

import pytest
import torch

from relax_lightning.algorithms.gae import compute_gae
from relax_lightning.algorithms.kl import estimate_kl
from relax_lightning.algorithms.token_rewards import token_rewards
from relax_lightning.megatron.export import export_checkpoint

A = "model.algorithm"
REFERENCE = "model.reference={}"
LOSS = (REFERENCE, f"{A}.use_kl_loss=true")
REWARD = (REFERENCE, f"{A}.kl_coef=0.2", f"{A}.normalize_advantages=false")


@pytest.fixture(scope="module")
def plain(fit, tmp_path_factory):
    return fit(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def rewarded(fit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewarded")
    saved = "callbacks.checkpoint={every_n_steps: 1, keep_last: 3, save_last: true}"
    run = fit(folder, *REWARD, saved, f"{A}.old_log_probs=recompute")
    run.folder = folder
    return run


def test_the_actor_is_the_same_to_the_bit_after_the_reference_took_its_place(fit, recorder, plain, tmp_path):
    # A KL loss of weight 0 moves nothing, so that a run with two swaps an iteration must end where the plain one does.
    run = fit(tmp_path, *LOSS, f"{A}.kl_loss_coef=0.0")
    assert recorder.differing(plain.states[2], run.states[2]) == []
    assert [set(run.metrics[n]) - set(plain.metrics[n]) for n in (1, 2)] == [{"actor/kl_loss"}] * 2


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_loss_holds_the_actor_back(fit, recorder, plain, tmp_path, estimator):
    keys = (*LOSS, f"{A}.kl_loss_type={estimator}", f"{A}.entropy_coef=0.0", "trainer.max_steps=3")
    free, held = (fit(tmp_path / coef, *keys, f"{A}.kl_loss_coef={coef}") for coef in ("0.0", "30.0"))
    assert "on_phase_start reference" not in held.events
    assert recorder.differing(free.states[1], held.states[1], "critic.weights") == []
    away = [run.metrics[3]["actor/kl_loss"] for run in (free, held)]
    assert 0 < away[1] < 0.5 * away[0]


def test_the_kl_is_taken_from_the_rewards_token_by_token(rewarded):
    order = [e.split()[1] for e in rewarded.of_iteration(1) if e.startswith("on_phase_start")]
    assert order == ["rollout", "reference", "critic", "actor", "publish"]
    for number, experience in enumerate(rewarded.experiences, 1):
        rollouts, mask = experience.rollouts, experience.rollouts.response_mask
        kl = estimate_kl(experience.old_log_probs, experience.ref_log_probs, mask, estimator="k1")
        rewards = token_rewards(rollouts.rewards, mask, kl=kl, kl_coef=0.2)
        expected = compute_gae(rewards, experience.values, mask, gamma=1.0, lambd=0.95)
        torch.testing.assert_close((experience.advantages, experience.returns), expected)
        mean = float(kl.sum() / len(rollouts))
        assert rewarded.metrics[number]["reference/kl_per_response"] == pytest.approx(mean, abs=1e-6)
        assert rewarded.metrics[number]["reference/kl_coef"] == 0.2
        # Recomputed in the same phase, once: the actor's own are the engine's but for rounding.
        torch.testing.assert_close(
            experience.old_log_probs * mask, rollouts.rollout_log_probs * mask, atol=1e-5, rtol=0
        )
    # The actor begins as the reference, and then leaves it.
    first, second = (abs(rewarded.metrics[n]["reference/kl_per_response"]) for n in (1, 2))
    assert first < 1e-5 < 1e-3 < second


def test_a_checkpoint_is_a_reference(fit, rewarded, tmp_path):
    path = rewarded.folder / "checkpoints" / "iter_0000002"
    run = fit(tmp_path, *REWARD[1:], f"model.reference.load={path}", "trainer.max_steps=1")
    rollouts, reference = run.rollouts[0], run.module._log_probs.reference
    reference._to_device(reference._weights)
    for name, parameter in run.module.actor.model.named_parameters():
        assert torch.equal(parameter, rewarded.states[2][f"actor.weights.{name}"])
    expected = run.module.actor.log_probs(rollouts, [list(range(len(rollouts)))])
    torch.testing.assert_close(run.experiences[0].ref_log_probs, expected, atol=1e-5, rtol=0)


def test_a_reference_of_another_architecture_is_refused_before_anything_is_built(fit, rewarded, tmp_path):
    path = rewarded.folder / "checkpoints" / "iter_0000002"
    other = "model.actor.architecture.rope_theta=10"
    with pytest.raises(
        ValueError, match=r"iter_0000002/actor holds another model .*: rope_theta 10000.0, now 10"
    ):
        fit(tmp_path / "loaded", *REWARD[1:], f"model.reference.load={path}", other)
    export_checkpoint(path, tmp_path / "exported")
    with pytest.raises(ValueError, match=r"exported holds another model .*: rope_theta 10000.0, now 10"):
        fit(tmp_path / "read", *REWARD[1:], f"model.reference.hf_checkpoint={tmp_path / 'exported'}", other)
    assert {entry.name for entry in tmp_path.iterdir()} == {"exported"}


def test_resumed_with_steered_kl_and_running_rewards_is_the_same_to_the_bit(fit, recorder, tmp_path):
    keys = (
        REFERENCE, f"{A}.kl_coef=0.2", f"{A}.kl_target=0.001", f"{A}.kl_horizon=40",
        "data.rollout.shaping.normalize=true", "trainer.max_steps=4",
        "callbacks.checkpoint={every_n_steps: 2, keep_last: 2, save_last: false}",
    )  # fmt: skip
    whole = fit(tmp_path / "whole", *keys)
    weights = [whole.metrics[n]["reference/kl_coef"] for n in (1, 2, 3, 4)]
    # 16 samples of a horizon of 40: at most 8 % an iteration, down while the KL is 0 and up when it is large.
    assert weights[:2] == pytest.approx([0.2, 0.2 * 0.92]) and len(set(weights)) == 4
    # While the critic trains alone, a KL of 0 says nothing of the weight.
    warm = fit(tmp_path / "warm", *keys, "callbacks.critic_only_warmup={num_steps: 2}")
    steered = [warm.metrics[n]["reference/kl_coef"] for n in (1, 2, 3, 4)]
    assert steered == pytest.approx([0.2, 0.2, 0.2, 0.2 * 0.92])
    fit(tmp_path / "part", *keys, callbacks=(("Stopper", {"hook": "on_iteration_end", "iteration": 2}),))
    resumed = fit(tmp_path / "part", *keys, ckpt_path="auto")
    assert sorted(resumed.metrics) == [3, 4]
    assert recorder.differing(whole.states[4], resumed.states[4]) == []
    for name in (
        "reference/kl_coef",
        "reference/kl_per_response",
        "shaping/running_mean",
        "shaping/running_std",
    ):
        assert [resumed.metrics[n][name] for n in (3, 4)] == [whole.metrics[n][name] for n in (3, 4)]
