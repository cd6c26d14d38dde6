"""Reading a tokenizer: a folder that holds none, a damaged one or one with code of its own is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relax_lightning.data.digits import digit_tokenizer
from relax_lightning.data.tokenizer import load_tokenizer


def test_a_folder_without_a_sound_tokenizer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def asked(*_: Any) -> str:
        raise AssertionError("nobody is at the terminal")

    monkeypatch.setattr("builtins.input", asked)
    (tmp_path / "empty").mkdir()
    digit_tokenizer().save_pretrained(tmp_path)
    assert len(load_tokenizer(str(tmp_path))) == len(digit_tokenizer())
    content = (tmp_path / "tokenizer.json").read_bytes()
    for damaged in (b"", b"[]", b"{}", b"\xff", content[:-100], content.replace(b'"model"', b'"mode1"')):
        (tmp_path / "tokenizer.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"no tokenizer could be read from it \(\w+: ") as refused:
            load_tokenizer(str(tmp_path))
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 700
    (tmp_path / "tokenizer.json").write_bytes(content)
    named = json.loads((tmp_path / "tokenizer_config.json").read_text())
    code = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named | code))
    (tmp_path / "own.py").write_text("raise SystemExit('it runs')")
    for folder in (tmp_path, tmp_path / "empty"):
        with pytest.raises(ValueError, match="no tokenizer could be read from it") as refused:
            load_tokenizer(str(folder))
        assert "\n" not in str(refused.value)
