"""The program of a server that we start: SGLang's own, and the end of it when we end.

It is a process of its own because SGLang, run inside ours, takes over SIGTERM and SIGQUIT and at its end kills every
child of the process it runs in.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import signal
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

from relax_lightning.run.rendezvous import talk_on_loopback

_PR_SET_PDEATHSIG = 1
_HOST_PID = "RELAX_LIGHTNING_SGLANG_HOST"


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, however that ends (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def skip_other_models(model_path: str) -> None:
    """Keep SGLang from importing its 200 models, of which one is needed; before SGLang is imported."""
    kind = json.loads((Path(model_path) / "config.json").read_text())["model_type"]
    package = importlib.util.find_spec("sglang")
    assert package is not None and package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0]) / "srt" / "models"
    names = {path.stem for path in folder.glob("*.py")}
    if kind in names:
        os.environ["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(sorted(names - {kind}))


def main() -> None:
    """Serve what standard input describes: `parent`, `defaults`, `chosen`, `absent` and `seeded`."""
    request = json.load(sys.stdin)
    end_with(request["parent"])
    os.environ[_HOST_PID] = str(os.getpid())
    talk_on_loopback()
    skip_other_models(request["defaults"]["model_path"])
    # What is imported stays: looking for garbage in it takes a quarter of the time.
    gc.disable()
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import ServerArgs

    from relax_lightning.rollout.sglang.arguments import known_arguments
    from relax_lightning.rollout.sglang.scheduler import run_scheduler

    gc.freeze()
    gc.enable()
    known = [field.name for field in fields(ServerArgs)]
    arguments = known_arguments(request["defaults"], request["chosen"], known)
    scheduler = partial(run_scheduler, absent=request["absent"], seeded=request["seeded"])
    launch_server(ServerArgs(**arguments), run_scheduler_process_func=scheduler)


if __name__ == "__mp_main__":
    # A process that SGLang spawns: by itself it would begin to look after its parent when all is imported.
    end_with(int(os.environ[_HOST_PID]))

if __name__ == "__main__":
    main()
