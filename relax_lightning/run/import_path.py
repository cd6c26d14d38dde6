"""Objects named by import path, such as a user's own reward, prompts, engine or tokenizer."""

from __future__ import annotations

import importlib
from typing import Any


def import_object(key: str, path: str) -> Any:
    """The class or function that `path` names, such as `my_rewards.Length`.

    Args:
        key: The configuration key that names it, for the message.
        path: Dotted path; the last part is an attribute of the module before it.

    Raises:
        ValueError: The module cannot be imported or has no such attribute; says which.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ValueError(f"{key}: wanted an import path like my_module.{path or 'MyClass'}, got {path!r}")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split()):.400}"
        raise ValueError(
            f"{key}: {module_name} (of {path}) could not be imported: {reason}; the working "
            "directory, PYTHONPATH (of `ray start`, on a cluster that is joined) and the installed packages are on the "
            "import path"
        ) from error
    if not hasattr(module, name):
        raise ValueError(
            f"{key}: {module_name} ({getattr(module, '__file__', None)}) has no {name}; check {path}"
        )
    return getattr(module, name)
