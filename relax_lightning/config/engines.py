"""Arguments of the engines that come with the package, so that a wrong one is found before anything is imported."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from relax_lightning.config.faults import Fault, fault, is_finite_number


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
            message = f"wanted an argument of {class_path}, got {name}: {value!r}; {change}"
            faults.append(Fault(f"init_args.{name}", message))
        elif not known[name][1](value) and not (value is None and name in _MAY_BE_NULL):
            message = fault(known[name][0], value, "change it or leave it out")
            faults.append(Fault(f"init_args.{name}", message))
    return faults
