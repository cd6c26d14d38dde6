"""PPO with a real critic for large language models, on Lightning's own Trainer.

What users import stands here, and is loaded when it is asked for: `from relax_lightning import PPOCallback, Rollouts`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_lightning.ppo.batch import Experience, Prompts, Rollouts
    from relax_lightning.ppo.callback import PPOCallback
    from relax_lightning.rollout.turns import RolloutFunction, Sample

__version__ = "0.1.0"
__all__ = ["Experience", "PPOCallback", "Prompts", "RolloutFunction", "Rollouts", "Sample"]

_HOMES = {
    "Experience": "ppo.batch",
    "PPOCallback": "ppo.callback",
    "Prompts": "ppo.batch",
    "RolloutFunction": "rollout.turns",
    "Rollouts": "ppo.batch",
    "Sample": "rollout.turns",
}
_MOVED = {
    "relax_lightning.batch": "relax_lightning.ppo.batch",
    "relax_lightning.callback": "relax_lightning.ppo.callback",
    "relax_lightning.rollout.megatron_engine": "relax_lightning.rollout.embedded",
    "relax_lightning.rollout.sglang_engine": "relax_lightning.rollout.sglang.engine",
}
"""Modules by the names that users' code and files may know them by."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _Moved(MetaPathFinder, Loader):
    """Imports a module by its old name; it is the same object."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in _MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # What imports it under the old name has put the old name there.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_Moved())
