"""Reading prompts as they are written: JSON Lines, Parquet, or a user's own sequence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relax_lightning.config import PromptsConfig
from relax_lightning.import_path import import_object

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class PromptRecord:
    """One prompt before it is tokenized."""

    prompt: str | Messages
    """Text, or messages with `role` and `content` for the chat template."""
    label: Any
    metadata: dict[str, Any]
    source: str
    """Where it stands, for error messages: file and line, or class and item."""


def read_records(
    config: PromptsConfig, read_label: Callable[[Any], Any] = lambda label: label
) -> Iterator[PromptRecord]:
    """All prompts of a set, each checked.

    Args:
        config: Where they are.
        read_label: Of the reward: checks a label and returns what the reward gets, or raises a ValueError.

    Raises:
        ValueError: The set cannot be read; names the file and line (the item, for a class) and the reason.
    """
    if config.class_path is not None:
        for source, row in _read_sequence(config.class_path, config.init_args):
            has_metadata = isinstance(row, Mapping) and "metadata" in row
            label_key = None if config.label_key is None else "label"
            record = _check(row, source, "prompt", label_key, "metadata" if has_metadata else None)
            yield _with_label(record, label_key, read_label)
    else:
        assert config.path is not None
        for source, row in _read_file(Path(config.path)):
            record = _check(row, source, config.input_key, config.label_key, config.metadata_key)
            yield _with_label(record, config.label_key, read_label)


def _read_file(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file of prompts; correct `path`")
    if path.suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        return _read_json_lines(path)
    raise ValueError(f"{path}: prompts are read from .jsonl or .parquet, got {path.suffix or 'no ending'!r}")


def _read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            source = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                yield source, json.loads(line.decode("utf-8-sig"))
            except UnicodeDecodeError as error:
                raise ValueError(f"{source}: not UTF-8: {error}") from error
            except json.JSONDecodeError as error:
                raise ValueError(f"{source}: invalid JSON: {error.msg} at column {error.colno}") from error


def _read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not readable as Parquet: {error}") from error


def _read_sequence(class_path: str, init_args: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    try:
        sequence = import_object("class_path", class_path)(**init_args)
    except TypeError as error:
        raise ValueError(f"{class_path}: init_args {init_args} do not fit: {error}") from error
    for method in ("__len__", "__getitem__"):
        if not hasattr(sequence, method):
            raise ValueError(f"{class_path} must be a sequence of prompts, but has no {method}")
    for item in range(len(sequence)):
        yield f"{class_path}, item {item}", sequence[item]


def _check(
    row: Any, source: str, input_key: str, label_key: str | None, metadata_key: str | None
) -> PromptRecord:
    if not isinstance(row, Mapping):
        raise ValueError(f"{source}: wanted an object with keys, got {type(row).__name__}")
    for key in (input_key, label_key, metadata_key):
        if key is not None and key not in row:
            there = ", ".join(repr(name) for name in row) or "no key at all"
            raise ValueError(f"{source}: the key {key!r} is missing; there is {there}")
    prompt = row[input_key]
    reason = _text_fault(prompt) if isinstance(prompt, str) else _messages_fault(prompt)
    if reason is not None:
        raise ValueError(f"{source}: {input_key!r} {reason}")
    metadata = {} if metadata_key is None else row[metadata_key]
    if not isinstance(metadata, Mapping):
        raise ValueError(
            f"{source}: {metadata_key!r} must be an object with keys, got {type(metadata).__name__}"
        )
    label = None if label_key is None else row[label_key]
    return PromptRecord(prompt, label, dict(metadata), source)


def _with_label(
    record: PromptRecord, label_key: str | None, read_label: Callable[[Any], Any]
) -> PromptRecord:
    try:
        return replace(record, label=read_label(record.label))
    except ValueError as error:
        column = "label_key: null" if label_key is None else repr(label_key)
        raise ValueError(f"{record.source}: {column} {error}") from error


def _text_fault(text: str) -> str | None:
    return None if text.strip() else "is empty"


def _messages_fault(messages: Any) -> str | None:
    if not isinstance(messages, list):
        return f"must be text or a list of messages, got {type(messages).__name__}"
    for message in messages:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(k), str) for k in ("role", "content")
        ):
            return f"must hold messages with `role` and `content` as text, got {message!r:.80}"
    return None if any(message["content"].strip() for message in messages) else "is empty"
