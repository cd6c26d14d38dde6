"""What a configuration may ask for but `fit` cannot run here; of a plan for another machine only a warning."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from relax_lightning.config.architecture import MODEL_CLASSES
from relax_lightning.config.bridge import chosen_bridge, missing_packages
from relax_lightning.config.faults import Problem, fault
from relax_lightning.config.tree import Config
from relax_lightning.plan.memory import HybridArchitecture, architecture_of
from relax_lightning.plan.topology import TRAINED, parallel_of

_LATER = "not available in this version"


def unavailable_problems(config: Config, *, elsewhere: bool) -> list[Problem]:
    """Each key of a resolved configuration that asks for what is not built yet, or not installed.

    Args:
        config: resolved.
        elsewhere: whether it is planned for another machine, with other files and packages.
    """
    found = [*_of_model(config), *_of_processes(config), *_of_engine(config)]
    if elsewhere:
        found += _of_published(config)
    return [Problem(key, message, "warning" if elsewhere else "error") for key, message in found]


def _of_model(config: Config) -> Iterator[tuple[str, str]]:
    if chosen_bridge(config.model) == "megatron_bridge" and not missing_packages():
        message = fault("builtin", "megatron_bridge", f"training what it loads is {_LATER}")
        yield "model.bridge", message


def _of_published(config: Config) -> Iterator[tuple[str, str]]:
    known = architecture_of(config, check_files=False)
    if known is not None and isinstance(known.architecture, HybridArchitecture):
        families = ", ".join(MODEL_CLASSES)
        change = f"training its family is {_LATER}, and fit refuses it; use another model to train"
        yield (
            "model.actor.hf_checkpoint",
            fault(f"a model of {families}", config.model.actor.hf_checkpoint, change),
        )


def _of_engine(config: Config) -> Iterator[tuple[str, str]]:
    engine = config.data.rollout.engine
    is_started = engine.class_path == "SGLangEngine" and engine.init_args.get("url") is None
    if is_started and importlib.util.find_spec("sglang") is None:
        change = "install relax-lightning[sglang], or give the url of a running server"
        yield (
            "data.rollout.engine.class_path",
            f"wanted the package sglang for SGLangEngine, got none; {change}",
        )


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
