"""Arguments of the engines that come with the package, so that a wrong one is found before anything is imported."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from relax_lightning.config.faults import Fault, fault, is_finite_number, show


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: Any) -> bool:
    return is_finite_number(value) and value > 0


def _is_fraction(value: Any) -> bool:
    return is_finite_number(value) and 0 < value < 1


_WHOLE = ("a whole number of at least 1", _is_whole)
_SECONDS = ("a number of seconds above 0", _is_positive)
_TEXT = ("text", lambda value: isinstance(value, str))
_Kind = tuple[str, Callable[[Any], bool]]

ENGINES = {
    "MegatronEngine": "relax_lightning.rollout.embedded.MegatronEngine",
    "SGLangEngine": "relax_lightning.rollout.sglang.engine.SGLangEngine",
}
"""The engines that a configuration can name, with their import paths."""

_ARGUMENTS: dict[str, dict[str, _Kind]] = {
    "MegatronEngine": {"max_batch_size": _WHOLE},
    "SGLangEngine": {
        "tensor_parallel_size": _WHOLE,
        "mem_fraction_static": ("a number above 0 and below 1", _is_fraction),
        "url": _TEXT,
        "api_key": _TEXT,
        "max_running_requests": _WHOLE,
        "timeout_seconds": _SECONDS,
        "startup_timeout_seconds": _SECONDS,
        "bucket_mib": _WHOLE,
        "seeded": ("true or false", lambda value: isinstance(value, bool)),
        "server_args": ("a mapping of SGLang's own arguments", lambda value: isinstance(value, dict)),
    },
}
SGLANG_DECIDED: dict[str, str | None] = {
    "tp_size": "tensor_parallel_size",
    "mem_fraction_static": "mem_fraction_static",
    "max_running_requests": "max_running_requests",
    "api_key": "api_key",
    **dict.fromkeys(
        ("model_path", "tokenizer_path", "load_format", "host", "port", "weight_version", "context_length")
    ),
}
"""Arguments of SGLang that SGLangEngine sets, with its own argument that says them, if there is one."""

_MAY_BE_NULL = ("mem_fraction_static", "url", "api_key", "max_running_requests", "server_args")


def engine_faults(class_path: str, init_args: dict[str, Any]) -> list[Fault]:
    """Unknown and impossible arguments of MegatronEngine and SGLangEngine; those of any other class are its own."""
    known = _ARGUMENTS.get(class_path)
    if known is None:
        return []
    faults = []
    for name, value in init_args.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            change = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
            message = f"wanted an argument of {class_path}, got {name}: {show(value)}; {change}"
            faults.append(Fault(f"init_args.{name}", message))
        elif not known[name][1](value) and not (value is None and name in _MAY_BE_NULL):
            message = fault(known[name][0], value, "change it or leave it out")
            faults.append(Fault(f"init_args.{name}", message))
    if class_path == "SGLangEngine" and not faults:
        faults += _server_faults(init_args)
    return faults


def server_argument_names() -> frozenset[str] | None:
    """The arguments of the installed SGLang, read without importing it; None where there is none."""
    package = importlib.util.find_spec("sglang")
    folders = None if package is None else package.submodule_search_locations
    path = Path(folders[0]) / "srt" / "server_args.py" if folders else None
    return None if path is None or not path.is_file() else _names_in(path)


@cache
def _names_in(path: Path) -> frozenset[str] | None:
    fields = path.read_text(encoding="utf-8").partition("\nclass ServerArgs")[2].partition("\n    def ")[0]
    return frozenset(re.findall(r"^    (\w+): ", fields, re.M)) or None


def _server_faults(init_args: dict[str, Any]) -> list[Fault]:
    given, known, faults = init_args.get("server_args") or {}, server_argument_names(), []
    for name, value in given.items():
        if name in SGLANG_DECIDED:
            own = SGLANG_DECIDED[name]
            change = f"use init_args.{own}" if own else "leave it out, the engine sets it"
            faults.append(Fault("init_args.server_args", fault(f"no {name}", value, change)))
        elif known is not None and name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            change = f"did you mean `{near[0]}`?" if near else "leave it out"
            faults.append(Fault("init_args.server_args", fault("an argument of SGLang", name, change)))
    beside = [
        name for name in ("mem_fraction_static", "max_running_requests") if init_args.get(name) is not None
    ]
    beside += ["tensor_parallel_size"] if init_args.get("tensor_parallel_size", 1) != 1 else []
    if init_args.get("url") is not None and (beside or given):
        got = ", ".join([*beside, *map(str, given)])
        message = f"wanted no arguments of a server beside it, got {got}; give them to the server"
        faults.append(Fault("init_args.url", message))
    return faults
