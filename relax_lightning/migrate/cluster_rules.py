"""Rules of the flags that place roles on GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from relax_lightning.config.cluster import ROLES
from relax_lightning.migrate.flag_words import Flag
from relax_lightning.migrate.rules import (
    CannotTranslate,
    Flags,
    LeftOut,
    NotTranslated,
    Outcome,
    Setting,
    text_value,
)
from relax_lightning.migrate.shell_text import literal

_SIZES = ("--actor-num-nodes", "--actor-num-gpus-per-node")


def resource(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """Replicas and GPUs of every role; a role that does not exist here is named."""
    shapes = _read_shapes(flag)
    yield Setting("cluster.resources", {role: shape for role, shape in shapes.items() if role in ROLES})
    for role in [role for role in shapes if role not in ROLES]:
        yield NotTranslated(f"there is no role {role} here: only {', '.join(ROLES)}")


def actor_size(flag: Flag, flags: Flags) -> Iterator[Outcome]:
    """The older way to size the actor, from which the other roles follow in a colocated run."""
    if "--resource" in flags:
        yield LeftOut("--resource says it")
    elif flag.name == next(name for name in _SIZES if name in flags):
        nodes, gpus = (
            flags.whole_number(name, otherwise) for name, otherwise in zip(_SIZES, (1, 8), strict=True)
        )
        if not nodes or not gpus:
            raise CannotTranslate("wanted numbers of nodes and GPUs; set cluster.resources by hand")
        shape = [1, nodes * gpus]
        origin = " ".join(str(flags.by_name[name]) for name in _SIZES if name in flags)
        resources = {"actor": shape, "critic": shape, "rollout": shape, "advantages": [1, 0]}
        yield Setting("cluster.resources", resources, f"{origin}; all GPUs are shared")


def _read_shapes(flag: Flag) -> dict[str, Any]:
    written = text_value(flag)
    try:
        shapes = json.loads(literal(flag.values[0]) or "")
    except ValueError:
        raise CannotTranslate(f"wanted JSON, got {written}; set cluster.resources by hand") from None
    if not isinstance(shapes, dict):
        raise CannotTranslate(f"wanted a mapping of roles, got {written}; set cluster.resources by hand")
    return shapes
