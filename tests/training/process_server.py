"""Starts `relax-lightning` in processes of its own without paying for the imports again: imports once, then forks.

A line on stdin, {"argv": [...], "folder": ..., "log": ...}, runs the command in the folder; the answer on stdout is its
wait status and when it ended. With {"ranks": n} it runs as n ranks of one job, each as a launcher would start it, and
the status is a list.
"""

import gc
import json
import os
import socket
import sys
import time
import traceback
from contextlib import suppress


def main() -> None:
    """Serve until stdin closes."""
    # They ask CUDA about the GPU when they are imported (Megatron looks for them); then no fork of this process could
    # use it. The other imports ask the driver's library, told by this variable.
    sys.modules |= {"flashinfer": None, "quack": None}  # type: ignore[dict-item]
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import relax_lightning.lightning_cli
    import relax_lightning.rollout.embedded  # noqa: F401
    from relax_lightning.tracking.mlflow_run import set_environment

    set_environment()
    # A machine of GPUs alone may lack it, and a run without tracking does not need it.
    with suppress(ImportError):
        import mlflow.tracking  # noqa: F401

    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        num_ranks = request.pop("ranks", None)
        places = [{}] if num_ranks is None else _places(num_ranks)
        pids = [_fork(request, place) for place in places]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        status = statuses[0] if num_ranks is None else statuses
        print(json.dumps({"status": status, "ended": time.time()}), flush=True)


def _places(num_ranks: int) -> list[dict[str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


def _fork(request: dict, place: dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        os.environ |= place
        _run(**request)
    return pid


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
