"""Finding what a `class_path` names."""

from __future__ import annotations

import importlib
from typing import Any


def import_object(class_path: str) -> Any:
    """The class or function that a dotted path names, such as `my_rewards.Length`.

    Args:
        class_path: A module's import path, a dot, and a name in it.

    Raises:
        ValueError: There is no such module, no such name in it, or the module fails while it is imported.
    """
    module_path, _, name = class_path.rpartition(".")
    if not module_path:
        raise ValueError(
            f"class_path wants `module.name`, got {class_path!r}; put the module's name before it"
        )
    try:
        module = importlib.import_module(module_path)
    except Exception as error:
        raise ValueError(
            f"class_path {class_path!r} cannot be imported: {type(error).__name__}: {error}; "
            "modules are looked for in the working directory and on PYTHONPATH"
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"class_path {class_path!r}: {module_path} ({module.__file__}) has no {name!r}")
    return getattr(module, name)
