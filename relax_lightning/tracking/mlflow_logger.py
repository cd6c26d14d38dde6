"""The logger of a run with MLflow: disk first, then a background thread, so that no server can hold up training."""

from __future__ import annotations

import logging
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_only

from relax_lightning.config.loader import mlflow_uri
from relax_lightning.tracking.journal_logger import JournalLogger
from relax_lightning.tracking.mlflow_run import set_environment, without_credentials
from relax_lightning.tracking.sender import Sender
from relax_lightning.tracking.spool import SPOOL_NAME, Spool, SpoolState, find_spool, is_run_key
from relax_lightning.tracking.system import system_metrics as read_system_metrics

log = logging.getLogger("relax_lightning.tracking")

_STATUSES = {"success": "FINISHED", "finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_SCHEMES = ("sqlite:///", "http://", "https://", "postgresql", "mysql", "mssql", "databricks")


class MLflowLogger(JournalLogger):
    """Records a run in the journal and in MLflow; a dead server costs no iteration and loses no point.

    Args:
        run_folder: The run folder, `trainer.default_root_dir`.
        uri: Tracking server or database; None is sqlite in the run folder, with the artifacts beside it.
        experiment: MLflow's experiment, created where it is missing.
        run_name: Name of the run in MLflow; None lets MLflow invent one.
        tags: Tags of the run.
        system_metrics: Whether `system/...` points (processor, memory, GPU memory) are recorded at each step.
        resume_run_id: `run_id` or `run_key` of the run that is resumed; None begins a new one.
        evaluation: As of `JournalLogger`.

    Raises:
        ValueError: `uri` is none of a database, a server.
    """

    def __init__(
        self,
        run_folder: str | Path,
        uri: str | None = None,
        experiment: str = "relax-lightning",
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
        system_metrics: bool = False,
        resume_run_id: str | None = None,
        evaluation: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(run_folder, resume_run_id, evaluation)
        uri = uri or mlflow_uri(self._run_folder)
        if not uri.startswith(_SCHEMES):
            raise ValueError(
                "tracking.mlflow.uri: wanted a server (http://..., https://...) or a database (sqlite:///FILE), "
                f"got {uri!r}; MLflow writes to no plain folder. Leave it out for a database in the run folder."
            )
        set_environment()
        self._has_system_metrics = system_metrics
        text_tags = {key: str(value) for key, value in (tags or {}).items()}
        state = SpoolState(
            self._run_key, uri, experiment, run_name, text_tags,
            journal=self._journal.path.name, start_time_ms=_now_ms(),
        )  # fmt: skip
        self._spool = _open_spool(self._run_folder, state, resume_run_id)
        self._sender: Sender | None = None

    @property
    def name(self) -> str:
        """MLflow's experiment."""
        return self._spool.state.experiment

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None until the server has created it. Never waits."""
        return self._spool.state.run_id

    @property
    def location(self) -> str:
        """The tracking server or database, credentials left out."""
        return without_credentials(self._spool.state.uri)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record the points of one iteration on disk; the thread sends them within about a second."""
        system = read_system_metrics() if self._has_system_metrics else {}
        super().log_metrics({**metrics, **system}, step)
        self._start()

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Record the resolved configuration as params, keys joined by dots as on the command line."""
        tree = vars(params) if isinstance(params, Namespace) else params
        self._queue("params", values={key: str(value) for key, value in _flatten(tree)})

    @rank_zero_only
    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; the last value of a tag stands."""
        self._queue("tags", values={key: str(value) for key, value in tags.items()})

    @rank_zero_only
    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Send a file as it is when its turn comes; it has to stay where it is until then.

        Args:
            path: The file, absolute or relative to the run folder.
            folder: Folder among the run's artifacts; None is their top.
        """
        path = Path(path)
        if path.is_relative_to(self._run_folder):
            path = path.relative_to(self._run_folder)
        self._queue("artifact", path=str(path), folder=folder)

    def _finish(self, status: str) -> None:
        # Ends the run, waits a bounded time for what is under way, and says what stays spooled.
        super()._finish(status)
        if self._sender is None:
            return
        self._spool.update(status=self.end_status or _STATUSES.get(status, "FAILED"), end_time_ms=_now_ms())
        is_drained = self._sender.drain()
        self._sender.stop()
        if is_drained:
            self._sender.join(timeout=1.0)
        else:
            self._say_what_is_left()
        self._sender = None

    def _spools(self) -> list[Spool]:
        return [self._spool, *(s for s in super()._spools() if s.state.key != self._run_key)]

    def _queue(self, kind: str, **content: Any) -> None:
        self._spool.add_event(kind, **content)
        self._start()

    def _start(self) -> None:
        if self._sender is None:
            self._spool.update(status=None, is_status_sent=False)
            self._sender = Sender(self._spool)
            self._sender.start()

    def _say_what_is_left(self) -> None:
        num_points, num_events = self._spool.num_pending()
        reason = self._sender.failure if self._sender is not None else None
        log.warning(
            "%d points and %d other records of this run have not reached MLflow at %s (%s). They are kept in %s "
            "and sent by the next run in this folder, or by: python -m relax_lightning.tracking.replay %s",
            num_points, num_events, self.location, reason or "still sending",
            self._run_folder / SPOOL_NAME, self._run_folder,
        )  # fmt: skip


def named_as_evaluation(
    run_folder: Path, settings: Mapping[str, Any], trained_by: str | None, checkpoint: str | None
) -> dict[str, Any]:
    """Settings of `MLflowLogger` for an evaluation of a checkpoint: in MLflow a child of the run that trained it.

    Args:
        run_folder: Where that run's spool is looked for.
        settings: Those of the configuration.
        trained_by: `run_id` or `run_key` of the run that trained it; None where it is not known.
        checkpoint: The iteration's folder; None: the weights that the configuration begins with.
    """
    what = "initial weights" if checkpoint is None else Path(checkpoint).name
    tags = {"relax_lightning.command": "validate", "relax_lightning.checkpoint": checkpoint or what}
    if trained_by is not None:
        spool = find_spool(run_folder, trained_by)
        parent = spool.state.run_id if spool is not None else None if is_run_key(trained_by) else trained_by
        tags |= {"relax_lightning.trained_by": trained_by}
        tags |= {} if parent is None else {"mlflow.parentRunId": parent}
    run_name = " ".join(filter(None, (settings.get("run_name"), "validate", what)))
    return {**settings, "run_name": run_name, "tags": {**(settings.get("tags") or {}), **tags}}


def _open_spool(run_folder: Path, state: SpoolState, resume_run_id: str | None) -> Spool:
    spool = find_spool(run_folder, resume_run_id) if resume_run_id is not None else None
    if spool is not None:
        # The configuration may have moved the server or the name; what has arrived stays as recorded.
        old = spool.state
        state = replace(
            state, run_id=old.run_id, is_adopted=old.is_adopted, start_time_ms=old.start_time_ms,
            journal_offset=old.journal_offset, events_offset=old.events_offset, repeated_until=old.repeated_until,
        )  # fmt: skip
    elif resume_run_id is not None and not is_run_key(resume_run_id):
        state = replace(state, run_id=resume_run_id, is_adopted=True)
    return Spool(run_folder, state)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _now_ms() -> int:
    return int(time.time() * 1000)
