"""Prompts as rows of tokens: made of records by several threads, kept as columns of Arrow, read one by one."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import batched
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from relax_lightning.data.prompt_records import PromptRecord

SCHEMA = pa.schema(
    [
        ("token_ids", pa.large_list(pa.int32())),
        ("text", pa.large_string()),
        ("label", pa.large_string()),
        ("metadata", pa.large_string()),
    ]
)
"""Label and metadata are JSON."""
_BATCH = 512
_MOST_THREADS = 32


class Tokenizer(Protocol):
    """What prompts need of a `transformers` tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text."""
        ...

    def apply_chat_template(self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool) -> Any:
        """The text of a conversation, up to where the assistant goes on."""
        ...


@dataclass(frozen=True)
class PromptRow:
    """One prompt, tokenized."""

    token_ids: list[int]
    text: str
    label: Any
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """What is known of a set once all of it is prepared."""

    num_read: int
    num_kept: int
    """The others are longer than allowed."""
    fingerprint: str
    """A hash of all tokens and labels, in order."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class ArrowRows(Sequence[PromptRow]):
    """The rows of a table of `SCHEMA`, each made when it is asked for: of a mapped file, nothing else is in memory."""

    def __init__(self, table: pa.Table) -> None:
        self._columns = [table.column(name) for name in SCHEMA.names]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: Any) -> Any:
        """The row at a position."""
        token_ids, text, label, metadata = (column[index].as_py() for column in self._columns)
        return PromptRow(token_ids, text, json.loads(label), json.loads(metadata))


def arrow_batch(rows: list[PromptRow]) -> pa.RecordBatch:
    """Rows with labels and metadata of JSON's own types, as columns of `SCHEMA`."""
    columns = [
        [row.token_ids for row in rows],
        [row.text for row in rows],
        [json.dumps(row.label, ensure_ascii=False) for row in rows],
        [json.dumps(row.metadata, ensure_ascii=False) for row in rows],
    ]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def prepare(
    records: Iterable[PromptRecord],
    tokenizer: Tokenizer,
    write: Callable[[list[PromptRow]], object],
    *,
    apply_chat_template: bool,
    limit: int | None,
) -> Summary:
    """Tokenize every record, and write the rows that are not too long.

    Args:
        records: As they are read.
        tokenizer: Of the model that answers them.
        write: Takes the next rows.
        apply_chat_template: Also for prompts that are text.
        limit: Most tokens; None: any number.

    Raises:
        ValueError: A prompt cannot be tokenized; names its source and the reason.
    """
    digest = hashlib.blake2b(digest_size=8)
    num_read = num_kept = 0
    for found in _tokenized(records, tokenizer, apply_chat_template):
        rows = [row for row in found if limit is None or len(row.token_ids) <= limit]
        num_read, num_kept = num_read + len(found), num_kept + len(rows)
        for row in rows:
            tokens = np.array(row.token_ids, dtype="<i8").tobytes()
            digest.update(len(row.token_ids).to_bytes(8, "little") + tokens + repr(row.label).encode())
        if rows:
            write(rows)
    return Summary(num_read, num_kept, digest.hexdigest())


_Encoded = list[list[int]]


def _tokenized(
    records: Iterable[PromptRecord], tokenizer: Tokenizer, apply_chat_template: bool
) -> Iterator[list[PromptRow]]:
    """Batch by batch: while threads are at some, the next are read and written out by the chat template."""
    num_threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    under_way: deque[tuple[Sequence[PromptRecord], list[str], Future[_Encoded]]] = deque()
    with ThreadPoolExecutor(num_threads, "tokenize") as pool:
        encode = _encoder(tokenizer, pool)
        for batch in batched(records, _BATCH):
            is_plain = [isinstance(r.prompt, str) and not apply_chat_template for r in batch]
            texts = _texts(batch, is_plain, tokenizer)
            under_way.append((batch, texts, encode(texts, is_plain)))
            if len(under_way) > 2 * num_threads:
                yield _rows(*under_way.popleft())
        while under_way:
            yield _rows(*under_way.popleft())


def _rows(batch: Sequence[PromptRecord], texts: list[str], encoded: Future[_Encoded]) -> list[PromptRow]:
    rows = []
    for record, text, token_ids in zip(batch, texts, encoded.result(), strict=True):
        if not token_ids:
            raise ValueError(f"{record.source}: the tokenizer makes no token of {text!r:.80}")
        rows.append(PromptRow(token_ids, text, record.label, record.metadata))
    return rows


def _texts(batch: Sequence[PromptRecord], is_plain: list[bool], tokenizer: Tokenizer) -> list[str]:
    texts = []
    for record, plain in zip(batch, is_plain, strict=True):
        prompt = record.prompt
        if plain:
            texts.append(prompt)
            continue
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            texts.append(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{record.source}: the tokenizer's chat template failed: {reason:.400}"
            ) from error
    return texts


def _encoder(tokenizer: Any, pool: ThreadPoolExecutor) -> Callable[[list[str], list[bool]], Future[_Encoded]]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:

        def encode(texts: list[str], is_plain: list[bool]) -> Future[_Encoded]:
            # A tokenizer in Python gains nothing from threads, and may not bear them.
            done: Future[_Encoded] = Future()
            # The template has written the special tokens already.
            pairs = zip(texts, is_plain, strict=True)
            done.set_result([tokenizer.encode(text, add_special_tokens=plain) for text, plain in pairs])
            return done

        return encode

    def encode_in_rust(texts: list[str], is_plain: list[bool]) -> _Encoded:
        if len(set(is_plain)) == 1:
            return [e.ids for e in backend.encode_batch(texts, add_special_tokens=is_plain[0])]
        pairs = zip(texts, is_plain, strict=True)
        return [backend.encode(text, add_special_tokens=plain).ids for text, plain in pairs]

    # Leaves the backend without truncation and padding, which no thread may change later.
    tokenizer.encode("0")
    return lambda texts, is_plain: pool.submit(encode_in_rust, texts, is_plain)
