"""What a file of prompts may hold, and what is refused with its file and line, or row."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relax_lightning.config import PromptsConfig
from relax_lightning.data.prompt_records import MOST_LEVELS, PromptRecord, read_records

GOOD = '{"prompt": "a", "label": "b", "m": {}}\n'
HALF = "holds half of a surrogate pair"


def records(path: Path, **keys: Any) -> list[PromptRecord]:
    return list(read_records(PromptsConfig(path=str(path), **keys)))


def nested(levels: int) -> str:
    return '{"prompt": "a", "label": ' + "[" * levels + "]" * levels + "}\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (r'{"prompt": "\ud800", "label": ""}', f"'prompt' {HALF}"),
        (r'{"prompt": "x\uDFFFy", "label": ""}', f"'prompt' {HALF}"),
        (r'{"prompt": [{"role": "user", "content": "\udc00\ud800"}], "label": ""}', f"'prompt' {HALF}"),
        (r'{"prompt": [{"role": "user", "content": "a", "name": "\ud800"}], "label": ""}', f"'prompt' {HALF}"),
        (r'{"prompt": "a", "label": "\ud800"}', f"'label' {HALF}"),
        (r'{"prompt": "a", "label": [{"a": "\ud800"}]}', f"'label' {HALF}"),
        (r'{"prompt": "a", "label": "", "m": {"\ud800": 1}}', f"'m' {HALF}"),
        ('{"prompt": "a", "label": ' + "7" * 5000 + "}", "a number is too long: .* 5000 digits"),
        ('{"prompt": "a", "label": -' + "7" * 5000 + "}", "a number is too long"),
        (nested(100_000), f"more than {MOST_LEVELS} levels of nesting"),
        (nested(MOST_LEVELS), f"more than {MOST_LEVELS} levels of nesting"),
        ('{"prompt": ' + '{"a": ' * 200 + "1" + "}" * 200 + "}", f"more than {MOST_LEVELS} levels"),
        ('[{"prompt": "a", "label": "b"}]', "wanted an object with keys, got list; give one object a line"),
        ("[", r"invalid JSON: Expecting value at column \d; each line holds one object"),
        ('{"prompt": "a\0", "label": "b"}', "invalid JSON: Invalid control character"),
        ("\0\0", "invalid JSON: Expecting value at column 1"),
        ('{"prompt": null, "label": "b"}', "'prompt' must be text or a list of messages, got NoneType"),
        ('{"prompt": "a", "label": "b"} {"prompt": "a", "label": "b"}', "invalid JSON: Extra data"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_handled_later_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}")
    with pytest.raises(ValueError, match=rf"^{path}, line 3: {reason}") as error:
        records(path, metadata_key="m" if '"m"' in line else None)
    assert str(error.value).count("\n") <= 1


def test_what_looks_odd_and_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(
        "\n\ufeff"
        r'{"prompt": "\ud83e\uddec", "label": "", "images": "\ud800"}' + "\r\n"
        r'{"prompt": "\\ud800 \u0000", "label": ' + "7" * 4000 + "}\n" + nested(MOST_LEVELS - 1)
    )
    first, second, third = records(path)
    assert (first.prompt, first.source) == ("🧬", f"{path}, line 2")
    assert (second.prompt, second.label) == ("\\ud800 \0", int("7" * 4000))
    assert json.dumps(third.label).count("[") == MOST_LEVELS - 1
    assert len(records(path.rename(tmp_path / "ODD.JSONL"))) == 3


def test_files_of_another_kind(tmp_path: Path) -> None:
    def reason(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r".") as error:
            records(path)
        return str(error.value).removeprefix(str(path))

    assert reason("utf16.jsonl", GOOD.encode("utf-16")).startswith(", line 1: not UTF-8")
    assert reason("packed.jsonl", gzip.compress(GOOD.encode())).startswith(", line 1: not UTF-8")
    assert reason("packed.jsonl.gz", b"") == ": prompts are read from .jsonl or .parquet, got '.gz'"
    assert reason("empty.parquet", b"").startswith(": not readable as Parquet")
    pq.write_table(pa.table({"prompt": ["a"] * 9, "label": ["b"] * 9}), tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    assert reason("half.parquet", whole[: len(whole) // 2]).startswith(": not readable as Parquet")
    assert reason("flip.parquet", whole[:30] + b"\xff" + whole[31:]).startswith(": ")
    assert reason("lines.parquet", GOOD.encode()).startswith(": not readable as Parquet")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"folder\.jsonl: no such file of prompts"):
        records(tmp_path / "folder.jsonl")


TEXTS = pa.array(["a", "b"])
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string()), ("name", pa.string())]))
NOON = datetime.datetime(2026, 12, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (TEXTS.dictionary_encode(), ["a", "b"]),
        (TEXTS.cast(pa.large_string()), ["a", "b"]),
        (pa.array([None, 7]), [None, 7]),
        (pa.array([True, False]), [True, False]),
        (pa.array([{"a": [1, None], "t": NOON.date()}] * 2), [{"a": [1, None], "t": "2026-12-01"}] * 2),
        (pa.array([NOON, None]), ["2026-12-01T12:00:00+00:00", None]),
        (pa.array([datetime.time(1, 2)] * 2), ["01:02:00"] * 2),
        (pa.array([Decimal("1.50"), Decimal("7.00")]), ["1.50", "7.00"]),
        (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), [{"k": 1}, {}]),
    ],
)
def test_types_of_parquet(tmp_path: Path, column: pa.Array, values: list[Any]) -> None:
    path = tmp_path / "a.parquet"
    messages = pa.array([[{"role": "user", "content": "a"}]] * 2, MESSAGES)
    pq.write_table(pa.table({"q": messages, "a": column, "m.n": [{"x": v} for v in values]}), path)
    found = records(path, input_key="q", label_key="a")
    assert [record.label for record in found] == values
    assert found[0].prompt == [{"role": "user", "content": "a", "name": None}]
    assert records(path, input_key="q", label_key="q")[0].label == found[0].prompt


@pytest.mark.parametrize(
    ("column", "row", "reason"),
    [
        (pa.array([b"a", b"b"]), 1, "'m' holds bytes, which JSON has not; make it text"),
        (pa.array([None, datetime.timedelta(1)]), 2, "'m' holds timedelta, which JSON has not"),
        (pa.array([{"a": [{"b": None}]}, {"a": [{"b": b"x"}]}]), 2, "'m' holds bytes"),
        (pa.array([1, 2**62], pa.timestamp("us")), 2, "'m' date value out of range"),
        (pa.array(["a", "b"]), 1, "'m' must be an object with keys, got str"),
        (pa.array([{"a": 1}, None]), 2, "'m' must be an object with keys, got NoneType"),
    ],
)
def test_rows_of_parquet_that_no_reward_could_take(
    tmp_path: Path, column: pa.Array, row: int, reason: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": TEXTS, "label": TEXTS, "m": column}), path)
    with pytest.raises(ValueError, match=f"^{path}, row {row}: {reason}"):
        records(path, **({"metadata_key": "m"} if "object" in reason else {"label_key": "m"}))
    with pytest.raises(
        ValueError, match=rf"^{path}: the key 'x' is missing; there is 'prompt', 'label', 'm'"
    ):
        records(path, input_key="x")


READ = """
import resource, sys
from relax_lightning.config import PromptsConfig
from relax_lightning.data.prompt_records import read_records
import pyarrow.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert sum(1 for _ in read_records(PromptsConfig(path=sys.argv[1]))) == 64
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, open("/proc/self/io").readline().split()[1])
"""


def test_columns_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "images.parquet"
    columns = {"prompt": ["a"] * 64, "label": ["b"] * 64, "images": [os.urandom(2**20)] * 64}
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="none")
    assert path.stat().st_size > 2**26
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    more_kib, read_bytes = map(int, done.stdout.split())
    assert more_kib < 2**15 and read_bytes < 2**25
