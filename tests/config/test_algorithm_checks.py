"""Keys of the algorithm that contradict each other or do nothing, and what the plan says of those that are right."""

from pathlib import Path

import pytest

from relax_lightning.config import load, resolve
from relax_lightning.plan import check
from relax_lightning.plan.report import build_plan

DIGITS = str(Path(__file__).resolve().parents[2] / "configs" / "digits-cpu.yaml")
SET = "relax_lightning.data.digits.ReversedDigits"
A, REFERENCE = "model.algorithm", "model.reference={}"
KL_LOSS = (REFERENCE, f"{A}.use_kl_loss=true", f"{A}.kl_loss_type=k2")


def found(*overrides, **options):
    return [(p.severity, str(p)) for p in check(load([DIGITS], list(overrides)), **options)]


@pytest.mark.parametrize(
    ("overrides", "severity", "line"),
    [
        (
            (*KL_LOSS, f"{A}.kl_loss_coef=0.1", f"{A}.kl_coef=0.1"),
            "error",
            f"{A}.use_kl_loss: wanted the KL in the rewards or in the loss, got kl_coef: 0.1 and use_kl_loss: true; "
            "the KL would count twice: set kl_coef: 0.0 or use_kl_loss: false",
        ),
        (
            (*KL_LOSS, f"{A}.kl_loss_coef=0.1", f"{A}.kl_target=6"),
            "error",
            f"{A}.kl_coef: wanted above 0 with kl_target, got 0.0; give the weight to start with, for example 0.05",
        ),
        (
            KL_LOSS,
            "warning",
            f"{A}.kl_loss_coef: wanted above 0 with use_kl_loss, got 0.0; the KL is only shown; give a weight",
        ),
        (
            (*KL_LOSS, f"{A}.kl_loss_coef=0.1", f"{A}.kl_loss_type=k1"),
            "warning",
            f"{A}.kl_loss_type: wanted k2 or k3: the gradient of k1 is 0 on average, so that it holds nothing back, "
            "got 'k1'; set k2, whose gradient is that of the KL",
        ),
        (
            (REFERENCE,),
            "warning",
            "model.reference: wanted a KL term that uses it, got kl_coef: 0.0 and use_kl_loss: false; "
            "nothing is computed; give one or remove it",
        ),
        (
            (f"{A}.importance_mode=mask",),
            "warning",
            f"{A}.importance_mode: wanted importance_cap beside it, got null; it does nothing without; give one, for "
            "example 2.0",
        ),
        (
            (f"{A}.kl_loss_coef=0.1",),
            "warning",
            f"{A}.kl_loss_coef: wanted use_kl_loss beside it, got false; it does nothing without; set it true",
        ),
        (
            (f"{A}.positive_nll_threshold=0.5",),
            "warning",
            f"{A}.positive_nll_threshold: wanted positive_nll_coef beside it, got 0.0; it does nothing without; give "
            "one, for example 0.1",
        ),
        (
            ("data.rollout.shaping.overlong_penalty=0.5",),
            "warning",
            "data.rollout.shaping.overlong_penalty: wanted overlong_buffer_tokens beside it, got null; it does nothing "
            "without; say how many",
        ),
        (
            ("model.actor.optimizer.decay=constant", "model.actor.optimizer.min_lr=1e-5"),
            "warning",
            "model.actor.optimizer.min_lr: wanted decay beside it, got 'constant'; it does nothing without; say linear "
            "or cosine",
        ),
        (
            (
                f"data.rollout.validation={{a: {{class_path: {SET}, init_args: {{size: 4}}}}}}",
                "trainer.val_check_interval=101",
            ),
            "warning",
            "trainer.val_check_interval: wanted at most max_steps (100), got 101; nothing is evaluated in between; "
            "lower it",
        ),
        (
            ("trainer.val_before_training=true",),
            "warning",
            "trainer.val_before_training: wanted sets of prompts in data.rollout.validation, got {}; nothing is "
            "evaluated; add one",
        ),
        (
            (f"{A}.importance_cap=2.0", f"{A}.importance_floor=3.0", f"{A}.old_log_probs=recompute"),
            "error",
            f"{A}.importance_floor: wanted at most importance_cap (2.0), got 3.0; change one of the two",
        ),
        (
            (
                "data.rollout.drop_equal_rewards=true",
                "data.rollout.n_samples_per_prompt=1",
                "model.global_batch_size=128",
            ),
            "error",
            "data.rollout.drop_equal_rewards: wanted n_samples_per_prompt above 1, got 1; a sample alone always equals "
            "itself; raise it, or leave this out",
        ),
        (
            ("data.rollout.shaping.overlong_buffer_tokens=7",),
            "error",
            "data.rollout.shaping.overlong_buffer_tokens: wanted at most sampling.max_new_tokens (6), got 7; "
            "change one of the two",
        ),
        (
            ("model.critic.warm_start=a", "model.critic.load=b"),
            "error",
            "model.critic.warm_start: wanted one of critic.load (which follows actor.load) and warm_start, got 'a'; "
            "load resumes the critic with its optimizer, warm_start takes weights alone; remove one",
        ),
        (
            ("model.actor.warm_start=a", "model.actor.load=b"),
            "error",
            "model.actor.warm_start: wanted one of load and warm_start, got 'a'; "
            "load resumes both roles with their optimizers, warm_start takes weights alone; remove one",
        ),
        (
            ("callbacks.critic_only_warmup.num_steps=100",),
            "warning",
            "callbacks.critic_only_warmup.num_steps: wanted fewer than trainer.max_steps = 100, got 100; "
            "every iteration trains the critic alone; lower it unless that is what you want",
        ),
    ],
)  # fmt: skip
def test_each_says_what_to_change(overrides, severity, line):
    assert found(*overrides, check_files=False) == [(severity, line)]


