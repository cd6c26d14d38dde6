"""`relax-lightning plan`: what it prints, its JSON, its exit status, and that it stays light."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import relax_lightning
from relax_lightning.cli import main

ROOT = Path(relax_lightning.__file__).parent.parent
RECIPE = str(ROOT / "configs" / "qwen35-9b-8xgpu-ppo.yaml")
DIGITS = str(ROOT / "configs" / "digits-cpu.yaml")
GIB = 2**30


@pytest.fixture
def plan(capsys):
    """Run `plan`; give its status, its document or text, and what it said on standard error."""

    def run(*words, as_json=True):
        status = main(["plan", *words, *(["--json"] if as_json else [])])
        out, err = capsys.readouterr()
        return status, json.loads(out) if as_json else out, err

    return run


def test_what_cannot_be_resumed_is_a_problem_of_its_key(plan, tmp_path, make_checkpoint):
    root = tmp_path / "checkpoints"
    words = ["--config", DIGITS, "--trainer.default_root_dir", str(tmp_path)]
    (make_checkpoint(root, 1) / "manifest.json").write_text("[")
    for options, key in (
        (["--ckpt_path", "auto"], "--ckpt_path"),
        (["--model.critic.load", str(root)], "model.critic.load"),
    ):
        status, document, _ = plan(*words, *options)
        assert (status, [p["key"] for p in document["problems"]]) == (1, [key])


def test_a_working_directory_that_no_line_can_hold_is_refused(plan, tmp_path, monkeypatch):
    (tmp_path / "two\nlines").mkdir()
    monkeypatch.chdir(tmp_path / "two\nlines")
    status, document, _ = plan("--config", DIGITS)
    assert (status, [p["key"] for p in document["problems"]]) == (1, ["trainer.default_root_dir"])
    assert "wanted a path without line ends" in document["problems"][0]["message"]


def test_the_reference_recipe_is_accepted_without_its_files(plan, monkeypatch):
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.delenv(name, raising=False)
    status, document, _ = plan("--config", RECIPE, "--no-files", "--gpu_memory_gib", "80")
    assert (status, document["ok"], document["format"]) == (0, True, 1)
    assert {p["severity"] for p in document["problems"]} <= {"warning"}
    roles = {role["role"]: role for role in document["placement"]}
    assert roles["actor"]["shares"] == ["critic", "rollout"]
    assert (roles["actor"]["tensor"], roles["actor"]["data"], roles["rollout"]["processes"]) == (4, 2, 4)
    assert (roles["advantages"]["where"], roles["advantages"]["gpus"]) == ("Ray actor, CPU", 0)
    batch = document["batch"]
    assert (batch["prompts"], batch["samples"], batch["optimizer_steps"]) == (
        32,
        128,
        {"actor": 1, "critic": 1},
    )
    assert (batch["longest_sample"], batch["microbatches_per_step"]) == (10240, 64)
    critic = document["learning_rates"]["critic"]
    assert critic["rates"] == pytest.approx(
        {"step 0": 2e-6, "step 1": 4e-6, "warm-up end": 1e-5, "last step": 1e-5}, rel=1e-9
    )
    assert document["learning_rates"]["actor"]["iterations"] == 995
    assert [p["from_iteration"] for p in document["phases"]] == [1, 1, 6, 6]
    assert document["paths"]["run_folder"] == "${EXP_DIR}/qwen35-9b-8xgpu-ppo"
    memory = document["memory"]
    assert memory["budget"] == 80 * GIB
    by_phase = {phase["phase"]: phase for phase in memory["phases"]}
    # 9 billion parameters in bfloat16 over four ranks.
    assert 4 * GIB < by_phase["actor"]["parts"]["actor weights"] < 6 * GIB
    # The state that is stepped on the host was never on the GPU.
    assert "actor optimizer" not in by_phase["actor"]["parts"]
    assert memory["host"]["actor optimizer stepped on the host"] > 10 * GIB
    assert all(phase["total"] == sum(phase["parts"].values()) for phase in memory["phases"])
    # 76 of 80 GiB, less CUDA's and NCCL's, are filled: only gradients leave, of whoever waits.
    assert by_phase["rollout"]["leaves"] == []
    assert by_phase["critic"]["leaves"] == ["actor gradients"]
    assert by_phase["actor"]["leaves"] == ["critic gradients"]
    always = plan("--config", RECIPE, "--no-files", "--gpu_memory_gib", "80", "--strategy.offload", "always")[
        1
    ]
    assert always["memory"]["phases"][0]["leaves"] == [
        f"{role} {tag}" for tag in ("gradients", "weights") for role in ("actor", "critic")
    ]


def test_text_of_the_digits_job(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, text, err = plan("--config", DIGITS, as_json=False)
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "samples 512",
        "optimizer steps, actor 6",
        "begins with random weights; the critic's value head from zero",
        "run folder runs/digits-cpu",
        "0 errors, 0 warnings",
    ):
        assert line in lines
    assert any(line.startswith("rollout") and "1 - - - -" in line for line in lines)
    assert text.isascii()


def test_a_faulty_configuration_ends_with_one_and_every_line(plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = [
        "--model.algorithm.gamma",
        "2",
        "--model.gobal_batch_size",
        "4",
        "--data.rollout.batch_size",
        "5",
    ]
    status, document, _ = plan("--config", DIGITS, *changes)
    assert (status, document["ok"]) == (1, False)
    assert [p["key"] for p in document["problems"]] == [
        "model.gobal_batch_size",
        "model.algorithm.gamma",
        "model.global_batch_size",
    ]
    assert plan("--config", "missing.yaml", as_json=False)[0] == 1
    for size in ("much", "1_0", "\uff18", "1e300", ".inf", "0", "-1", "true", "~"):
        assert main(["plan", "--config", DIGITS, "--gpu_memory_gib", size]) == 2
    assert (
        main(["plan", "--config", DIGITS, "--no-files", "--gpu-memory-gib", "80", "--ckpt-path", "auto"]) == 0
    )


def test_arguments_of_the_engines_are_checked_before_any_use(plan):
    engine, size = "data.rollout.engine.init_args", ["--no-files", "--gpu_memory_gib", "80"]
    cases = {
        "tensor_parallel_size": ("0", "two", "null", "-2", "1.5", "true"),
        "mem_fraction_static": ("abc", "0", "5"),
        "bucket_mib": ("null", "-1"),
        "tensor_parallel": ("2",),
    }
    for name, values in cases.items():
        for value in values:
            status, document, _ = plan("--config", RECIPE, *size, f"--{engine}.{name}", value)
            errors = [p["key"] for p in document["problems"] if p["severity"] == "error"]
            assert (status, errors) == (1, [f"{engine}.{name}"]), (name, value)
    errors = plan("--config", DIGITS, f"--{engine}.max_batch_size", "0")[1]["problems"]
    assert [p["key"] for p in errors] == [f"{engine}.max_batch_size"]


def test_a_class_without_a_module(plan):
    errors = plan("--config", DIGITS, "--data.rollout.reward.class_path", "matching_places")[1]["problems"]
    assert [(p["key"], p["message"]) for p in errors] == [
        (
            "data.rollout.reward.class_path",
            "wanted an import path, module.Name, got 'matching_places'; for example my_rewards.Mine",
        )
    ]


def test_a_size_of_gpu_plans_for_a_gpu(plan):
    memory = plan("--config", DIGITS, "--no-files", "--gpu_memory_gib", "80")[1]["memory"]
    assert (memory["on_gpu"], memory["budget"]) == (True, 80 * GIB)


def test_roles_that_train_need_ranks(plan):
    document = plan("--config", RECIPE, "--no-files", "--cluster.resources.critic", "[1, 0]")[1]
    (error,) = [p for p in document["problems"] if p["severity"] == "error"]
    assert error["key"] == "cluster.resources.critic"
    assert error["message"].startswith("wanted [replicas, gpus], both of at least 1")


def test_advantages_are_computed_by_one_process(plan):
    document = plan("--config", RECIPE, "--no-files", "--cluster.resources.advantages", "[7, 0]")[1]
    (error,) = [p for p in document["problems"] if p["severity"] == "error"]
    assert error["message"] == "wanted [1, 0], one process without a GPU, got [7, 0]; change it"


def test_a_trial_run_has_its_own_length(plan):
    rates = plan("--config", DIGITS, "--trainer.fast_dev_run", "3")[1]["learning_rates"]
    assert (rates["actor"]["iterations"], rates["critic"]["iterations"]) == (3, 3)
    assert plan("--config", DIGITS, "--trainer.fast_dev_run", "-3")[0] == 1


def test_what_cannot_be_read_is_json_too(plan, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [")
    status, document, _ = plan("--config", str(tmp_path / "bad.yaml"))
    assert (status, document["ok"]) == (1, False)
    assert document["problems"][0]["key"] == str(tmp_path / "bad.yaml")


def test_what_a_resume_would_load(plan, make_checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plan("--config", DIGITS, "--ckpt_path", "auto")[1]["paths"]["begins"].startswith("random weights")
    folder = make_checkpoint("runs/digits-cpu/checkpoints", 7)
    begins = plan("--config", DIGITS, "--ckpt_path", "auto")[1]["paths"]["begins"]
    assert begins == f"everything from {folder}"


def test_nothing_heavy_is_imported(tmp_path):
    code = (
        "import sys; from relax_lightning.cli import main; status = main(sys.argv[1:]); "
        "print(sorted({'torch', 'lightning', 'ray', 'megatron', 'sglang'} & {m.split('.')[0] for m in sys.modules}), "
        "file=sys.stderr); sys.exit(status)"
    )
    words = ["plan", "--config", RECIPE, "--no-files"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "[]")
