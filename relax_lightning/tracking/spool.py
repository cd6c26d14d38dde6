"""What a run still owes its MLflow server, on disk: neither a dead server nor a dead process loses any of it."""

from __future__ import annotations

import fcntl
import json
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from relax_lightning.run.errors import writing
from relax_lightning.tracking.journal import JOURNAL_NAME, Journal, PointBatch, read_batches

SPOOL_NAME = "mlflow_spool"


class SpoolBusyError(Exception):
    """Another process, or another logger of this one, is sending the same run."""


@dataclass(frozen=True)
class SpoolState:
    """Where a run goes and how much of it has arrived; one small JSON file."""

    key: str
    """Local key of the run, known from the first moment, server or no server."""
    uri: str
    experiment: str
    run_name: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    run_id: str | None = None
    """MLflow's id of the run; None until the server has created it."""
    is_adopted: bool = False
    """The run began in another folder, so its journal is elsewhere: the server is asked for all values it has."""
    journal: str = JOURNAL_NAME
    """Name of the journal in the run folder."""
    repeated_until: int = 0
    """Points of steps up to this one may have arrived before a resume: the server is asked for their values."""
    journal_offset: int = 0
    """Bytes of the journal whose points have arrived."""
    events_offset: int = 0
    """Bytes of the event file whose events have arrived."""
    start_time_ms: int | None = None
    """Milliseconds since 1970."""
    end_time_ms: int | None = None
    status: str | None = None
    """FINISHED, FAILED or KILLED once the run has ended."""
    is_status_sent: bool = False


class Spool:
    """The queue of one run: the journal from an offset on, and a file of events (params, tags, artifacts).

    Args:
        run_folder: Folder of the journal; the spool lies in `mlflow_spool/` in it.
        state: What is known of the run; written with the first change.
    """

    def __init__(self, run_folder: Path, state: SpoolState) -> None:
        self.run_folder = run_folder
        self.journal_path = run_folder / state.journal
        self._folder = run_folder / SPOOL_NAME
        self._state_path = self._folder / f"{state.key}.json"
        self._events_path = self._folder / f"{state.key}.events.jsonl"
        self._state = state
        self._lock = threading.RLock()

    @property
    def state(self) -> SpoolState:
        """The state as of now."""
        return self._state

    def update(self, **changes: Any) -> None:
        """Change fields of the state and write it, atomically."""
        with self._lock:
            self._state = replace(self._state, **changes)
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = self._state_path.with_suffix(".partial")
            with writing(self._state_path):
                partial.write_text(json.dumps(asdict(self._state), indent=1))
                partial.replace(self._state_path)

    def go_back(self, journal_offset: int, repeated_until: int) -> None:
        """Send again from this offset at the latest; steps up to `repeated_until` may be trained again."""
        with self._lock:
            self.update(
                journal_offset=min(self._state.journal_offset, journal_offset),
                repeated_until=max(self._state.repeated_until, repeated_until),
            )

    def reload(self) -> None:
        """Read the state from disk again: another process may have sent something meanwhile."""
        with self._lock:
            if self._state_path.exists():
                self._state = SpoolState(**json.loads(self._state_path.read_text()))

    def add_event(self, kind: str, **content: Any) -> None:
        """Append an event: `params` and `tags` with `values`, `artifact` with `path` and `folder`."""
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            with writing(self._events_path), self._events_path.open("ab") as file:
                file.write(json.dumps({"kind": kind, **content}).encode() + b"\n")

    def pending_batches(self) -> Iterator[PointBatch]:
        """Metric points that have not arrived, oldest first."""
        return read_batches(self.journal_path, self._state.key, self._state.journal_offset)

    def pending_events(self) -> list[tuple[dict[str, Any], int]]:
        """Events that have not arrived, oldest first, each with the byte offset after it."""
        if _size(self._events_path) <= self._state.events_offset:
            return []
        offset = self._state.events_offset
        events: list[tuple[dict[str, Any], int]] = []
        with self._events_path.open("rb") as file:
            file.seek(offset)
            for line in file:
                offset += len(line)
                if line.endswith(b"\n"):
                    events.append((json.loads(line), offset))
        return events

    @property
    def is_drained(self) -> bool:
        """Whether everything has arrived, the end of the run included where it has ended."""
        state = self._state
        if state.status is not None and not state.is_status_sent:
            return False
        if _size(self._events_path) > state.events_offset:
            return False
        return _size(self.journal_path) <= state.journal_offset or next(self.pending_batches(), None) is None

    def num_pending(self) -> tuple[int, int]:
        """How many metric points and how many events have not arrived."""
        return sum(len(batch.metrics) for batch in self.pending_batches()), len(self.pending_events())

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the right to send this run.

        Raises:
            SpoolBusyError: Somebody else holds it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{self._state.key}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SpoolBusyError(f"run {self._state.key} is being sent by another process") from error
            yield


@contextmanager
def journal_held(run_folder: Path) -> Iterator[None]:
    """Keep other threads and processes from sending points of a run folder, or from rewinding, meanwhile."""
    (run_folder / SPOOL_NAME).mkdir(parents=True, exist_ok=True)
    with (run_folder / SPOOL_NAME / "journal.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def rewind(journal: Journal, step: int, spools: Sequence[Spool]) -> None:
    """Take what a journal holds of later steps out of the record, and let its spools find their places again.

    The offsets go back before the lines move: after a crash between the two, points are offered twice, and a server
    ignores the second time; it never misses any.

    Args:
        journal: Of the run that goes on from `step`.
        step: The iteration that the run resumes from.
        spools: All of the run folder.
    """
    if journal.last_step <= step:
        return
    with journal_held(journal.path.parent) if spools else nullcontext():
        offset = journal.first_offset_after(step)
        for spool in spools:
            if offset is not None and spool.journal_path == journal.path:
                is_own = spool.state.key == journal.run
                spool.go_back(offset, repeated_until=journal.last_step if is_own else 0)
        journal.rewind(step)


def read_spools(run_folder: Path) -> list[Spool]:
    """Every run that has a spool in `run_folder`, oldest first."""
    paths = sorted((run_folder / SPOOL_NAME).glob("*.json"), key=lambda path: path.stat().st_mtime)
    return [Spool(run_folder, SpoolState(**json.loads(path.read_text()))) for path in paths]


def find_spool(run_folder: Path, resume_run_id: str) -> Spool | None:
    """The spool whose MLflow id or local key is `resume_run_id`, if this folder has it."""
    for spool in read_spools(run_folder):
        if resume_run_id in (spool.state.run_id, spool.state.key):
            return spool
    return None


def new_run_key() -> str:
    """A local key for a run that begins now; it cannot be mistaken for an id of MLflow."""
    return f"local-{uuid.uuid4().hex[:12]}"


def is_run_key(text: str) -> bool:
    """Whether `text` is a local key, as against an id that MLflow gave."""
    return text.startswith("local-")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