def test_weights_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kl = f"{A}.kl_coef=0.1"
    ((_, line),) = found("model.reference.load=nowhere", kl)
    assert line == (
        "model.reference.load: wanted a checkpoint root, an iter_ folder or a Megatron checkpoint of the actor, "
        "got 'nowhere'; no metadata.json is there; change it"
    )
    assert found("model.reference.hf_checkpoint=nowhere", kl) == [
        ("error", "model.reference.hf_checkpoint: wanted a Hugging Face directory, got 'nowhere'; "
         "there is none at this path; change it")
    ]  # fmt: skip
    ((_, line),) = found("model.critic.warm_start=nowhere")
    assert line.startswith("model.critic.warm_start: wanted a checkpoint root")
    ((_, line),) = found("model.actor.warm_start=nowhere")
    assert line.startswith("model.actor.warm_start: wanted a checkpoint root") and "of the actor" in line
    # The tracker of a root, an iteration, or the role's own folder.
    part = tmp_path / "root" / "iter_0000003" / "critic"
    part.mkdir(parents=True)
    (part / "metadata.json").write_text("{}")
    (tmp_path / "root" / "latest_checkpointed_iteration.txt").write_text("3\n")
    for path in ("root", "root/iter_0000003", "root/iter_0000003/critic"):
        assert found(f"model.critic.warm_start={path}") == []


def test_without_a_reference_the_target_goes_with_the_kl():
    keys = [f"{A}.kl_coef=0.1", f"{A}.kl_target=6", f"{A}.use_kl_loss=true"]
    config = load([DIGITS], keys)
    with pytest.warns(UserWarning, match="KL is switched off"):
        algorithm = resolve(config).model.algorithm
    assert (algorithm.kl_coef, algorithm.kl_target, algorithm.use_kl_loss) == (0.0, None, False)
    assert [severity for severity, _ in found(*keys, check_files=False)] == ["warning"]


def plan(*overrides):
    return build_plan(
        resolve(load([DIGITS], ["data.rollout.train.max_prompt_tokens=4", *overrides])),
        check_files=False,
        gpu_memory=80 * 2**30,
    )


def test_the_plan_tells_phases_and_memory():
    plain, loss = plan(), plan(*KL_LOSS, f"{A}.kl_loss_coef=0.1")
    reward = plan(REFERENCE, f"{A}.kl_coef=0.1", f"{A}.old_log_probs=recompute")
    names = ["rollout", "critic", "actor", "publish"]
    assert [p.phase for p in plain.phases] == [p.phase for p in loss.phases] == names
    assert loss.phases[2].does == "the actor's optimizer steps, reference log-probs first"
    assert (
        [p.phase for p in reward.phases]
        == [p.phase for p in reward.memory.phases]
        == ["rollout", "reference", *names[1:]]
    )
    assert reward.phases[1].does == "old and reference log-probs, by weights that take the actor's place"
    assert reward.phases[3].does == "the actor's optimizer steps"
    (weights,) = {
        m.host["reference weights, and the actor's while they are in its place"]
        for m in (loss.memory, reward.memory)
    }
    assert weights == 2 * plain.memory.phases[0].parts["actor weights"]
    # 20 bytes a parameter, which are two in bfloat16.
    assert plain.memory.host == {"checkpoint while it is written": 5 * weights}
    assert 0 < reward.memory.working["reference"] < reward.memory.working["actor"]


def test_a_run_of_the_critic_alone_has_no_actor():
    made = plan("callbacks.critic_only_warmup.num_steps=100")
    assert [p.phase for p in made.phases] == ["rollout", "critic"]
    assert list(made.learning_rates) == ["critic"]
    assert "the critic's weights from there" in plan("model.critic.warm_start=there").paths.begins
    begins = plan("model.actor.warm_start=there").paths.begins
    assert begins == "weights of there; the critic's weights from there"
