"""From a script to the flags of the command that it starts training with."""

import pytest

from relax_lightning.migrate.launch_script import read_launch_script

MODEL = 'MODEL_ARGS=(--num-layers 36 --rotary-base "${ROTARY:-1000000}")\n'

SCRIPT = """
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/qwen3.sh"
NAME=mine
now=$(date +%F)
DATA=${DATA:-/data}
CKPT_ARGS=(
   --hf-checkpoint ${MODEL_DIR}/Qwen3   # ${MODEL_DIR} comes from outside
   # --load nowhere
   --save=/runs/${NAME}
)
CKPT_ARGS+=(--lr 1e-6 --rollout-top-k -1)
if [ -n "${WANDB_API_KEY:-}" ]; then
   CKPT_ARGS+=(--use-wandb --wandb-group "$NAME")
   SIZE=4
fi
python3 tools/convert.py --hf-checkpoint elsewhere
ray start --head --num-gpus 8
ray job submit --address="http://x:8265" -- python3 -u -m relax.entrypoints.train \\
   --resource '{"actor": [1, 8]}' \\
   --colocate \\
   "${MODEL_ARGS[@]}" ${CKPT_ARGS[@]} "${LATER_ARGS[@]}" \\
   --rollout-batch-size $SIZE --prompt-data ${DATA}/$now.jsonl 2>&1 | tee log-${now}.txt
"""


def test_flags_of_a_whole_script(write_script):
    write_script(MODEL, "models/qwen3.sh")
    script = read_launch_script(write_script(SCRIPT))
    assert [str(flag) for flag in script.flags] == [
        """--resource '{"actor": [1, 8]}'""",
        "--colocate",
        "--num-layers 36",
        "--rotary-base ${ROTARY:-1000000}",
        "--hf-checkpoint ${MODEL_DIR}/Qwen3",
        "--save /runs/mine",
        "--lr 1e-6",
        "--rollout-top-k -1",
        "--rollout-batch-size ${SIZE}",
        "--prompt-data '${DATA:-/data}/$(date +%F).jsonl'",
    ]
    assert script.notes == [
        "line 14, only under a condition, was left out: CKPT_ARGS --use-wandb --wandb-group mine",
        "LATER_ARGS is not set in the script: its flags are unknown",
        "line 15 sets SIZE only under a condition: here it comes from the environment",
    ]


def test_a_model_file_is_found_beside_the_script_and_missed_elsewhere(write_script):
    path = write_script("source $MODEL_CONFIG_DIR/qwen3.sh\npython train.py --a ${MODEL_ARGS[@]}\n")
    script = read_launch_script(path)
    assert [str(flag) for flag in script.flags] == ["--a"]
    assert script.notes == [
        "line 1: source ${MODEL_CONFIG_DIR}/qwen3.sh: no such file was found; its flags are unknown",
        "MODEL_ARGS is not set in the script: its flags are unknown",
    ]
    for name in ("models/qwen3.sh", "qwen3.sh"):
        write_script(MODEL, name)
        script = read_launch_script(path)
        assert (len(script.flags), script.notes) == (3, [])
    write_script("MODEL_ARGS=(", "qwen3.sh")
    (broken, _) = read_launch_script(path).notes
    assert "wanted the closing ) of MODEL_ARGS=( in line 1" in broken


def test_a_sourced_file_knows_its_own_folder_and_may_source_itself(write_script):
    write_script(
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nsource "$HERE/local.sh"\nMODELS="$HERE/../models"\n',
        "entrypoint/local.sh",
    )
    write_script(MODEL, "models/qwen3.sh")
    path = write_script(
        'if [ -z "$X" ]; then\n  source "$(dirname "$0")/entrypoint/local.sh"\nfi\n'
        'source "${MODELS}/qwen3.sh"\npython train.py "${MODEL_ARGS[@]}"\n'
    )
    assert len(read_launch_script(path).flags) == 2


