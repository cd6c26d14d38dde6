"""The command as a user has it: files, messages, exit statuses; and the recipe that ships."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from relax_lightning.cli import main
from relax_lightning.config.loader import read

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "scripts/run-qwen35-9b-8xgpu-ppo.sh"
RECIPE = ROOT / "configs/qwen35-9b-8xgpu-ppo.yaml"


@pytest.fixture
def migrate(capsys):
    """Run the command; give its status, standard output and the lines of standard error."""

    def run(*words):
        status = main(["migrate", *map(str, words)])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return run


@pytest.fixture
def folders(monkeypatch):
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR"):
        monkeypatch.setenv(name, f"/{name}")
    for name in ("NUM_ROLLOUT", "ROLLOUT_BATCH_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_the_reference_script_becomes_the_recipe(migrate, tmp_path, folders, monkeypatch):
    made = tmp_path / "made.yaml"
    status, out, err = migrate(SCRIPT, "-o", made, "--strict")
    assert (status, out) == (0, "")
    assert len(err) == 4
    assert all(line.startswith("relax-lightning: warning: ") for line in err)
    config, problems = read([str(made)], [])
    assert problems.found == []
    assert config == read([str(RECIPE)], [])[0]
    monkeypatch.setenv("NUM_ROLLOUT", "7")
    assert read([str(made)], [])[0].trainer.max_steps == 7


def test_every_key_has_its_flag_beside_it(migrate):
    status, out, _ = migrate(SCRIPT)
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "# Made from run-qwen35-9b-8xgpu-ppo.sh by `relax-lightning migrate`.",
        "lambd: 0.95 # --lambd 0.95",
        "hf_checkpoint: ${oc.env:MODEL_DIR}/Qwen3.5-9B # --hf-checkpoint ${MODEL_DIR}/Qwen3.5-9B",
        "max_steps: ${oc.env:NUM_ROLLOUT,1000} # --num-rollout ${NUM_ROLLOUT:-1000}",
        "betas: [0.9, 0.98] # --adam-beta1 0.9 --adam-beta2 0.98",
        "loss_aggregation: sequence_mean # their default without --calculate-per-token-loss",
        "temperature: 1 # as --rollout-temperature 1",
        "# * --expert-model-parallel-size 1, --expert-tensor-parallel-size 1: 1 is all there is here",
    ):
        assert line in lines
    body = [line for line in out.splitlines() if line and not line.startswith("#")]
    assert all("  # " in line for line in body if not line.endswith(":"))
    assert [line for line in body if not line.startswith(" ")] == [
        f"{name}:" for name in ("trainer", "model", "callbacks", "data", "tracking", "cluster")
    ]


def test_what_is_missing_is_said_and_strict_fails(migrate, write_script, tmp_path, monkeypatch):
    path = write_script(
        "python train.py --hf-checkpoint /m --lr 1e-6 --prompt-data $P --rollout-batch-size $N --frobnicate 1 --gamma 2"
        " --advantage-estimator ppo --num-rollout 3"
    )
    made = tmp_path / "made.yaml"
    status, _, err = migrate(path, "-o", made)
    assert status == 0
    assert [line for line in err if "warning" not in line] == [
        "relax-lightning: not translated: 1",
        "  - --frobnicate 1: an unknown flag; set it by hand if it matters",
        "relax-lightning: to be done: 2",
        "  - model.algorithm.gamma: wanted a number from 0 to 1, got 2.0; "
        "change it, or leave it out for the default, 1.0",
        "  - data.rollout.reward: wanted a value, got nothing; add a registered name, for example exact_match, "
        "or {class_path, init_args}",
    ]
    assert "#   * --frobnicate 1: an unknown flag" in made.read_text()
    monkeypatch.setenv("P", "p.jsonl")
    monkeypatch.setenv("N", "4")
    config, problems = read([str(made)], ["data.rollout.reward=exact_match", "model.algorithm.gamma=1"])
    assert problems.found == []
    assert (config.data.rollout.train.path, config.data.rollout.batch_size) == ("p.jsonl", 4)
    assert migrate(path, "--strict")[0] == 2
    for script in ("f() { python train.py --gamma 1; }\nf\n", "python train.py --gamma 1 $MORE_ARGS\n"):
        assert [migrate(write_script(script), *words)[0] for words in ([], ["--strict"])] == [0, 2]


def test_command_lines(migrate, write_script, tmp_path):
    status, out, err = migrate("--help")
    assert (status, err) == (0, [])
    assert "migrate SCRIPT.sh [-o CONFIG.yaml] [--strict]" in out
    for words in ([], ["a.sh", "b.sh"], ["a.sh", "--fast"], ["a.sh", "-o"], ["--strict"]):
        status, out, err = migrate(*words)
        assert (status, out, len(err)) == (2, "", 1)
        assert err[0].startswith(
            "relax-lightning: wanted migrate SCRIPT.sh [-o CONFIG.yaml] [--strict], got "
        )
    status, _, err = migrate(tmp_path / "absent.sh")
    assert (status, len(err)) == (1, 1)
    assert err[0].startswith("relax-lightning: wanted a bash script, got ")
    there = write_script("", "there.yaml")
    status, _, err = migrate(SCRIPT, "-o", there)
    assert (status, there.read_text()) == (1, "")
    assert err == [f"relax-lightning: -o: wanted a new file, got '{there}'; remove it or give another name"]
    for folder, reason in ((tmp_path / "none", "No such file or directory"), (there, "Not a directory")):
        status, out, err = migrate(SCRIPT, "-o", folder / "x.yaml")
        assert (status, out) == (1, "")
        wanted = f"-o: wanted a file that can be written, got '{folder}/x.yaml'; {reason}; change the path"
        assert err == [f"relax-lightning: {wanted}"]


def test_what_the_plan_would_refuse_is_to_be_done(migrate, write_script):
    flags = (
        "--hf-checkpoint /m --advantage-estimator ppo --prompt-data p --rm-type dapo --rollout-batch-size 16"
    )
    path = write_script(f"python train.py {flags} --global-batch-size 7 --colocate --lr $LR\n")
    status, _, err = migrate(path)
    assert status == 0
    todo = err[next(n for n, line in enumerate(err) if "to be done" in line) :]
    assert any(line.startswith("  - model.global_batch_size: wanted ") for line in todo), todo
    assert not any("not available" in line or "/m" in line for line in todo), todo


def test_nothing_of_the_script_is_run_and_nothing_heavy_is_imported(write_script, tmp_path):
    mark = tmp_path / "mark"
    path = write_script(
        f"X=$(touch {mark})\ntouch {mark}\n`touch {mark}`\npython train.py --lr $(touch {mark})\n"
    )
    code = (
        "import sys; from relax_lightning.cli import main; main(['migrate', sys.argv[1]]);"
        "heavy = {'torch', 'lightning', 'ray', 'transformers', 'megatron'} & set(sys.modules); assert not heavy, heavy"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    assert not mark.exists()


def test_the_shipped_script_starts_fit_with_the_recipe(tmp_path):
    fake = tmp_path / "relax-lightning"
    fake.write_text('#!/bin/sh\necho "$MODEL_DIR" "$@"\n')
    fake.chmod(0o755)
    script = ROOT / "scripts/run-qwen35-9b-8xgpu-ppo.sh"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MODEL_DIR": "/m", "DATA_DIR": "/d"}
    refused = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "EXP_DIR: wanted a folder to write to, got nothing; export EXP_DIR=..." in refused.stderr
    environment["EXP_DIR"] = "/e"
    done = subprocess.run(
        ["bash", script, "--trainer.max_steps", "3"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    words = done.stdout.split()
    assert [words[0], *words[1:3], *words[4:]] == [
        "/m",
        "fit",
        "--config",
        "--ckpt_path",
        "auto",
        "--trainer.max_steps",
        "3",
    ]
    assert Path(words[3]).samefile(RECIPE)
