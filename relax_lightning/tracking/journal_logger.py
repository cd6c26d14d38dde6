"""The logger of a run without MLflow: every point goes to the journal in the run folder."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from relax_lightning.run.errors import never_hiding_an_error, writing
from relax_lightning.tracking.journal import JOURNAL_NAME, VALIDATE_NAME, Journal
from relax_lightning.tracking.spool import Spool, find_spool, new_run_key, read_spools, rewind


class JournalLogger(Logger):
    """Records metric points in `<run_folder>/metrics.jsonl`, each (metric, step) once.

    Args:
        run_folder: The run folder, `trainer.default_root_dir`.
        resume_run_id: `run_id` or `run_key` of the run that is resumed; None begins a new one.
        evaluation: What is evaluated, where that is all: the points go to `validate.jsonl`, and this beside them.
    """

    def __init__(
        self,
        run_folder: str | Path,
        resume_run_id: str | None = None,
        evaluation: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._run_folder = Path(run_folder).absolute()
        self._run_key = _choose_key(self._run_folder, resume_run_id)
        name = JOURNAL_NAME if evaluation is None else VALIDATE_NAME
        self._journal = Journal(self._run_folder / name, self._run_key, evaluation)
        self.end_status: str | None = None
        """FINISHED, FAILED or KILLED where the one who ends the run knows better than Lightning, which only says
        success or failed."""

    @property
    def name(self) -> str:
        """What the run is listed under."""
        return "journal"

    @property
    def version(self) -> str:
        """The run's local key."""
        return self._run_key

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self._run_folder)

    @property
    def is_evaluation(self) -> bool:
        """Whether nothing is trained: the record is one evaluation."""
        return self._journal.path.name == VALIDATE_NAME

    @property
    def journal(self) -> Journal:
        """The record of this run, earlier parts of a resumed run included."""
        return self._journal

    @property
    def run_key(self) -> str:
        """The run's local key: always known, also while a server is down; resumes the run as `run_id` does."""
        return self._run_key

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None where there is none, or none yet."""
        return None

    @property
    def location(self) -> str:
        """Where the record of this run is, for people to read."""
        return str(self._journal.path)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record the points of one iteration; repeated ones are dropped.

        Args:
            metrics: One number a name.
            step: The iteration, from 1; required.

        Raises:
            ValueError: `step` is None.
        """
        if step is None:
            raise ValueError(
                "wanted `step`, the iteration from 1; got None; call log_metrics(metrics, step=...)"
            )
        self._journal.record(metrics, step, int(time.time() * 1000))

    @rank_zero_only
    def rewind(self, step: int) -> None:
        """The run goes on from iteration `step`: what is recorded of later ones is put aside, for they come again."""
        rewind(self._journal, step, self._spools())
        with writing(self._journal.path):
            self._journal.open()

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the resolved configuration lies in the run folder already."""

    @rank_zero_only
    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Nothing to do: the journal holds points only."""

    @rank_zero_only
    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Nothing to do: the file lies in the run folder already."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Close the journal; a later point opens it again. Where training failed, nothing here hides why."""
        with never_hiding_an_error(type(self).__name__) if status == "failed" else nullcontext():
            self._finish(status)

    def _finish(self, status: str) -> None:
        self._journal.close()

    def _spools(self) -> list[Spool]:
        return read_spools(self._run_folder)


def _choose_key(run_folder: Path, resume_run_id: str | None) -> str:
    if resume_run_id is None:
        return new_run_key()
    spool = find_spool(run_folder, resume_run_id)
    return spool.state.key if spool is not None else resume_run_id