@pytest.mark.parametrize(
    "command",
    [
        "python3 train.py --a 1 --b",
        "FOO=1 nohup /usr/bin/python3.12 -u train.py --a 1 --b &",
        "cd x && torchrun --nproc-per-node 8 train.py --a 1 --b > log 2>&1",
        "torchrun --nproc-per-node 8 -m pkg.train --a 1 --b",
        "main() {\n  python -m pkg.train --a 1 --b\n}\nmain",
        'ARGS="--a 1 --b"\npython train.py $ARGS',
        'ARGS=(--a 1)\nALL=("${ARGS[@]}" --b)\nCMD="python train.py"\n$CMD "${ALL[@]}"',
        "A_ARGS=(--a 1)\nB_ARGS=(--b)",
    ],
)
def test_ways_to_launch(write_script, command):
    assert [str(flag) for flag in read_launch_script(write_script(command)).flags] == ["--a 1", "--b"]


A, B = "--hf-checkpoint /m --lr 1 --gamma 0.9", "--hf-checkpoint /m --lr 1 --gamma 0.5"
IN_DOUBT = "starts training only under a condition or in a function: its flags were read"


@pytest.mark.parametrize(
    ("script", "gamma", "notes"),
    [
        (
            f"if [ $1 ]; then\n python train.py {A} --lambd 1\nelse\n python train.py {B}\nfi\n",
            "0.9",
            [f"line 2 {IN_DOUBT}", "line 4, one more launch of train.py, was left out: --gamma 0.5"],
        ),
        (
            f"case $1 in\na) python train.py {A} ;;\n*) python -m pkg.train {B} ;;\nesac\n",
            "0.9",
            [f"line 2 {IN_DOUBT}", "line 3, one more launch of pkg.train, was left out: --gamma 0.5"],
        ),
        (f"launch() {{ python train.py {A}; }}\nlaunch\n", "0.9", [f"line 1 {IN_DOUBT}"]),
        (f"[ -n $X ] && cd x && python train.py {A}\n", "0.9", [f"line 1 {IN_DOUBT}"]),
        (f"cd x || exit 1\ncd x && python train.py {A}\n", "0.9", []),
        (
            f"python train.py {A}\npython train.py {B}\n",
            "0.9",
            ["line 2, one more launch of train.py, was left out: --gamma 0.5"],
        ),
        (
            f"if [ $1 ]; then\n python train.py {A} --lambd 1\nfi\npython train.py {B}\n",
            "0.5",
            ["line 2, one more launch of train.py, was left out: --gamma 0.9 --lambd 1"],
        ),
        (f"python prepare.py --lr 1\nif x; then python train.py {A}; fi\n", "0.9", [f"line 2 {IN_DOUBT}"]),
        (
            f'NVLINK=0\nARGS="{A}"\nif [ $1 ]; then\n ARGS="$ARGS --lambd 1"\n NVLINK=1\nfi\n'
            "ENV=$NVLINK\nALL=($ARGS)\npython train.py ${ALL[@]}\n",
            "0.9",
            [f"line 4: ARGS={A} --lambd 1, only under a condition, was left out"],
        ),
    ],
)
def test_launches_and_flags_that_may_not_hold_are_named(write_script, script, gamma, notes):
    script = read_launch_script(write_script(script))
    (found,) = [flag for flag in script.flags if flag.name == "--gamma"]
    assert (str(found), script.notes) == (f"--gamma {gamma}", notes)


def test_a_model_file_that_only_one_branch_sources_is_named(write_script):
    write_script("M=(--lr 1)\n", "a.sh")
    write_script("M=(--lr 2)\n", "b.sh")
    branches = "if [ $1 ]; then\nsource a.sh\nelse\nsource b.sh\nfi\n"
    script = read_launch_script(write_script(f"{branches}python train.py ${{M[@]}}\n"))
    assert [str(flag) for flag in script.flags] == ["--lr 2"]
    assert script.notes == ["line 4, only under a condition, was read: source b.sh, which sets M anew"]


UNSET = "EXTRA_ARGS is not set in the script: its flags are unknown"


