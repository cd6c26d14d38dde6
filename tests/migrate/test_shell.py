"""Reading bash without running it: commands, words, quotes, variables."""

import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from relax_lightning.migrate.script_reader import ScriptReader
from relax_lightning.migrate.shell_text import (
    Unknown,
    Variable,
    interpolation,
    shown,
    unknown_source,
    variable_names,
)
from relax_lightning.migrate.shell_tree import parse, unread_parts
from relax_lightning.migrate.shell_words import Scope

SCRIPT = r"""
#!/bin/bash
set -ex; pkill -9 python || true     # a comment; with 'an apostrophe
A=1 B="two words" python3 train.py --a \
   --b 2>&1 | tee log.txt
ARGS=(
   --one 1   # not "closed
   # --two 2 \
   --three '{"a": [1, 2]}'
)
ARGS+=(--four $(seq 1 3))
cat <<EOF > file.txt
it's "not closed {
EOF
if [ -n "${X:-}" ]; then
  Y=1
else Y=2; fi
launch() {
  python3 other.py
}
[[ -z $Z ]] && Z=3
last=${last:-"a } b"} >/dev/null
"""


def expand(word, scope):
    """The fields of a word."""
    command = parse(f"x {word}\n").named_children[0]
    return scope.words(command, command.named_children[1:])


def expand_one(word, scope):
    """The text of a word that is assigned."""
    return scope.text(parse(f"X={word}\n").named_children[0].child_by_field_name("value"))


def test_commands_of_a_script(write_script):
    reader = ScriptReader(Scope(write_script(SCRIPT)))
    reader.read(reader.scope.file)
    reader.read_functions()
    assert [(c.line, list(map(shown, c.words))) for c in reader.calls if not c.uncertain] == [
        (3, ["pkill", "-9", "python"]),
        (4, ["python3", "train.py", "--a", "--b"]),
        (5, ["tee", "log.txt"]),
    ]
    assert [(c.line, list(map(shown, c.words))) for c in reader.calls if c.uncertain] == [
        (3, ["true"]),
        (19, ["python3", "other.py"]),
    ]
    texts = ["--one", "1", "--three", """{"a": [1, 2]}""", "--four", "1", "2", "3"]
    assert list(map(shown, reader.scope.variables["ARGS"])) == texts
    assert interpolation(reader.scope.variables["last"]) == "${oc.env:last,'a } b'}"
    assert reader.conditional == {"Y": 16, "Z": 21}


@pytest.mark.parametrize(
    ("script", "line"), [("a\nb 'c\n", 2), ('a "${b"\n', 1), ("a\n\nB=(1 2\n", 3), ("a $(b\n", 1)]
)
def test_what_is_never_closed_is_named_with_its_line(script, line):
    with pytest.raises(ValueError, match=f"in line {line}, got none"):
        unread_parts(parse(script))


VARIABLES = {
    "NAME": ("qwen",),
    "FLAGS": ("--a 1  --b",),
    "EMPTY": (),
    "OUT": (Variable("EXP_DIR"), "/run"),
    "LIST": [("x",), ("y z",)],
    "NONE": [],
}


@pytest.fixture
def scope(tmp_path):
    return Scope(tmp_path / "scripts/run.sh", dict(VARIABLES))


