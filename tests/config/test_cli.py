"""The command line up to the moment training would start: words, exit statuses, and what stays unimported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import relax_lightning
from relax_lightning.cli import main
from relax_lightning.config import load, resolve
from relax_lightning.config.markdown import markdown
from relax_lightning.config.schema import json_schema

ROOT = Path(relax_lightning.__file__).parent.parent

SOUND = """
trainer: {max_steps: 2}
model: {actor: {hf_checkpoint: model}}
data: {rollout: {train: {path: x.jsonl}, batch_size: 4, reward: exact_match}}
"""


@pytest.fixture
def folder(tmp_path, make_model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_model("model")
    Path("x.jsonl").write_text('{"prompt": "1"}\n' * 16)
    Path("sound.yaml").write_text(SOUND)
    return tmp_path


@pytest.fixture
def call(capsys):
    """Run the command; give its status, standard output and the lines of standard error."""

    def run(*words):
        status = main(list(words))
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return run


def test_help_and_version(call):
    status, out, err = call("--help")
    assert (status, err) == (0, [])
    assert all(
        word in out
        for word in (
            "fit",
            "plan",
            "validate",
            "export",
            "config",
            "migrate",
            "--version",
            "configs/digits-cpu.yaml",
        )
    )
    assert call("--version") == (0, f"relax-lightning {relax_lightning.__version__}\n", [])
    status, out, _ = call("export", "--help")
    assert (status, "CHECKPOINT" in out) == (0, True)
    assert call()[0] == 2


def test_help_of_fit_lists_every_key_in_100_columns(call):
    status, out, _ = call("fit", "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 100
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "model.algorithm: the PPO arithmetic" in lines
    assert "gamma 1.0 discount, in [0, 1]" in lines
    assert "betas [0.9, 0.98] Adam's decay rates of the two moments" in lines
    assert "batch_size required prompts an iteration, all ranks together" in lines
    assert "curves {} a picture of the main curves in the run folder; null:" in lines
    assert (
        "data.rollout.validation.<name>: a set of prompts to evaluate on, under a name of your own" in lines
    )
    assert lines[
        lines.index("model.critic.parallel: how the model is cut over ranks; null follows the actor's") + 1
    ] == ("the keys of model.actor.parallel")
    schema = yaml.safe_load((Path(__file__).parent / "schema.yaml").read_text())
    for name in (*schema["model"]["algorithm"], *schema["data"]["rollout"]["sampling"], *schema["trainer"]):
        assert any(line.startswith(f"  {name} ") for line in out.splitlines()), name
    assert "\033[" not in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["train"],
            "relax-lightning: wanted one of fit, validate, plan, export, config, migrate, got 'train'; "
            "see relax-lightning --help",
        ),
        (
            ["fit", "config.yaml"],
            "relax-lightning: wanted --key value, got 'config.yaml'; write keys with two dashes",
        ),
        (["fit", "--config"], "relax-lightning: wanted a value after --config, got nothing; add it"),
        (
            ["fit", "--trainer.max_steps", "--x", "1"],
            "relax-lightning: wanted a value after --trainer.max_steps, got --x",
        ),
        (["export", "one"], "relax-lightning: wanted export CHECKPOINT DIR, got one"),
        (
            ["config", "--explain"],
            "relax-lightning: wanted --explain KEY, --schema or --markdown, got --explain;",
        ),
        (
            ["config", "--schema", "x"],
            "relax-lightning: wanted --explain KEY, --schema or --markdown, got --schema x",
        ),
    ],
)
def test_a_command_line_that_cannot_be_read_exits_2(call, words, line):
    status, out, err = call(*words)
    assert (status, out, len(err)) == (2, "", 1)
    assert err[0].startswith(line)


def test_nothing_given_says_what_is_needed_and_where_to_start(call, folder):
    status, _, err = call("fit")
    assert status == 1
    assert err[0] == "relax-lightning: 5 problems in the command line"
    assert [line.split(":")[0] for line in err[1:-1]] == [
        "  - data.rollout.train",
        "  - data.rollout.batch_size",
        "  - data.rollout.reward",
        "  - model.actor.hf_checkpoint",
        "  - trainer.max_steps",
    ]
    assert err[-1].endswith("relax-lightning fit --config configs/digits-cpu.yaml")


def test_faults_of_fields_and_of_the_whole_come_together(call, folder):
    words = ["fit", "--config", "sound.yaml", "--model.algorithm.gama", "0.9", "--model.global_batch_size=3"]
    status, out, err = call(*words)
    assert (status, out) == (1, "")
    assert err == [
        "relax-lightning: 2 problems in sound.yaml",
        "  - model.algorithm.gama: wanted a known key, got 'gama' with the value 0.9; "
        "did you mean `model.algorithm.gamma`?",
        "  - model.global_batch_size: wanted a divisor of batch_size * n_samples_per_prompt = 4, got 3; "
        "change one of the three",
    ]


def test_a_faulty_key_is_not_also_answered_for_its_default(call, folder):
    _, _, err = call(
        "fit", "--config", "sound.yaml", "--trainer.max_steps", "many", "--model.global_batch_size", "3"
    )
    assert [line.partition(": ")[0] for line in err[1:]] == [
        "  - trainer.max_steps",
        "  - model.global_batch_size",
    ]
    _, _, err = call(
        "fit", "--config", "sound.yaml", "--data.rollout.batch_size", "x", "--model.global_batch_size", "3"
    )
    assert [line.partition(": ")[0] for line in err[1:]] == ["  - data.rollout.batch_size"]
    _, _, err = call("fit", "--config", "sound.yaml", "--model.actor.hf_checkpoint", "${oc.env:NOT_SET}")
    assert len(err) == 2


def test_one_problem_and_a_missing_file(call, folder):
    status, _, err = call("fit", "--config", "absent.yaml")
    assert status == 1
    assert err == [
        "relax-lightning: 1 problem in absent.yaml",
        "  - absent.yaml: wanted a YAML file, got nothing at this path; change --config",
    ]


def test_print_config_prints_what_reads_back(call, folder):
    words = ["--config", "sound.yaml", "--data.rollout.sampling.top_k", "-1", "--print_config"]
    status, out, err = call("fit", *words, "--model.algorithm.kl_coef", "0.1")
    assert status == 0
    (warning,) = err
    assert warning.startswith(
        "relax-lightning: warning: model.algorithm: wanted model.reference, got none: KL is "
    )
    Path("printed.yaml").write_text(out)
    config = load(["printed.yaml"], [])
    assert config.model.algorithm.kl_coef == 0.0
    assert config.model.actor.save == "runs/default/checkpoints"
    assert config.model.critic.optimizer.lr == config.model.actor.optimizer.lr


def test_print_config_of_what_is_sound_says_nothing_else_and_loads_equal(call, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.setenv(name, f"/{name}")
    files = sorted((ROOT / "configs").glob("*-cpu.yaml")) + sorted((ROOT / "configs").glob("qwen*.yaml"))
    assert files
    for file in files:
        status, out, err = call("fit", "--config", str(file), "--print_config")
        warnings = [line for line in err if "not available in this version" not in line]
        assert (status, warnings) == (0, []), file
        (tmp_path / "printed.yaml").write_text(out)
        assert load([str(tmp_path / "printed.yaml")], []) == resolve(load([str(file)], []))


def test_config_explains_and_describes(call, folder):
    status, out, err = call("config", "--explain", "gae_lambda")
    assert (status, err) == (0, [])
    assert out.startswith("gae_lambda is model.algorithm.lambd here.\n\nmodel.algorithm.lambd\n  meaning ")
    status, out, err = call("config", "--explain", "model.algorithm.gama")
    assert (status, out) == (1, "")
    assert err == [
        "relax-lightning: --explain: wanted a known key, got 'model.algorithm.gama'; "
        "did you mean `model.algorithm.gamma`?"
    ]
    assert json.loads(call("config", "--schema")[1]) == json_schema()
    assert call("config", "--markdown") == (0, markdown(), [])
    assert [(status, out.split()[:3]) for status, out, _ in (call("config"), call("config", "--help"))] == [
        (2, ["usage:", "relax-lightning", "config"]),
        (0, ["usage:", "relax-lightning", "config"]),
    ]


def test_a_users_own_callbacks_would_shadow_ours(call, folder):
    Path("callbacks").mkdir()
    words = ["fit", "--config", "sound.yaml", "--ckpt_path", "nowhere"]
    assert len(call(*words)[2]) == 2
    for theirs in ("callbacks/__init__.py", "callbacks.py"):
        Path(theirs).write_text("")
        line = call(*words)[2][-1]
        assert (
            f"wanted only {ROOT / 'callbacks'} under the name `callbacks`, got {folder / 'callbacks'}" in line
        )
        assert line.endswith("as well; rename yours")
        Path(theirs).unlink()


@pytest.mark.parametrize(
    "key", ["model.actor.hf_checkpoint", "data.rollout.train.path", "model.actor.warm_start"]
)
def test_a_path_that_the_disk_refuses_is_one_line(call, folder, key):
    status, _, err = call("fit", "--config", "sound.yaml", f"--{key}", "x" * 5000)
    assert (status, len(err)) == (1, 2)
    assert err[1].startswith("  - wanted paths that can be looked at, got File name too long: 'xxx")
    assert len(err[1]) < 1000


def test_resuming_is_checked_before_anything_starts(call, folder):
    status, _, err = call("fit", "--config", "sound.yaml", "--ckpt_path", "nowhere")
    assert status == 1
    assert err[1].startswith(
        "  - --ckpt_path: wanted a complete checkpoint (with manifest.json), got 'nowhere'; give"
    )


FINISHED = ["fit", "--config", "sound.yaml", "--ckpt_path", "auto", "--cluster.accelerator", "cpu"]
FINISHED += ["--cluster.resources", "{actor: [1, 2], critic: [1, 2], rollout: [1, 2], advantages: [1, 0]}"]


def test_a_cluster_is_not_started_for_a_run_that_has_all_its_iterations(call, folder, make_checkpoint):
    make_checkpoint("runs/default/checkpoints", 2)
    assert call(*FINISHED) == (0, "nothing to do: the checkpoint is at iteration 2 of 2\n", [])


def test_export_checks_both_folders(call, folder, make_checkpoint, monkeypatch):
    status, _, err = call("export", "nowhere", "out")
    assert (status, len(err)) == (1, 1)
    assert err[0].startswith(
        "relax-lightning: CHECKPOINT: wanted a complete checkpoint (with manifest.json), got "
    )
    make_checkpoint("root", 3)
    for checkpoint in ("root", "root/iter_0000003"):
        status, _, err = call("export", checkpoint, "model")
        assert (status, len(err)) == (1, 1)
        assert (
            err[0]
            == "relax-lightning: DIR: wanted an empty or new folder, got 'model'; remove it or give another"
        )
    monkeypatch.setenv("RELAX_LIGHTNING_DEBUG", "1")
    with pytest.raises(ValueError, match="DIR: wanted an empty or new folder"):
        main(["export", "root", "model"])


LIGHT = """
import sys
from relax_lightning.cli import main
for words in (["--help"], ["--version"], ["fit", "--help"], ["fit"], ["fit", "--config", sys.argv[1], "--x", "1"],
              ["validate", "--config", sys.argv[1], "--print_config"], ["export", "nowhere", "out"],
              ["config", "--explain", "gae_lambda"], ["config", "--schema"], ["config", "--markdown"], sys.argv[2:]):
    main(words)
heavy = {"torch", "lightning", "pytorch_lightning", "ray", "megatron", "transformers", "mlflow"} & set(sys.modules)
sys.exit(f"imported: {sorted(heavy)}" if heavy else 0)
"""


def test_help_and_faults_leave_the_heavy_packages_alone(folder, make_checkpoint):
    make_checkpoint("runs/default/checkpoints", 2)
    run = [sys.executable, "-c", LIGHT, "sound.yaml", *FINISHED]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