@pytest.mark.parametrize(
    ("script", "flags", "note"),
    [
        ("python train.py $EXTRA_ARGS --gamma 0.9", ["--gamma 0.9"], UNSET),
        ("python train.py --gamma 0.9 $EXTRA_ARGS --lambd 1", ["--gamma 0.9", "--lambd 1"], UNSET),
        ("python train.py --gamma 0.9 ${EXTRA_ARGS:-}", ["--gamma 0.9"], UNSET),
        ("python train.py --normalize-advantages $EXTRA_ARGS", ["--normalize-advantages"], UNSET),
        ("python train.py --sglang-enable-metrics $EXTRA_ARGS", ["--sglang-enable-metrics"], UNSET),
        (
            "python train.py --use-kl-loss $MORE",
            ["--use-kl-loss"],
            "MORE is not set in the script: its flags are unknown",
        ),
        (
            "ARGS=$(cat args.txt)\npython train.py --gamma 0.9 $ARGS",
            ["--gamma 0.9"],
            "$(cat args.txt) is known to bash only: its flags are unknown",
        ),
        (
            "read -r -d '' ARGS <<'X'\n--lr 1\nX\npython train.py $ARGS --gamma $GAMMA",
            ["--gamma ${GAMMA}"],
            "ARGS is not set in the script: its flags are unknown",
        ),
        ("python train.py --rollout-stop-token-ids 1 $TWO --eval-prompt-data a $PATH", None, None),
    ],
)
def test_a_variable_that_is_no_value_stands_for_unknown_flags(write_script, script, flags, note):
    read = read_launch_script(write_script(script + "\n"))
    assert flags is None or [str(flag) for flag in read.flags] == flags
    assert read.notes == ([] if note is None else [note])


def test_arguments_that_the_script_hands_on_are_no_values(write_script):
    script = read_launch_script(write_script('python train.py --a 1 "$@"\n'))
    assert [str(flag) for flag in script.flags] == ["--a 1"]
    assert script.notes == ["the script hands its own arguments on: give them to fit, as keys"]


