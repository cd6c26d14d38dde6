"""What a configuration may say but this version cannot run: `fit` refuses it, `plan` only warns."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Literal

from relax_lightning.config.bridge import chosen_bridge, missing_packages
from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.tree import Config
from relax_lightning.plan.topology import TRAINED, parallel_of

_LATER = "not available in this version"


def unavailable_problems(config: Config, severity: Literal["error", "warning"]) -> list[Problem]:
    """Each key of a resolved configuration that asks for what is not built yet."""
    found = [*_of_model(config), *_of_processes(config)]
    return [Problem(key, message, severity) for key, message in found]


def _of_model(config: Config) -> Iterator[tuple[str, str]]:
    if chosen_bridge(config.model) == "megatron_bridge" and not missing_packages():
        message = fault("builtin", "megatron_bridge", f"training what it loads is {_LATER}")
        yield "model.bridge", message


def _of_processes(config: Config) -> Iterator[tuple[str, str]]:
    for role in TRAINED:
        size = parallel_of(config, role).context
        if size > 1:
            needs = f"cutting sequences needs Transformer Engine's attention and is {_LATER}"
            yield f"model.{role}.parallel.context", fault("1", size, f"{needs}: leave it out")
    missing = [name for name in ("ray", "transfer_queue") if importlib.util.find_spec(name) is None]
    if config.cluster is not None and missing:
        wanted, change = "the packages of the extra ray", "pip install 'relax-lightning[ray]'"
        yield "cluster", f"wanted {wanted} for it, {' and '.join(missing)} cannot be found; {change}"
