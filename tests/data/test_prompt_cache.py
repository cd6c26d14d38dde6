"""Prepared prompts are made once, are the same from the disk, and no trouble with the disk changes or ends a run."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from relax_lightning.config import PromptsConfig
from relax_lightning.data import prompt_cache
from relax_lightning.data.digits import character_tokenizer
from relax_lightning.data.prompts import PromptDataset
from relax_lightning.rewards.registry import ANY_LABEL, load_label

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
ROWS = [
    {"prompt": f"{i}+{i}=", "label": [2 * i, 1e-5, None, {"ä": "🧬"}], "m": {"i": i}} for i in range(3000)
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = character_tokenizer("0123456789=+<>user")
    made.chat_template = CHAT
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path / "cache" / "relax-lightning" / "prompts"


def config(folder: Path, **changes: Any) -> PromptsConfig:
    path = folder.parents[2] / "a.jsonl"
    return PromptsConfig(**{"path": str(path), "metadata_key": "m", "apply_chat_template": True} | changes)


def load(folder: Path, tokenizer: Any, limit: int | None = None, **changes: Any) -> PromptDataset:
    return PromptDataset.load(config(folder, **changes), tokenizer, max_prompt_tokens=limit)


def everything(data: PromptDataset) -> tuple[Any, ...]:
    return data.select(range(len(data))), data.num_dropped, data.fingerprint


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_the_second_load_reads_no_line_and_gives_the_same(folder, tokenizer, monkeypatch):
    first = everything(load(folder, tokenizer))
    assert first[0].texts[:2] == ("<user>0+0==", "<user>1+1==")
    assert first[0].token_ids[7] == tuple(tokenizer.encode(first[0].texts[7], add_special_tokens=False))
    assert (first[0].labels[7], first[0].metadata[7]) == (ROWS[7]["label"], {"i": 7})
    (data, about, _) = entries(folder)
    assert (data.endswith(".arrow"), about.endswith(".json"), folder.stat().st_mode & 0o77) == (True, True, 0)

    monkeypatch.setattr("relax_lightning.data.prompts.read_records", None)
    again = load(folder, tokenizer)
    assert everything(again) == first
    assert all(a == b for a, b in zip(again.rows, [again.rows[i] for i in range(len(again))], strict=True))


def test_whatever_they_depend_on_makes_another_entry(folder, tokenizer):
    def key(
        limit: int | None = None, tokenizer: Any = tokenizer, read_label: Any = ANY_LABEL, **changes: Any
    ) -> str | None:
        return prompt_cache.cache_key(config(folder, **changes), tokenizer, limit, read_label)

    other = character_tokenizer("0123456789=+<>users")
    other.chat_template = CHAT
    templated = character_tokenizer("0123456789=+<>user")
    templated.chat_template = CHAT + " "
    keys = [
        key(),
        key(limit=9),
        key(tokenizer=other),
        key(tokenizer=templated),
        key(apply_chat_template=False),
        key(metadata_key=None),
        key(label_key="m"),
        key(read_label=load_label("dapo_math")),
        key(read_label=load_label("exact_match")),
    ]
    path = folder.parents[2] / "a.jsonl"
    stat = path.stat()
    path.write_text(path.read_text().replace("0+0", "1+0"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    keys.append(key())
    assert len({*keys} - {None}) == 10
    assert key(path=str(path.rename(path.with_name("b.jsonl")))) == keys[-1]
    templated.chat_template = "{{ strftime_now('%d') }}"
    assert key(tokenizer=templated) is None and key(read_label=str) is None
    assert prompt_cache.cache_key(PromptsConfig(class_path="a.B"), tokenizer, None, ANY_LABEL) is None


def test_a_large_file_is_known_by_what_no_copy_and_no_touch_can_fake(folder, tokenizer, monkeypatch):
    monkeypatch.setattr(prompt_cache, "_HASHED_BYTES", 10)
    keys = [prompt_cache.cache_key(config(folder), tokenizer, None, ANY_LABEL) for _ in range(2)]
    path = folder.parents[2] / "a.jsonl"
    stat = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    keys.append(prompt_cache.cache_key(config(folder), tokenizer, None, ANY_LABEL))
    assert keys[0] == keys[1] != keys[2]


def test_a_bad_line_and_a_limit_mean_the_same_with_and_without_an_entry(folder, tokenizer):
    for _ in range(2):
        data = load(folder, tokenizer, limit=11)
        assert (len(data), data.num_dropped) == (10, 2990)
        with pytest.raises(ValueError, match="all 3000 prompts are longer than 3 tokens"):
            load(folder, tokenizer, limit=3)
    before = entries(folder)
    with (folder.parents[2] / "a.jsonl").open("a") as file:
        file.write('{"prompt": 3}\n')
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a\.jsonl, line 3001: "):
            load(folder, tokenizer)
    assert [name for name in entries(folder) if not name.endswith(".lock")] == [
        name for name in before if not name.endswith(".lock")
    ]


def damages(folder: Path) -> list[Any]:
    data, about = (next(folder.glob(f"*.{ending}")) for ending in ("arrow", "json"))
    whole = data.read_bytes()
    said = json.loads(about.read_text())
    other = pa.BufferOutputStream()
    with pa.ipc.new_file(other, pa.schema([("x", pa.int8())])):
        pass
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    return [
        lambda: data.write_bytes(flipped),
        lambda: data.write_bytes(whole[:middle]),
        lambda: data.write_bytes(b""),
        lambda: data.write_bytes(other.getvalue()),
        data.unlink,
        lambda: about.write_text(""),
        lambda: about.write_text("[1]"),
        lambda: about.write_bytes(b"\xff\0"),
        lambda: about.write_text("[" * 100_000),
        lambda: about.write_text(json.dumps(said | {"num_kept": 1})),
        lambda: about.write_text(json.dumps(said | {"num_kept": "many"})),
        lambda: about.write_text(json.dumps({k: v for k, v in said.items() if k != "digest"})),
        lambda: about.write_text(json.dumps(said | {"more": 1})),
        lambda: os.chown(data, 12345, -1) if os.getuid() == 0 else data.unlink(),
    ]


def test_a_damaged_or_foreign_entry_is_made_anew(folder, tokenizer, caplog):
    whole = everything(load(folder, tokenizer))
    for number in range(len(damages(folder))):
        damages(folder)[number]()
        assert everything(load(folder, tokenizer)) == whole, number
        assert everything(load(folder, tokenizer)) == whole, number
    assert not caplog.records


def test_a_folder_that_cannot_be_written_costs_a_line_of_warning(folder, tokenizer, monkeypatch, caplog):
    whole = everything(load(folder, tokenizer))
    blocked = folder.parents[2] / "file"
    blocked.write_text("")

    def without(message: str) -> None:
        caplog.clear()
        assert everything(load(folder, tokenizer)) == whole
        (record,) = caplog.records
        assert message in record.message and "\n" not in record.message

    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    without("prompts are prepared by each process for itself, without a cache: [Errno 20] Not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    without("without a cache: [Errno")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parents[2] / "new"))
    with monkeypatch.context() as full:
        full.setattr(
            prompt_cache._Hashed, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
        )
        without("No space left")
    assert [p.name for p in (folder.parents[2] / "new").rglob("*.partial")] == []


def test_a_process_that_holds_the_entry_and_does_not_move_is_not_waited_for(
    folder, tokenizer, monkeypatch, caplog
):
    monkeypatch.setattr(prompt_cache, "PATIENCE_SECONDS", 0.3)
    key = prompt_cache.cache_key(config(folder), tokenizer, None, ANY_LABEL)
    folder.mkdir(parents=True)
    with (folder / f"{key}.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert len(load(folder, tokenizer)) == 3000
        assert "has written nothing for a minute" in caplog.text
        assert entries(folder) == [f"{key}.lock"]
        released = threading.Timer(0.1, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        released.start()
        assert len(load(folder, tokenizer)) == 3000
        released.join()
    assert len(entries(folder)) == 3


def test_a_file_that_changes_while_it_is_read_is_not_kept(folder, tokenizer, monkeypatch, caplog):
    path = folder.parents[2] / "a.jsonl"
    read = prompt_cache.Summary

    def late(*fields: Any) -> Any:
        with path.open("a") as file:
            file.write(json.dumps(ROWS[0]) + "\n")
        return read(*fields)

    with monkeypatch.context() as context:
        context.setattr("relax_lightning.data.prompt_rows.Summary", late)
        load(folder, tokenizer)
    assert "has changed while it was read" in caplog.text
    assert [name for name in entries(folder) if not name.endswith(".lock")] == []


def test_old_entries_go_and_a_used_one_stays(folder, tokenizer, monkeypatch):
    load(folder, tokenizer)
    load(folder, tokenizer, limit=11)
    old = prompt_cache.cache_key(config(folder), tokenizer, None, ANY_LABEL)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    load(folder, tokenizer, limit=11)
    load(folder, tokenizer, limit=12)
    assert old not in {name.partition(".")[0] for name in entries(folder)}
    assert len([name for name in entries(folder) if name.endswith(".arrow")]) == 2
    monkeypatch.setattr(prompt_cache, "KEPT_BYTES", 1)
    load(folder, tokenizer, limit=13)
    assert len([name for name in entries(folder) if name.endswith(".arrow")]) == 1


PREPARE = """
import sys
from relax_lightning.config import PromptsConfig
from relax_lightning.data.prompts import PromptDataset
from relax_lightning.rewards.registry import ANY_LABEL, load_label
from tests.data.test_prompt_cache import CHAT, character_tokenizer
tokenizer = character_tokenizer("0123456789=+<>user")
tokenizer.chat_template = CHAT
data = PromptDataset.load(PromptsConfig(path=sys.argv[1], metadata_key="m", apply_chat_template=True), tokenizer)
print(len(data), data.fingerprint)
"""


def test_processes_of_one_host_share_an_entry(folder, tokenizer):
    command = [sys.executable, "-c", PREPARE, str(folder.parents[2] / "a.jsonl")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=300)[0] for process in running}
    assert said == {f"3000 {load(folder, tokenizer).fingerprint}\n"}
    assert len(entries(folder)) == 3


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_neither_waited_for_nor_written_over(folder, tokenizer, caplog, make):
    want = everything(load(folder, tokenizer))
    for name in entries(folder):
        path = folder / name
        content = path.read_bytes()
        path.unlink()
        make(path)
        caplog.clear()
        assert everything(load(folder, tokenizer)) == want
        assert f"{path} is no file" in caplog.text
        (path.rmdir if make is os.mkdir else path.unlink)()
        path.write_bytes(content)