def test_what_is_no_launch_script(write_script, tmp_path):
    with pytest.raises(
        ValueError, match=r"wanted a bash script, got '.*absent.sh'; No such file or directory; change"
    ):
        read_launch_script(tmp_path / "absent.sh")
    with pytest.raises(
        ValueError, match="wanted a launch script with flags such as --hf-checkpoint, got 'none in "
    ):
        read_launch_script(write_script("echo hello --flag\n"))
    with pytest.raises(
        ValueError, match=r"run.sh: wanted the end of the quote or bracket that begins in line 2"
    ):
        read_launch_script(write_script("a\nb 'c\n"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="it is no text"):
        read_launch_script(tmp_path / "binary")


@pytest.mark.parametrize(
    "command",
    [
        'DIR=/x\npython3 "$DIR/train.py" --a 1 --b',
        "python3 ${D:-/x}/train.py --a 1 --b",
        "python3 $(pwd)/train.py --a 1 --b",
        "D=$(git rev-parse --show-toplevel)\npython3 ${D}/$X/train.py --a 1 --b",
        '"$PYTHON" train.py --a 1 --b',
        "${PYTHON:-python3} train.py --a 1 --b",
        'python3 "${SCRIPT:-train.py}" --a 1 --b',
        'python3 "$SCRIPT" --a 1 --b',
        "uv run train.py --a 1 --b",
        'ARGS="--a 1 --b"; bash -c "cd /x && python3 train.py $ARGS"',
        "docker exec c bash -lc 'python train.py --a 1 --b'",
        'ssh h "cd x && python train.py --a 1 --b"',
        'CMD="python3 train.py --a 1"\nCMD+=" --b"\neval $CMD',
        "bash <<EOF\npython train.py --a 1 --b\nEOF\n",
        "cat <<EOF > /tmp/job.sh\npython train.py --a 1 --b\nEOF\nsbatch /tmp/job.sh\n",
        'set -- --a 1 --b\npython train.py "$@"',
        "if ! python train.py --a 1 --b; then exit 1; fi",
        'for x in "--a 1" --b; do A+=($x); done\npython train.py "${A[@]}"',
        'IFS=" " read -r -a A <<< "--a 1 --b"\npython train.py "${A[@]}"',
        'mapfile -t A <<< "--a\n1\n--b"\npython train.py "${A[@]}"',
        'MODE=f\nif [ "$MODE" = f ]; then A=(--a 1 --b); else A=(--c); fi\npython train.py "${A[@]}"',
        "ARGS=$(cat <<EOF\n--a 1\n--b\nEOF\n)\npython train.py $ARGS",
        'A=(--a 1)\r\npython train.py "${A[@]}" \\\r\n --b\r\n',
        "A=1 B=2\npython train.py --a $A --b",
    ],
)
def test_more_ways_to_launch(write_script, command):
    script = read_launch_script(write_script(command))
    assert ([str(flag) for flag in script.flags], script.notes) == (["--a 1", "--b"], [])


def test_a_function_that_is_called_is_followed(write_script):
    script = read_launch_script(
        write_script('main() {\n ARGS=(--lr 1)\n python3 train.py "${ARGS[@]}" "$2"\n}\nmain x --b\n')
    )
    assert [str(flag) for flag in script.flags] == ["--lr 1", "--b"]
    assert script.notes == [
        "line 3 starts training only under a condition or in a function: its flags were read"
    ]


def test_only_the_arrays_of_the_launch_are_read(write_script):
    script = read_launch_script(write_script('A=(--lr 1)\nB=(--lr 9e-9)\n"$RUN" "${A[@]}"\n'))
    assert ([str(flag) for flag in script.flags], script.notes) == (["--lr 1"], [])
    assert script.unused == [("--lr 9e-9", "B")]


@pytest.mark.parametrize(
    "launch",
    [
        'run() { "$@"; }\nrun python train.py "${A[@]}"',
        'set -- "${A[@]}"\npython train.py "$@"',
        'for x in "${A[@]}"; do B+=("$x"); done\npython train.py "${B[@]}"',
        'read -r -a B <<< "${A[*]}"\npython train.py "${B[@]}"',
        'bash -c "python train.py ${A[*]}"',
        "cat <<EOF > job.sh\npython train.py ${A[*]}\nEOF\nsbatch job.sh",
    ],
)
def test_what_reaches_the_launch_by_another_way_is_used(write_script, launch):
    script = read_launch_script(write_script(f"A=(--lr 1)\nif [ $1 ]; then A+=(--gamma 0.9); fi\n{launch}\n"))
    assert [str(flag) for flag in script.flags] == ["--lr 1"]
    assert "line 2, only under a condition, was left out: A --gamma 0.9" in script.notes
    assert "A" not in [name for _, name in script.unused]


@pytest.mark.parametrize("end", ["", " \\ ", " \\\n  # --own 1 \\"])
def test_a_line_that_lost_its_backslash_is_said(write_script, end):
    script = read_launch_script(write_script(f"python train.py --lr 1{end}\n  --gamma 0.9 \\\n  --own 2\n"))
    assert [str(flag) for flag in script.flags] == ["--lr 1"]
    (note,) = script.notes
    assert "begins with a flag, and bash takes it for a command" in note
    assert note.endswith("--gamma 0.9 --own 2 was left out")


def test_what_a_default_decides_is_said(write_script):
    script = read_launch_script(
        write_script(
            'if [[ "${P:-a}" == a ]]; then A=(--lr 1); else A=(--lr 2); fi\npython train.py ${A[@]}\n'
        )
    )
    assert [str(flag) for flag in script.flags] == ["--lr 1"]
    assert script.notes == [
        "line 1 is read as the default of P says",
        "line 1, only under a condition, was left out: A --lr 2",
    ]


def test_a_script_that_grows_without_end_is_refused(write_script):
    doubling = "A=(--lr 1)\n" + 'A+=("${A[@]}")\n' * 40
    for script in (
        doubling,
        "f() { f; }\nf\n",
        "for i in $(seq 9999); do for j in $(seq 9999); do x; done; done\n",
    ):
        with pytest.raises(ValueError, match="wanted "):
            read_launch_script(write_script(script + "python train.py ${A[@]}\n"))
