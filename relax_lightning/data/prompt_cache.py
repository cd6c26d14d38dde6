"""Prepared prompts on disk: made once a host and mapped by every process. Any trouble with it costs time alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from relax_lightning.config import PromptsConfig
from relax_lightning.data.prompt_rows import SCHEMA, Summary
from relax_lightning.rewards.registry import LabelReader

_LOGGER = logging.getLogger(__name__)

KEPT_DAYS = 30
"""An entry that nobody has used for so long is removed."""
KEPT_BYTES = 50 * 2**30
"""More than this of entries, the oldest go."""
PATIENCE_SECONDS = 60.0
"""Whoever waits for another process that writes nothing for so long prepares the prompts alone."""
_HASHED_BYTES = 64 * 2**20
_Write = Callable[[pa.RecordBatch], object]


def cache_folder() -> Path:
    """`relax-lightning/prompts` in the user's cache folder: `XDG_CACHE_HOME`, else `~/.cache`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if Path(given).is_absolute() else Path("~/.cache").expanduser()
    return root / "relax-lightning" / "prompts"


def table_of(key_of: Callable[[], str | None], make: Callable[[_Write], Summary]) -> tuple[pa.Table, Summary]:
    """The prepared prompts of a key: mapped from the disk, where this or another process has written them.

    Args:
        key_of: `cache_key` as of now; where it is None, the prompts are prepared in memory.
        make: Prepares them, handing what is ready to its argument; raises no OSError of its own.
    """
    key = key_of()

    def make_unchanged(write: _Write) -> Summary:
        summary = make(write)
        if key_of() != key:
            raise OSError("the file of prompts has changed while it was read")
        return summary

    if key is not None:
        try:
            return _Entry(cache_folder(), key).open_or_make(make_unchanged)
        except (OSError, RuntimeError, pa.ArrowException) as error:
            if os.environ.get("RANK", "0") == "0":
                _LOGGER.warning("prompts are prepared by each process for itself, without a cache: %s", error)
    batches: list[pa.RecordBatch] = []
    summary = make(batches.append)
    return pa.Table.from_batches(batches, SCHEMA), summary


def cache_key(
    config: PromptsConfig, tokenizer: Any, limit: int | None, read_label: Callable[[Any], Any]
) -> str | None:
    """A hash of all that the prepared prompts depend on; None where that cannot be told.

    A prompts class, a tokenizer that is none of `transformers`' fast ones, a template that asks for the time and a
    check of labels that is not ours may give something else at every start.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    template = json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True, default=str)
    is_known = type(tokenizer).__module__.startswith("transformers.")
    if config.path is None or not isinstance(read_label, LabelReader):
        return None
    if backend is None or not is_known or "strftime_now" in template:
        return None
    try:
        data = _identity(Path(config.path))
    except OSError:
        return None  # reading the prompts says why
    keys = (
        config.input_key,
        config.label_key,
        config.metadata_key,
        config.apply_chat_template,
        limit,
        read_label.reward,
    )
    words = (type(tokenizer).__qualname__, template, tokenizer.special_tokens_map, _split(tokenizer))
    packages = [version(name) for name in ("transformers", "tokenizers", "jinja2", "pyarrow")]
    digest = hashlib.blake2b(json.dumps([data, keys, words, packages], default=str).encode(), digest_size=16)
    digest.update(backend.to_str().encode())
    here = Path(__file__).parent
    for source in sorted([*here.glob("prompt*.py"), *(here.parent / "rewards").rglob("*.py")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _split(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "split_special_tokens", False))


def _identity(path: Path) -> list[Any]:
    """A small file by what it holds; a large one by its inode and times, of which nobody can set the last."""
    stat = path.stat()
    if stat.st_size > _HASHED_BYTES:
        return [path.suffix, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    return [path.suffix, hashlib.blake2b(path.read_bytes()).hexdigest()]


class _Entry:
    """One table in the cache: `KEY.arrow`, and `KEY.json`, which vouches for it and is written last."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder, key
        self._data, self._about = folder / f"{key}.arrow", folder / f"{key}.json"
        self._lock = folder / f"{key}.lock"

    def open_or_make(self, make: Callable[[_Write], Summary]) -> tuple[pa.Table, Summary]:
        for path in (self._data, self._about, self._lock):
            if path.exists() and not path.is_file():
                raise OSError(f"{path} is no file; remove it")
        if (found := self._open()) is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                if (found := self._open()) is None:
                    self._make(make)
                    _clean(self._folder, keep=self._key)
                    found = self._open()
        if found is None:
            raise OSError(f"{self._data} is not what was written to it")
        for path in (self._data, self._about):
            with suppress(
                OSError
            ):  # another's, or a read-only disk: when it was used is only for the cleaning
                os.utime(path)
        return found

    def _open(self) -> tuple[pa.Table, Summary] | None:
        """The table and its summary, every byte looked at; None where there is none that can be trusted."""
        try:
            with self._about.open(encoding="utf-8") as file:
                about = json.load(file)
            if {p.stat().st_uid for p in (self._data, self._about)} - {os.getuid(), 0}:
                return None
            with self._data.open("rb") as file:
                if hashlib.file_digest(file, hashlib.blake2b).hexdigest() != about.pop("digest"):
                    return None
            table = pa.ipc.open_file(pa.memory_map(str(self._data))).read_all()
            summary = Summary(**about)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, pa.ArrowException):
            return None
        return (table, summary) if table.schema == SCHEMA and len(table) == summary.num_kept else None

    def _make(self, make: Callable[[_Write], Summary]) -> None:
        with _partial(self._data) as path:
            with path.open("wb") as file:
                sink = _Hashed(file)
                with pa.ipc.new_file(sink, SCHEMA) as writer:
                    summary = make(writer.write_batch)
                file.flush()
                os.fsync(file.fileno())
            path.rename(self._data)
        with _partial(self._about) as path:
            path.write_text(json.dumps(summary.as_dict() | {"digest": sink.digest.hexdigest()}))
            path.rename(self._about)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the right to write the entry; OSError where another holds it and does not move."""
        with self._lock.open("a") as file:
            seen, since = -1, time.monotonic()
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    size = sum(_size(path) for path in self._folder.glob(f"{self._key}.*"))
                    seen, since = size, time.monotonic() if size != seen else since
                if time.monotonic() - since > PATIENCE_SECONDS:
                    raise OSError(f"the process that holds {file.name} has written nothing for a minute")
                time.sleep(0.1)
            os.utime(file.fileno())
            yield


class _Hashed:
    """A file that Arrow writes to, and the hash of what it has written."""

    def __init__(self, file: Any) -> None:
        self.digest = hashlib.blake2b()
        self.closed = False
        self._file = file

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The file is closed by who has opened it."""


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """A new file beside `path`, which is gone afterwards unless it was renamed."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _clean(folder: Path, keep: str) -> None:
    """Remove what is old or too much. A process that has an entry mapped keeps it until it ends."""
    by_age = sorted(folder.iterdir(), key=_time, reverse=True)
    oldest, total = time.time() - KEPT_DAYS * 86_400, 0
    for path in by_age:
        total += _size(path)
        if (_time(path) < oldest or total > KEPT_BYTES) and not path.name.startswith(keep):
            with suppress(OSError):
                path.unlink()


def _time(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
