"""The background thread that carries a spool to MLflow, so that training never waits for a server."""

from __future__ import annotations

import logging
import re
import threading
import time
from itertools import islice

from relax_lightning.tracking.mlflow_run import MLflowRun, import_mlflow, without_credentials
from relax_lightning.tracking.spool import Spool, SpoolBusyError, journal_held, read_spools

log = logging.getLogger("relax_lightning.tracking")

SEND_INTERVAL_SECONDS = 1.0
HEALTHY_WAIT_SECONDS = 10.0
FAILING_WAIT_SECONDS = 2.0
STARTING_WAIT_SECONDS = 60.0
_MAX_BACKOFF_SECONDS = 60.0
_BATCHES_PER_REQUEST = 50


class Sender(threading.Thread):
    """Sends one spool while its run goes on, then what older runs left in the same folder.

    Args:
        spool: The queue of the run that goes on.
    """

    def __init__(self, spool: Spool) -> None:
        super().__init__(name="mlflow-sender", daemon=True)
        self._spool = spool
        self._run = MLflowRun(spool)
        self._wake = threading.Event()
        self._passed = threading.Event()
        self._is_stopping = False
        self._num_failures = 0
        self._is_imported = False
        self._connected_at: float | None = None
        self.failure: str | None = None

    def run(self) -> None:
        """Send until told to stop."""
        are_older_done = False
        while not self._is_stopping:
            try:
                with self._spool.owned():
                    while not self._is_stopping:
                        self._pass()
                        if not are_older_done and self.failure is None and self._spool.is_drained:
                            are_older_done = True
                            self._send_older()
                        self._rest()
            except SpoolBusyError as error:
                self._fail(error)
                self._rest()

    def drain(self) -> bool:
        """Wait, for a bounded time, until everything has arrived; returns whether it has.

        A server that fails gets 2 s, one that answers 10 s. The import of mlflow and the creation of a local
        database are this machine's own work and get 60 s.
        """
        start = time.monotonic()
        self._wake.set()
        while self.is_alive() and not self._spool.is_drained:
            if time.monotonic() - max(start, self._connected_at or start) > self._patience():
                return False
            self._passed.wait(0.05)
            self._passed.clear()
        return self._spool.is_drained

    def stop(self) -> None:
        """Ask the thread to end after the request it is in."""
        self._is_stopping = True
        self._wake.set()

    def _patience(self) -> float:
        if self.failure is not None:
            return FAILING_WAIT_SECONDS
        is_local = self._spool.state.uri.startswith("sqlite:")
        if not self._is_imported or (is_local and self._connected_at is None):
            return STARTING_WAIT_SECONDS
        return HEALTHY_WAIT_SECONDS

    def _pass(self) -> None:
        if self._spool.is_drained:
            return
        try:
            import_mlflow()
            self._is_imported = True
            self._run.connect()
            self._connected_at = self._connected_at or time.monotonic()
            send_pending(self._spool, self._run)
        except Exception as error:  # noqa: BLE001 - whatever a server does, training goes on
            self._fail(error)
        else:
            if self._num_failures:
                log.warning("MLflow at %s answers again.", without_credentials(self._spool.state.uri))
            self._num_failures, self.failure = 0, None
        self._passed.set()

    def _fail(self, error: Exception) -> None:
        self.failure = describe(error)
        self._num_failures += 1
        if self._num_failures == 1:
            uri = without_credentials(self._spool.state.uri)
            log.warning(
                "MLflow at %s fails (%s). Training goes on; points are kept and sent later.",
                uri,
                self.failure,
            )

    def _rest(self) -> None:
        backoff = min(_MAX_BACKOFF_SECONDS, 2.0 ** min(self._num_failures, 10))
        self._wake.wait(backoff if self._num_failures else SEND_INTERVAL_SECONDS)
        if not self._is_stopping:
            self._wake.clear()

    def _send_older(self) -> None:
        for spool in read_spools(self._spool.run_folder):
            if spool.state.key == self._spool.state.key:
                continue
            try:
                replay_spool(spool)
            except Exception as error:  # noqa: BLE001 - the run that goes on comes first
                log.info("an older run's points stay spooled: %s", describe(error))


def send_pending(spool: Spool, run: MLflowRun) -> None:
    """Send points, then events, then the end of the run; what arrived is noted at once, the first failure raises."""
    while _send_some_points(spool, run):
        pass
    # The end of the run does not wait for artifacts: MLflow takes them afterwards too.
    status = spool.state.status
    try:
        _send_events(spool, run)
    finally:
        if status is not None and not spool.state.is_status_sent:
            run.end(status)
            spool.update(is_status_sent=True)


def _send_some_points(spool: Spool, run: MLflowRun) -> bool:
    with journal_held(spool.run_folder):
        # A resume may have rewound the journal.
        spool.reload()
        batches = list(islice(spool.pending_batches(), _BATCHES_PER_REQUEST))
        if batches:
            run.send_points(batches)
            spool.update(journal_offset=batches[-1].end_offset)
    return bool(batches)


def replay_spool(spool: Spool) -> None:
    """Send what a run that is over left behind; a run that never said how it ended was KILLED.

    Raises:
        SpoolBusyError: The run is not over, another process sends it.
    """
    with spool.owned():
        spool.reload()
        if spool.state.status is None:
            spool.update(status="KILLED")
        if spool.is_drained:
            return
        run = MLflowRun(spool)
        run.connect()
        send_pending(spool, run)


def describe(error: BaseException) -> str:
    """The first cause of an error in at most 200 characters of one line, credentials in an address left out."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return re.sub(r"//[^/@\s]+@", "//", text)[:200]


def _send_events(spool: Spool, run: MLflowRun) -> None:
    events = spool.pending_events()
    last = {event["path"]: end for event, end in events if event["kind"] == "artifact"}
    for event, end in events:
        if event["kind"] == "params":
            run.send_params(event["values"])
        elif event["kind"] == "tags":
            run.send_tags(event["values"])
        elif last[event["path"]] == end:
            run.send_artifact(spool.run_folder / event["path"], event["folder"])
        spool.update(events_offset=end)
