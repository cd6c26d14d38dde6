"""Share of an iteration that is neither generation nor forward and backward passes.

    python scripts/bench/iteration.py --config configs/digits-cpu.yaml --trainer.max_steps 40

Runs `fit` as the command does, without MLflow, and clocks the engine's `generate` and the roles' passes and steps.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from relax_lightning.cli import parse
from relax_lightning.config import load, resolve
from relax_lightning.lightning_cli import run
from relax_lightning.megatron.role import MegatronRole
from relax_lightning.ppo.module import PPOModule
from relax_lightning.rollout.embedded import MegatronEngine

WARM_UP = 5
"""First iterations that are not counted."""


class Clock:
    """Adds up the time spent in methods, iteration by iteration."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = defaultdict(float)
        self.iterations: list[dict[str, float]] = []

    def wrap(self, owner: type, method: str, name: str) -> None:
        """Clock every call of a method."""
        original: Callable[..., Any] = getattr(owner, method)

        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._spent[name] += time.perf_counter() - start
                if name == "iteration":
                    self.iterations.append(dict(self._spent))
                    self._spent.clear()

        setattr(owner, method, clocked)


def main() -> None:
    """Run and print a table."""
    clock = Clock()
    clock.wrap(MegatronEngine, "generate", "generation")
    clock.wrap(MegatronRole, "update", "forward, backward, optimizer")
    clock.wrap(MegatronRole, "evaluate", "values")
    clock.wrap(PPOModule, "training_step", "iteration")
    arguments = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*arguments.overrides, f"trainer.default_root_dir={folder}", "tracking.mlflow=null"]
        run("fit", resolve(load(arguments.config_files, overrides)), None)
    counted = clock.iterations[WARM_UP:]
    whole = statistics.median(i["iteration"] for i in counted)
    print("\n| part | seconds an iteration (median) | share |\n|---|---|---|")
    for name in ("generation", "values", "forward, backward, optimizer"):
        part = statistics.median(i.get(name, 0.0) for i in counted)
        print(f"| {name} | {part:.3f} | {part / whole:.1%} |")
    rest = statistics.median(2 * i["iteration"] - sum(i.values()) for i in counted)
    print(f"| everything else | {rest:.3f} | {rest / whole:.1%} |\n| whole | {whole:.3f} | |")


if __name__ == "__main__":
    main()
