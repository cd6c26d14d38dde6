"""YAML 1.2's core schema, value by value; what is refused, with its place; and that what is written reads back."""

import copy
import math
import time

import pytest
import yaml

from relax_lightning.config import ConfigurationError, load, to_yaml
from relax_lightning.config.yaml_text import dump_in_one_line, dump_yaml, parse_yaml, yaml_fault
from tests.config.good import GOOD, write


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, int(text)) for text in ("0042", "010", "-017", "+3", "0", "-0", "9" * 300)],
        *[("0o17", 15), ("0x1F", 31), ("0xff", 255)],
        *[("1e3", 1000.0), ("1e-5", 1e-5), (".5", 0.5), ("5.", 5.0), ("-1.5E+2", -150.0), ("00.10", 0.1)],
        *[(".inf", math.inf), ("-.INF", -math.inf), ("+.Inf", math.inf)],
        *[(text, text.lower() == "true") for text in ("true", "True", "TRUE", "false", "False", "FALSE")],
        *[(text, None) for text in ("~", "null", "Null", "NULL", "", "# only this")],
        *[
            (text, text)
            for text in (
                *("1:00", "190:20:30", "1_000", "0b11", "0o9", "0X1F", "08:00", "1e", "e5", ".", "+", "1.2.3"),
                *("yes", "No", "on", "OFF", "y", "N", "tRUE", "nuLL", "none", "inf", "nan", ".iNF", "-.nan"),
                *("2026-12-01", "2026-12-01T10:00:00Z", "=", "é", "🧬"),
            )
        ],
        *[('"010"', "010"), ("'yes'", "yes"), ("!!str 010", "010"), ('!!int "7"', 7), ("!!float 1", 1.0)],
        ('"\\ud83e\\uddec"', "🧬"),
        ("\ufeffa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        ("%YAML 1.1\n---\n[010, yes]", [10, "yes"]),
        ("{on: 1, 2024: 2, y: 3}", {"on": 1, 2024: 2, "y": 3}),
        ("{a: &a {b: 1}, c: {<<: *a, b: 2}, d: {<<: [*a, {e: 3}]}}",
         {"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 1, "e": 3}}),
    ],
)  # fmt: skip
def test_values(text, value):
    read = parse_yaml(text)
    assert (read, type(read)) == (value, type(value))


def test_not_a_number_and_other_encodings():
    assert math.isnan(parse_yaml(".NaN"))
    assert parse_yaml("a: é".encode("utf-16")) == parse_yaml("a: é".encode("utf-8-sig")) == {"a": "é"}


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(9 * [f'*{below}'])}]\n"
    for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x: 1\n---\nx: 2", "line 2, column 1: expected a single document in the stream, but found another"),
        ("a: 1\nb: \t2", "line 2, column 4: found character '\\t'"),
        ("a: 1\na: 2", "line 2, column 1: the key a twice"),
        ("{1: x, 01: y}", "line 1, column 8: the key 01 twice"),
        ("{1: x, '1': y}", "line 1, column 8: the key 1 twice"),
        *[
            (f"{{{key}: 1}}", f"line 1, column 2: the key {key}, which is no text")
            for key in ("true", "~", "1.5")
        ],
        ("? [a]\n: b", "line 1, column 3: the key of several values, which is no text"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
        ("&a [*a]", "line 1, column 5: *a inside of what it stands for"),
        (LAUGHS, "line 5, column 12: more than 20000 values"),
        (f"[{'1, ' * 20_000}]", "line 1, column 59999: more than 20000 values"),
        ("[" * 1000, "line 1, column 51: more than 50 levels"),
        ("{a: " * 1000, "line 1, column 198: more than 50 levels"),
        ("".join(f"{' ' * n}a:\n" for n in range(100)), "line 50, column 50: more than 50 levels"),
        ("x: " + "7" * 5000, "line 1, column 4: a number of 5000 digits"),
        ("x: 1e999", "line 1, column 4: 1e999, which is larger than any number"),
        ('x: "\\ud800"', "line 1, column 4: half of a surrogate pair"),
        ('x: "a\\0b"', "line 1, column 4: a NUL character"),
        ('x: "\\U00110000"', "line 1, column 7: an escape that is no character"),
        ("x: !!bool maybe", "line 1, column 4: 'maybe' as !!bool"),
        ("!!int 1:00", "line 1, column 1: '1:00' as !!int"),
        ("!!timestamp 2026-12-01", "line 1, column 1: could not determine a constructor"),
        ("!!python/object/apply:os.system [x]", "line 1, column 1: could not determine a constructor"),
        ("x: \0", "unacceptable character #x0000: special characters are not allowed, at position 3"),
        (b"x: \xff", "unacceptable character #x00ff: invalid start byte, at position 3"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_refused_with_its_place(text, fault):
    start = time.process_time()
    with pytest.raises(yaml.YAMLError) as error:
        parse_yaml(text)
    found = yaml_fault(error.value)
    assert found.startswith(fault)
    assert "\n" not in found
    assert time.process_time() - start < 5


TEXTS = [
    "010",
    "1:00",
    "yes",
    "NO",
    "on",
    "y",
    "1e3",
    "1E-5",
    ".5",
    "0o17",
    "0x1F",
    "0b1",
    "1_000",
    "null",
    "~",
    ".inf",
    ".NaN",
    "<<",
    "=",
    "2026-12-01",
    "true",
    "-",
    "?",
    ":",
    "%",
    "@",
    "`",
    "!",
    "&",
    "*",
    "#x",
    "!!int",
    "[",
    "{",
    "}",
]
TEXTS += [
    "",
    " x",
    "x ",
    "a: b",
    "a #b",
    "- a",
    "\n",
    "a\nb",
    "\t",
    "...",
    "---",
    "\u2028",
    "\ufeff",
    "\x07",
    "🧬",
]


def test_text_that_looks_like_something_else_reads_back_as_text_by_us_and_by_readers_of_yaml_1_1():
    tree = {text: [text, {"k": text}] for text in TEXTS} | {
        "numbers": [1, -0.0, 1e-5, 1e22, None, True, [], {}]
    }
    assert parse_yaml(dump_yaml(tree)) == yaml.safe_load(dump_yaml(tree)) == tree
    for text in TEXTS:
        assert parse_yaml(f"x: {dump_in_one_line(text)}") == {"x": text}


def test_files_flags_and_the_environment_alike(tmp_path, good, monkeypatch):
    def seed(text):
        in_file = write(tmp_path / "seed.yaml", f"seed_everything: {text}")
        monkeypatch.setenv("SEED", text)
        found = []
        for files, flags in (
            ([in_file], []),
            ([], [f"--seed_everything={text}"]),
            ([], ["seed_everything=${oc.env:SEED}"]),
            ([], [f"seed_everything=${{oc.env:NOT_SET,{text}}}"]),
        ):
            try:
                found.append(load([good, *files], flags).seed_everything)
            except ConfigurationError as error:
                found.append(error.problems)
        assert found[0] == found[1] == found[2] == found[3]
        return found[0]

    assert [seed(text) for text in ("0042", "010", "0o17", "0x1F", "+3")] == [42, 10, 15, 31, 3]
    start = "seed_everything: wanted a whole number, got"
    default = "or leave it out for the default, 1234"
    assert seed("1:00") == [f"{start} '1:00'; change it, {default}"]
    assert seed("0b11") == [f"{start} '0b11'; change it, {default}"]
    assert seed("1e3") == [f"{start} 1000.0; write 1000"]
    assert "seed_everything" in seed("-1")[0]


def test_a_default_of_the_environment_is_text_as_it_was_typed(good, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    for text in ("2024_01_15", "1_0", "1e3", "true", "007", "0x1F", "1.50"):
        flags = [
            f"trainer.default_root_dir=runs/${{oc.env:NOT_SET,{text}}}",
            f"model.actor.save=${{oc.env:NOT_SET, {text} }}",
        ]
        config = load([good], flags)
        assert (config.trainer.default_root_dir, config.model.actor.save) == (f"runs/{text}", text)
    with pytest.raises(ConfigurationError, match="got '1_0'; write 10"):
        load([good], ["seed_everything=${oc.env:NOT_SET,1_0}"])
    assert load([good], ["model.actor.save=${oc.env:NOT_SET,null}"]).model.actor.save is None
    assert (
        load([good], [r"trainer.default_root_dir=\${oc.env:NOT_SET,1_0}"]).trainer.default_root_dir
        == "${oc.env:NOT_SET,1_0}"
    )


def test_a_value_that_cannot_be_filled_in_takes_its_list_along(good):
    for text in ("${nothing}", "${a"):
        with pytest.raises(ConfigurationError) as refused:
            load([good], [f"model.actor.optimizer.betas=[{text!r}, 0.9]"])
        assert len(refused.value.problems) == 1
        assert refused.value.problems[0].startswith("model.actor.optimizer.betas.0: wanted ")
    with pytest.raises(ConfigurationError, match=r"^seed_everything: wanted "):
        load([good], ["seed_everything=" + "${oc.env:A," * 200 + "1" + "}" * 200])


def test_bounds_are_said_in_full(good):
    with pytest.raises(ConfigurationError, match="from 0 to 4294967295, got 4294967296;"):
        load([good], ["seed_everything=4294967296"])


def test_words_of_yaml_1_1_are_answered_with_those_of_1_2(good):
    def only(flag):
        with pytest.raises(ConfigurationError) as error:
            load([good], [flag])
        (problem,) = error.value.problems
        return problem.partition(": ")[2]

    for word, meant in (("yes", "true"), ("On", "true"), ("no", "false"), ("OFF", "false"), ("n", "false")):
        assert only(f"data.rollout.shuffle={word}") == f"wanted true or false, got {word!r}; write {meant}"
    assert only("seed_everything=1_000") == "wanted a whole number, got '1_000'; write 1000"
    assert only("model.algorithm.gamma=0.9_9") == "wanted a number, got '0.9_9'; write 0.99"
    assert only("seed_everything=" + "1" * 300).endswith("change it, or leave it out for the default, 1234")


NAMES = [
    "q?lr=1",
    "pct%41b",
    "a: b c",
    "a #b",
    "#x",
    "*x",
    "&x",
    "!x",
    "%x",
    "@x",
    "`x",
    "-x",
    "x:",
    "010",
    "yes",
]


@pytest.mark.parametrize(
    "name", [*NAMES, "1:00", ".5", "a\\b", "a'b", 'a"b', "a;b", "ä 🧬", "x" * 200, "..."]
)
def test_a_flag_that_wants_text_takes_it_as_it_was_typed(good, tmp_path, name):
    config = load([good], [f"tracking.mlflow.run_name={name}", f"data.rollout.train.path={name}"])
    assert (config.tracking.mlflow.run_name, config.data.rollout.train.path) == (name, name)
    again = load([write(tmp_path / "again.yaml", to_yaml(config))], [])
    assert again == config


def test_quotes_null_lists_and_interpolations_keep_their_meaning_in_such_a_flag(good):
    def name(text):
        return load([good], [f"tracking.mlflow.run_name={text}"]).tracking.mlflow.run_name

    assert [name(text) for text in ("'a'", '"a\\tb"', "null", "~", "", "${seed_everything}-x")] == (
        ["a", "a\tb", None, None, None, "1234-x"]
    )
    with pytest.raises(ConfigurationError, match=r"run_name: wanted text or null, got \['a'\]"):
        name("[a]")


def test_a_resolved_file_reads_back_whatever_its_texts_look_like(tmp_path):
    tree = copy.deepcopy(GOOD) | {"tracking": {"mlflow": {"tags": {text or "empty": text for text in TEXTS}}}}
    tree["data"]["rollout"]["sampling"] = {"stop": [text for text in TEXTS if text], "temperature": 1e-5}
    config = load([write(tmp_path / "one.yaml", dump_yaml(tree))], [])
    assert config.tracking.mlflow.tags["010"] == "010"
    assert load([write(tmp_path / "two.yaml", to_yaml(config))], []) == config


def test_files_that_are_no_configuration(tmp_path):
    (tmp_path / "large.yaml").write_bytes(b"# prompts\n" * 200_000)
    (tmp_path / "weights.yaml").write_bytes(bytes(range(256)))
    with pytest.raises(ConfigurationError) as error:
        load([str(tmp_path / "large.yaml"), str(tmp_path / "weights.yaml"), "a\0b"], ["x." * 2000 + "y=1"])
    large, weights, null, deep = error.value.problems
    assert "large.yaml: wanted a YAML file of at most 1 MiB, got a larger one" in large
    assert "weights.yaml: wanted YAML, got unacceptable character" in weights
    assert "wanted a readable YAML file, got embedded null byte" in null
    assert deep.endswith("...: wanted a key of at most 50 names, got more; correct it")
