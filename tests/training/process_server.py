"""Starts `relax-lightning` in processes of its own without paying for the imports again: imports once, then forks.

A line on stdin, {"argv": [...], "folder": ..., "log": ...}, runs the command in the folder; the answer on stdout is its
wait status and when it ended.
"""

import json
import os
import sys
import time
import traceback


def main() -> None:
    """Serve until stdin closes."""
    import mlflow.tracking

    import relax_lightning.lightning_cli
    import relax_lightning.rollout.megatron_engine  # noqa: F401

    assert mlflow.tracking
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(**request)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), "ended": time.time()}), flush=True)


def _run(argv: list[str], folder: str, log: str) -> None:
    from relax_lightning.cli import main as command

    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 1
    try:
        code = command(argv)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 as the interpreter itself would
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
