"""Reading prompts as they are written: JSON Lines, Parquet, or a user's own sequence."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from relax_lightning.config import PromptsConfig
from relax_lightning.run.import_path import import_object

Messages = list[dict[str, str]]

MOST_LEVELS = 100
"""Of lists and mappings in one another: what handles a row later calls itself once a level."""
MOST_LINE_BYTES = 2**28
_ROWS = 1024


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
    """All prompts of a set, each checked. Of a Parquet file only the named columns are read.

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
        keys = (config.input_key, config.label_key, config.metadata_key)
        for source, row in _read_file(
            Path(config.path), [*dict.fromkeys(key for key in keys if key is not None)]
        ):
            yield _with_label(_check(row, source, *keys), config.label_key, read_label)


def _read_file(path: Path, keys: list[str]) -> Iterator[tuple[str, Any]]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file of prompts; correct `path`")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            yield from _read_parquet(path, keys)
        elif path.suffix.lower() in (".jsonl", ".json", ".ndjson"):
            yield from _read_json_lines(path, keys)
        else:
            ending = path.suffix or "no ending"
            raise ValueError(f"{path}: prompts are read from .jsonl or .parquet, got {ending!r}")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _read_json_lines(path: Path, keys: list[str]) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(MOST_LINE_BYTES + 1), b"")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield f"{path}, line {number}", _json_of(line, keys)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error


def _json_of(line: bytes, keys: list[str]) -> Any:
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"longer than {MOST_LINE_BYTES} bytes; each line holds one object")
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON: {error.msg} at column {error.colno}; each line holds one object"
        ) from error
    except ValueError as error:
        raise ValueError(f"a number is too long: {str(error).partition(';')[0]}") from error
    except RecursionError as error:
        raise ValueError(f"more than {MOST_LEVELS} levels of nesting") from error
    # Looking into every row for what hardly any has would take as long as reading it.
    if line.count(b"[") + line.count(b"{") > MOST_LEVELS and _is_deep(row):
        raise ValueError(f"more than {MOST_LEVELS} levels of nesting")
    if isinstance(row, dict) and (b"\\ud" in line or b"\\uD" in line):
        for key in keys:
            if key in row and _has_half_character(row[key]):
                raise ValueError(f"{key!r} {_HALF_CHARACTER}")
    return row


def _is_deep(row: Any) -> bool:
    level = [row]
    for _ in range(MOST_LEVELS):
        nested = [value for value in level if isinstance(value, list | dict)]
        level = [v for value in nested for v in (value.values() if isinstance(value, dict) else value)]
    return any(isinstance(value, list | dict) for value in level)


_HALF_CHARACTER = "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"


def _has_half_character(value: Any) -> bool:
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        return True
    return False


def _read_parquet(path: Path, keys: list[str]) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_keys(file.schema_arrow.names, str(path), keys)
            number = 0
            for batch in file.iter_batches(batch_size=_ROWS, columns=keys):
                for row in range(batch.num_rows):
                    number += 1
                    source = f"{path}, row {number}"
                    yield source, _parquet_row(batch, row, source)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not readable as Parquet: {error}") from error


def _parquet_row(batch: Any, row: int, source: str) -> dict[str, Any]:
    values = {}
    for key in batch.schema.names:
        try:
            values[key] = _as_json(batch.column(key)[row].as_py(maps_as_pydicts="strict"))
        except (ValueError, OverflowError, LookupError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{source}: {key!r} {error}") from error
    return values


def _as_json(value: Any) -> Any:
    """A value of Parquet's types as JSON's; dates, times and decimals become text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _as_json(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(v) for v in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise ValueError(f"holds {type(value).__name__}, which JSON has not; make it text")


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
        hint = "; give one object a line, not one list of all" if isinstance(row, list) else ""
        raise ValueError(f"{source}: wanted an object with keys, got {type(row).__name__}{hint}")
    _check_keys(list(row), source, [key for key in (input_key, label_key, metadata_key) if key is not None])
    prompt = row[input_key]
    reason = _text_fault(prompt) if isinstance(prompt, str) else _messages_fault(prompt)
    if reason is not None:
        raise ValueError(f"{source}: {input_key!r} {reason}")
    label = None if label_key is None else row[label_key]
    if isinstance(label, str) and _has_half_character(label):
        raise ValueError(f"{source}: {label_key!r} {_HALF_CHARACTER}")
    metadata = {} if metadata_key is None else row[metadata_key]
    if not isinstance(metadata, Mapping):
        raise ValueError(
            f"{source}: {metadata_key!r} must be an object with keys, got {type(metadata).__name__}"
        )
    return PromptRecord(prompt, label, dict(metadata), source)


def _with_label(
    record: PromptRecord, label_key: str | None, read_label: Callable[[Any], Any]
) -> PromptRecord:
    try:
        return replace(record, label=read_label(record.label))
    except ValueError as error:
        column = "label_key: null" if label_key is None else repr(label_key)
        raise ValueError(f"{record.source}: {column} {error}") from error


def _check_keys(there: list[Any], source: str, keys: list[str]) -> None:
    for key in keys:
        if key not in there:
            names = ", ".join(repr(name) for name in there) or "no key at all"
            raise ValueError(f"{source}: the key {key!r} is missing; there is {names:.400}")


def _text_fault(text: str) -> str | None:
    if _has_half_character(text):
        return _HALF_CHARACTER
    return None if text.strip() else "is empty"


def _messages_fault(messages: Any) -> str | None:
    if not isinstance(messages, list):
        return f"must be text or a list of messages, got {type(messages).__name__}"
    for message in messages:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(k), str) for k in ("role", "content")
        ):
            return f"must hold messages with `role` and `content` as text, got {message!r:.80}"
        if any(_has_half_character(message[k]) for k in ("role", "content")):
            return _HALF_CHARACTER
    return None if any(message["content"].strip() for message in messages) else "is empty"
