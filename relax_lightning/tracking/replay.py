"""`python -m relax_lightning.tracking.replay RUN_FOLDER`: send what a run folder still owes its MLflow server."""

from __future__ import annotations

import sys
from pathlib import Path

from relax_lightning.tracking.mlflow_run import set_environment, without_credentials
from relax_lightning.tracking.sender import describe, replay_spool
from relax_lightning.tracking.spool import Spool, read_spools


def replay(run_folder: Path) -> bool:
    """Send every run of the folder that is over, one line each; may be repeated, nothing arrives twice.

    Returns:
        Whether everything has arrived.
    """
    set_environment()
    spools = read_spools(run_folder)
    if not spools:
        print(f"{run_folder}: no runs spooled for MLflow")
    return all([_replay_one(spool) for spool in spools])


def main(arguments: list[str]) -> int:
    """Exit code 0 when everything has arrived, 1 when something is still spooled, 2 for a wrong call."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(
            "usage: python -m relax_lightning.tracking.replay RUN_FOLDER (an existing run folder)",
            file=sys.stderr,
        )
        return 2
    return 0 if replay(Path(arguments[0]).absolute()) else 1


def _replay_one(spool: Spool) -> bool:
    num_points, num_events = spool.num_pending()
    target = without_credentials(spool.state.uri)
    try:
        replay_spool(spool)
    except Exception as error:  # noqa: BLE001 - whatever the server did, the other runs get their turn
        print(f"run {spool.state.key}: not all sent to {target}: {describe(error)}")
        return False
    print(
        f"run {spool.state.run_id or spool.state.key}: {num_points} points and {num_events} other records "
        f"sent to {target}"
    )
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
