"""Launch scripts made at random: never a traceback, bounded time, and no flag that is lost without a word.

`settings.py` says how many.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_lightning.migrate.document import write_document
from relax_lightning.migrate.launch_script import read_launch_script
from relax_lightning.migrate.translation import translate
from tests.fuzz.settings import fuzz

pytestmark = pytest.mark.slow

SECONDS = 10.0
"""For one script: a hundred times what it takes, for a machine that is busy with something else."""


PROGRAMS = (
    "python3 train.py",
    '"$PYTHON" train.py',
    "${PYTHON:-python3} -u ${SCRIPT:-train.py}",
    'python "$DIR/train.py"',
    "python $(pwd)/train.py",
    '"$PYTHON" "$SCRIPT"',
    "uv run train.py",
    "torchrun --nproc-per-node 8 train.py",
    "ray job submit --address=x -- python3 -m relax.entrypoints.train",
    "CUDA_VISIBLE_DEVICES=0 nohup python train.py",
    "srun docker exec c python /x/train.py",
)
AROUND = (
    "{}",
    "main() {{\n{}\n}}\nmain",
    "if [ $1 ]; then\n{}\nfi",
    "if ! {}; then exit 1; fi",
    "cd x && {}",
    "({}) 2>&1 | tee log",
    "for i in 1; do\n{}\ndone",
    "bash <<END\n{}\nEND",
)
KINDS = (
    "inline",
    "array",
    "quoted array",
    "text",
    "function",
    "branch",
    "default branch",
    "case",
    "loop",
    "set",
    "lost",
    "late",
)
NAMES = (
    "--hf-checkpoint",
    "--lr",
    "--gamma",
    "--eps-clip",
    "--lambd",
    "--rollout-stop",
    "--sglang-dtype",
    "--own-flag",
    "--kl-coef",
)


def _written(number: int, kind: str, flag: str) -> tuple[str, str]:
    """What stands before the launch, and in it, so that the launch may have the flag."""
    array = f"ARGS_{number}"
    use = f'"${{{array}[@]}}"'
    return {
        "inline": ("", flag),
        "array": (f"{array}=(\n  {flag}   # one\n)\n", f"${{{array}[@]}}"),
        "quoted array": (f"{array}=()\n{array}+=({flag})\n", use),
        "text": (f'{array}="{flag}"\n{array}+=" "\n', f"${array}"),
        "function": (f"fill_{number}() {{ {array}=({flag}); }}\nfill_{number}\n", use),
        "branch": (f"{array}=()\nif [ -f x ]; then {array}+=({flag}); fi\n", use),
        "default branch": (
            f'if [[ "${{M:-a}}" == a ]]; then {array}=(--x-{number}); else {array}=({flag}); fi\n',
            use,
        ),
        "case": (f"case $M in a) {array}=({flag}) ;; esac\n", use),
        "loop": (f"{array}=()\nfor w in {flag}; do {array}+=($w); done\n", use),
        "set": (f"read -r -a {array} <<< '{flag}'\n", use),
        "lost": ("", ""),
        "late": (f"export {array}='{flag}'\n", f"${array}"),
    }[kind]


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A script, and what must come back from it: the value of every flag."""
    values, before, words = [], "", []
    lost = ""
    for number in range(draw(st.integers(1, 6))):
        kind, name = draw(st.sampled_from(KINDS)), draw(st.sampled_from(NAMES))
        values.append(f"value{number}q")
        flag = f"{name}-{number} {values[-1]}" if name == "--own-flag" else f"{name} {values[-1]}"
        first, word = _written(number, kind, flag)
        before += first
        words += [word] if word else []
        lost += f"  {flag} \\\n" if kind == "lost" else ""
    launch = f"{draw(st.sampled_from(PROGRAMS))} --num-rollout 3 " + draw(
        st.sampled_from([" ", " \\\n   "])
    ).join(words)
    around = draw(st.sampled_from(AROUND))
    if lost:
        return f"{before}{launch}\n{lost}\n", values
    return f"#!/bin/bash\nset -ex\n{before}{around.format(launch)}\n", values


def _told(text: str) -> str:
    """All that a translation says of a script: the configuration with its comments."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sh"
        path.write_text(text)
        begun = time.monotonic()
        try:
            return write_document(translate(read_launch_script(path)), "run.sh")
        except ValueError as error:
            return f"refused: {error}"
        finally:
            assert time.monotonic() - begun < SECONDS, text


@fuzz(250)
@given(scripts())
def test_no_flag_is_lost_without_a_word(drawn):
    text, values = drawn
    told = _told(text)
    assert [value for value in values if value not in told] == [], f"{text}\n{told}"


@fuzz(250)
@given(scripts(), st.integers(0, 2**32 - 1))
def test_what_is_no_bash_any_more_is_no_traceback(drawn, number):
    text, draw = list(drawn[0]), random.Random(number)
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(text) + 1)
        text[at : at + draw.randint(0, 3)] = draw.choice(
            "\"'`$(){}[]\\\n;&|<>#!=~*?\té\U0001d7d9\x00 "
        ) * draw.randint(1, 2)
    assert _told("".join(text))


@fuzz(100)
@given(st.text(max_size=200))
def test_any_text_is_told_in_words(text):
    assert _told(text.encode(errors="replace").decode())