WORDS = [
    ("plain", ["plain"]),
    (r"a\ b'c  d'\$e", ["a b" + "c  d$e"]),
    (r'"a\n \"$NAME\" \\ \$x"', [r'a\n "qwen" \ $x']),
    ("'${NAME}'", [r"\${NAME}"]),
    ("$NAME-${NAME}s", ["qwen-qwens"]),
    ("$FLAGS", ["--a", "1", "--b"]),
    ('"$FLAGS"', ["--a 1  --b"]),
    ("x$FLAGS", ["x--a", "1", "--b"]),
    ("$EMPTY", []),
    ('"$EMPTY"', [""]),
    ("''", [""]),
    ("$OUT/actor", ["${oc.env:EXP_DIR}/run/actor"]),
    ("${LIST[@]}", ["x", "y", "z"]),
    ('"${LIST[@]}"', ["x", "y z"]),
    ('"${LIST[1]}"', ["y z"]),
    ("$LIST", ["x"]),
    ('"${NONE[@]}"', []),
    ("${MODEL_DIR}/m", ["${oc.env:MODEL_DIR}/m"]),
    ("$MODEL_DIR/$DATA_DIR", ["${oc.env:MODEL_DIR}/${oc.env:DATA_DIR}"]),
    ("${SIZE:-32}", ["${oc.env:SIZE,32}"]),
    ("${SIZE:=3e-4}", ["${oc.env:SIZE,'3e-4'}"]),
    ("${V:-1.10}${W:-NaN}", ["${oc.env:V,'1.10'}${oc.env:W,'NaN'}"]),
    ("${DIR:-$OUT}", ["${oc.env:DIR,${oc.env:EXP_DIR}/run}"]),
    ("${DIR:-'a b'/c}", ["${oc.env:DIR,'a b/c'}"]),
    ('''"${DIR:-'a b', {x}"''', ["${oc.env:DIR,'\\'a b\\', {x'}"]),
    ('"${DIR:-}"', ["${oc.env:DIR,''}"]),
    ("${DIR:-null}", ["${oc.env:DIR,'null'}"]),
    ("${NAME:-other}", ["qwen"]),
    ("${EMPTY:-other}", ["other"]),
    ("${EMPTY-other}", []),
    ("${MODEL_DIR:?say where}", ["${oc.env:MODEL_DIR}"]),
    ("${NOT_SET:+--flag}", []),
    ("${NAME:+--flag $NAME}", ["--flag", "qwen"]),
    ("~/models", ["${oc.env:HOME}/models"]),
    ("$(seq 16 8 32)", ["16", "24", "32"]),
    ("`seq 3`", ["1", "2", "3"]),
    ('"$(seq 2 3)"', ["2\n3"]),
    ("100%$", ["100%$"]),
]


@pytest.mark.parametrize(("word", "texts"), WORDS)
def test_what_a_word_means(scope, word, texts):
    assert [interpolation(text) for text in expand(word, scope)] == texts


def test_words_mean_in_a_configuration_what_they_mean_to_bash(tmp_path, monkeypatch):
    for name in ("SIZE", "DIR", "NOT_SET", "V", "W"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MODEL_DIR", "DATA_DIR", "EXP_DIR", "HOME"):
        monkeypatch.setenv(name, f"/of/{name}")
    commands = "".join(f"show {word}\n" for word, _ in WORDS)
    script = (
        "show() { for field in \"$@\"; do printf '%s\\0' \"$field\"; done; printf '\\1'; }\n"
        "NAME=qwen FLAGS='--a 1  --b' EMPTY= OUT=$EXP_DIR/run LIST=(x 'y z') NONE=()\n"
    )
    done = subprocess.run(["bash", "-c", script + commands], capture_output=True, text=True, check=True)
    expected = [said.split("\0")[:-1] for said in done.stdout.split("\1")[:-1]]

    scope = Scope(tmp_path / "run.sh")
    for name, value in VARIABLES.items():
        scope.variables[name] = value
    for (word, _), fields in zip(WORDS, expected, strict=True):
        meant = [interpolation(text) for text in expand(word, scope)]
        assert list(OmegaConf.create(meant)) == fields, word


def test_where_the_script_lies(scope):
    folder = str(scope.file.parent)
    for source in (
        'cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd',
        'cd "$(dirname "$0")" && pwd',
        "dirname ${BASH_SOURCE}",
    ):
        assert expand_one(f'"$({source})"', scope) == (folder,)
    above = expand_one('"$(cd "$(dirname "$0")/../x" && pwd)"/y', scope)
    assert above == (str(Path(folder).parent / "x/y"),)


@pytest.mark.parametrize(
    "word", ["$(date +%F)", "x-$((1 + 2))", "$1", '"$@"', "${NAME//q/w}", "${#LIST[@]}", "`pwd`"]
)
def test_what_only_bash_can_tell_is_unknown(scope, word):
    (text,) = expand(word, scope)
    assert isinstance(text[-1], Unknown)
    assert unknown_source(text) == text[-1].source
    assert unknown_source((Variable("A", (Variable("B", text),)),)) == text[-1].source


def test_an_assigning_default_and_a_missing_array_are_remembered(scope):
    expand("${STEPS:=7}", scope)
    assert interpolation(expand_one("$STEPS", scope)) == "${oc.env:STEPS,7}"
    assert variable_names(expand_one("$STEPS/${A:-$B}", scope)) == {"STEPS", "A", "B"}
    assert expand('"${MODEL_ARGS[@]}"', scope) == []
    assert scope.unset_arrays == ["MODEL_ARGS"]
