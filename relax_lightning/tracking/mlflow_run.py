"""One run on one MLflow server: the only importer of mlflow. Every call may block for seconds, and may raise."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from relax_lightning.run.rendezvous import past_proxy
from relax_lightning.tracking.journal import PointBatch
from relax_lightning.tracking.spool import Spool

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

KEY_TAG = "relax_lightning.run_key"
MAX_POINTS_PER_REQUEST = 1000
MEASURED = ("phase/", "perf/", "memory/", "system/")
"""Times and memory: they differ even where an iteration is repeated bit for bit, so the first value stands."""
_MAX_PARAMS_PER_REQUEST = 100
_MAX_VALUE_LENGTH = 500
_MAX_NAME_LENGTH = 250
_ENVIRONMENT = {
    # What MLflow tells its makers of its use goes over the network, and changes the environment from threads.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class MLflowRun:
    """The MLflow side of a spool: finds or creates the run, and sends what it is given.

    Args:
        spool: Says which server, experiment and run; is told the run's id once it is known.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._client: MlflowClient | None = None
        self._known: dict[str, dict[int, float]] = {}

    def connect(self) -> None:
        """Make sure that the server has the run, creating it where it is new."""
        if self._client is not None:
            return
        client = _make_client(self._spool.state.uri)
        run_id = self._spool.state.run_id
        run = _get_run(client, run_id) if run_id else self._find(client)
        if run is None:
            run = self._create(client)
        if run.info.run_id != run_id:
            self._spool.update(
                run_id=run.info.run_id, journal_offset=0, events_offset=0, is_status_sent=False
            )
        if run.info.status != "RUNNING":
            client.update_run(run.info.run_id, status="RUNNING")
            self._spool.update(is_status_sent=False)
        _remove_quoted_folder(self._spool.state.uri)
        self._client = client

    def send_points(self, batches: Sequence[PointBatch]) -> None:
        """Send metric points; the server ignores those that it has, and gets no repeated value a second time."""
        from mlflow.entities import Metric

        points = [
            Metric(_clean(name), value, batch.timestamp_ms, batch.step)
            for batch in batches
            for name, value in batch.metrics.items()
            if not self._is_known(_clean(name), batch.step, value)
        ]
        for start in range(0, len(points), MAX_POINTS_PER_REQUEST):
            self.client.log_batch(self.run_id, metrics=points[start : start + MAX_POINTS_PER_REQUEST])
        for point in points:
            if point.key in self._known:
                self._known[point.key][point.step] = point.value

    def send_params(self, values: Mapping[str, str]) -> None:
        """Send params; MLflow allows no change, so a value that a resumed run changed becomes a tag `resumed.<key>`."""
        from mlflow.entities import Param

        present = self.client.get_run(self.run_id).data.params
        values = {_clean(key): value[:_MAX_VALUE_LENGTH] for key, value in values.items()}
        params = [Param(key, value) for key, value in values.items() if key not in present]
        for start in range(0, len(params), _MAX_PARAMS_PER_REQUEST):
            self.client.log_batch(self.run_id, params=params[start : start + _MAX_PARAMS_PER_REQUEST])
        self.send_tags({f"resumed.{k}": v for k, v in values.items() if present.get(k, v) != v})

    def send_tags(self, values: Mapping[str, str]) -> None:
        """Send tags; the last value of a tag stands."""
        from mlflow.entities import RunTag

        tags = [RunTag(_clean(key), value) for key, value in values.items()]
        for start in range(0, len(tags), _MAX_PARAMS_PER_REQUEST):
            self.client.log_batch(self.run_id, tags=tags[start : start + _MAX_PARAMS_PER_REQUEST])

    def send_artifact(self, path: Path, folder: str | None) -> None:
        """Send a file as it is now; one that no longer exists was pruned and is passed over."""
        if path.exists():
            self.client.log_artifact(self.run_id, str(path), folder)

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self.client.set_terminated(self.run_id, status, self._spool.state.end_time_ms)

    @property
    def client(self) -> MlflowClient:
        """The connected client."""
        assert self._client is not None, "connect() comes first"
        return self._client

    @property
    def run_id(self) -> str:
        """MLflow's id of the run."""
        assert self._spool.state.run_id is not None, "connect() comes first"
        return self._spool.state.run_id

    def _is_known(self, name: str, step: int, value: float) -> bool:
        state = self._spool.state
        if not state.is_adopted and step > state.repeated_until:
            return False
        if name not in self._known:
            history = self.client.get_metric_history(self.run_id, name)
            # The newest value of a step is the one that counts.
            by_time = sorted(history, key=lambda metric: metric.timestamp)
            self._known[name] = {metric.step: metric.value for metric in by_time}
        known = self._known[name].get(step)
        return known is not None and (name.startswith(MEASURED) or _is_same(known, value))

    def _find(self, client: MlflowClient) -> Any | None:
        # A create whose answer was lost has left a run behind: the tag finds it, or there would be two.
        experiment_id = self._experiment_id(client)
        found = client.search_runs(
            [experiment_id], f"tags.`{KEY_TAG}` = '{self._spool.state.key}'", max_results=1
        )
        return found[0] if found else None

    def _create(self, client: MlflowClient) -> Any:
        state = self._spool.state
        tags = {"mlflow.source.name": "relax-lightning", **state.tags, KEY_TAG: state.key}
        return client.create_run(self._experiment_id(client), state.start_time_ms, tags, state.run_name)

    def _experiment_id(self, client: MlflowClient) -> str:
        state = self._spool.state
        experiment = client.get_experiment_by_name(state.experiment)
        if experiment is not None:
            return experiment.experiment_id
        return client.create_experiment(state.experiment, artifact_location=_artifact_location(state.uri))


def set_environment() -> None:
    """Short timeouts, no retries and no chatter where the user has set nothing else; before mlflow is imported.

    And before a thread is started: to set a variable while another thread reads one may crash the process.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.update(past_proxy(os.environ))


def import_mlflow() -> None:
    """Import mlflow, which takes seconds."""
    import mlflow.tracking  # noqa: F401  # pyright: ignore[reportUnusedImport]


def without_credentials(uri: str) -> str:
    """The URI as it may be shown: user name and password left out."""
    parts = urlsplit(uri)
    return uri.replace(f"{parts.netloc.rpartition('@')[0]}@", "") if "@" in parts.netloc else uri


def _make_client(uri: str) -> MlflowClient:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def _get_run(client: MlflowClient, run_id: str) -> Any | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _artifact_location(uri: str) -> str | None:
    # A server knows where its artifacts go; for a local database MLflow's default is the working directory.
    if not uri.startswith("sqlite:///"):
        return None
    database = unquote(uri.removeprefix("sqlite:///").partition("?")[0])
    return (Path(database).resolve().parent / "mlartifacts").as_uri()


def _remove_quoted_folder(uri: str) -> None:
    # MLflow makes the folder of a database by its address as it is written, beside the one that is meant.
    written = uri.removeprefix("sqlite:///")
    if uri.startswith("sqlite:///") and unquote(written) != written:
        with suppress(OSError):  # not empty: it is somebody's
            Path(written).parent.rmdir()


def _is_same(known: float, value: float) -> bool:
    # A database holds the largest float in place of infinity.
    largest = sys.float_info.max
    if math.isnan(value):
        return math.isnan(known)
    return known in (value, max(-largest, min(value, largest)))


def _clean(name: str) -> str:
    name = re.sub(r"[^\w\-. :/]", "_", name)
    return re.sub(r"/+", "/", name).strip("/")[:_MAX_NAME_LENGTH] or "_"
