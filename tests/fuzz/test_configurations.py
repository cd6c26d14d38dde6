"""Configurations made at random, through the command: never a traceback, a line a fault, and what is taken reads back.

`settings.py` says how many.
"""

from __future__ import annotations

import copy
import io
import json
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_lightning.cli import main
from relax_lightning.config.sections import ANY_NAME, entries
from relax_lightning.config.yaml_text import dump_yaml
from tests.fuzz.settings import fuzz

pytestmark = pytest.mark.slow

SECONDS = 10.0
"""For one configuration, of the processor's time: many times what it takes."""
LONGEST_LINE = 3000

ARCHITECTURE = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 16}
BASE = {
    "trainer": {"max_steps": 2, "callbacks": [{"class_path": "my.Callback", "init_args": {"a": [1]}}]},
    "model": {"actor": {"architecture": ARCHITECTURE, "tokenizer": "my.tokenizer"}},
    "data": {
        "rollout": {
            "train": {"path": "x.jsonl"},
            "validation": {"mine": {"class_path": "my.Prompts", "init_args": {"n": 3}}},
            "batch_size": 4,
            "reward": "exact_match",
            "sampling": {"stop": ["010", "yes"]},
        }
    },
    "cluster": {"resources": {"actor": [1, 2], "critic": [1, 2], "rollout": [1, 2], "advantages": [1, 0]}},
}
KEYS = [key.replace(ANY_NAME, "mine") for key in entries()]


WORDS = """
    010 0042 1:00 1_000 1e3 1e-5 1e999 -1e-400 0o17 0x1F yes no on off y ~ null NULL .inf -.inf .nan 2026-12-01 true
    false auto always ppo cpu a.B my.Mine /dev/null /proc ../x . - -- + ${seed_everything} ${nothing} ${ ${oc.env:HOME}
    ${oc.env:NO,010} ${oc.env:NO} ${a}${b} ??? $ { [ ] } , : & * ! | > % @ ` " ' # !!int <<: *a &a
"""
TEXT = st.one_of(
    st.sampled_from(
        [*WORDS.split(), "", " ", "a: b", "a #b", "a\nb", "\t", "ä 🧬", "x" * 5000, "7" * 5000, "[" * 99]
    ),
    st.text(max_size=8),
)
NUMBERS = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([2**31, 2**32 - 1, 2**63, -(2**63), 10**30, 10**299, -(10**299)]),
    st.floats(width=32),
    st.sampled_from([1e-300, 1e300, 0.5, 1.0, -0.0]),
)
NAMES = st.one_of(TEXT, st.integers(0, 3), st.sampled_from(["class_path", "init_args"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(NAMES, inner, max_size=3),
    ),
    max_leaves=5,
)  # fmt: skip


@st.composite
def keys(draw: st.DrawFn) -> str:
    """Keys of ours, also with a typo, and names that a list or an open mapping may have."""
    key = draw(st.sampled_from(KEYS))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        place = draw(st.integers(0, len(key)))
        return key[:place] + draw(st.sampled_from(["x", ".", "", "_", "-", "0", "é"])) + key[place + 1 :]
    return (
        f"{key}.{draw(st.sampled_from(['0', '7', 'x', 'init_args', 'class_path.x', '0.init_args.a']))}"
        if kind == 1
        else key
    )


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """A sound configuration with a few keys set, replaced or taken out."""
    tree = copy.deepcopy(BASE)
    for _ in range(draw(st.integers(0, 4))):
        section: Any = tree
        *above, name = draw(keys()).split(".")
        for part in above:
            if not isinstance(section.get(part), dict):
                section[part] = {}
            section = section[part]
        if draw(st.booleans()) or name not in section:
            section[name] = draw(VALUES)
        else:
            del section[name]
    return tree


@st.composite
def texts(draw: st.DrawFn) -> str:
    """The same as YAML, sometimes with characters taken out, put in or repeated."""
    text = dump_yaml(draw(trees()))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 30))
        piece = draw(
            st.one_of(
                TEXT, st.just(text[start:end] * 2), st.sampled_from(["\n", "\n---\n", "\r", "\0", "  "])
            )
        )
        text = text[:start] + piece + text[end:]
    return text


FLAGS = st.lists(st.tuples(keys(), TEXT).map(lambda pair: f"--{pair[0]}={pair[1]}"), max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "x.jsonl").write_text(json.dumps({"prompt": "1", "label": "2"}) + "\n")
    return folder


def call(*words: str) -> tuple[int, str, list[str]]:
    out, err = io.StringIO(), io.StringIO()
    start = time.process_time()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(list(words))
    assert time.process_time() - start < SECONDS
    return status, out.getvalue(), err.getvalue().splitlines()


def check_faults(status: int, lines: list[str]) -> None:
    """One line of how many, one a fault, and where there is nothing at all one of where to start."""
    assert status in (0, 1, 2), lines
    assert "Traceback" not in "".join(lines)
    assert all(len(line) < LONGEST_LINE for line in lines)
    if status == 1:
        count = int(lines[-1 - sum(line.startswith("  ") for line in lines)].split()[1])
        faults = [line for line in lines if line.startswith("  - ")]
        assert len(faults) == count
        assert all(": " in line for line in faults)


@fuzz(100)
@given(text=texts(), flags=FLAGS)
def test_a_configuration_is_taken_or_refused_in_lines(folder: Path, text: str, flags: list[str]) -> None:
    file = folder / "some.yaml"
    file.write_bytes(text.encode(errors="surrogatepass"))
    status, out, err = call("fit", "--config", str(file), *flags, "--print_config")
    check_faults(status, err)
    if status == 0:
        (folder / "printed.yaml").write_text(out)
        again = call("fit", "--config", str(folder / "printed.yaml"), "--print_config")
        assert again[:2] == (0, out)


@fuzz(40)
@given(tree=trees(), flags=FLAGS)
def test_a_plan_looks_at_any_configuration(folder: Path, tree: dict[str, Any], flags: list[str]) -> None:
    file = folder / "planned.yaml"
    file.write_text(dump_yaml(tree))
    status, out, err = call("plan", "--config", str(file), "--no-files", "--json", *flags)
    assert status in (0, 1, 2), err
    assert "Traceback" not in "".join(err)
    if status != 2:
        assert isinstance(json.loads(out), dict)
