"""What jsonargparse has to know of the dataclasses before a LightningCLI is built."""

from __future__ import annotations

from typing import Any

from jsonargparse import set_parsing_settings
from jsonargparse.typing import register_type

from relax_lightning.config.building import INVALID, Problems, build
from relax_lightning.config.faults import ConfigurationError
from relax_lightning.config.loader import to_dict
from relax_lightning.config.rollout import EngineConfig, PromptsConfig, RewardConfig, RolloutFunctionConfig


def register_config_types() -> None:
    """Let jsonargparse read the dataclasses whose own keys are `class_path` and `init_args`.

    It would take the two for its own notation of a subclass. Call this before a parser is made, once.
    """
    types = [EngineConfig, PromptsConfig, RewardConfig, RolloutFunctionConfig]
    # Only a type that is "enabled" here is left to its registered reader; else its fields become arguments.
    set_parsing_settings(subclasses_enabled=types)
    for config in types:
        register_type(config, serializer=to_dict, deserializer=_reader(config), fail_already_registered=False)


def _reader(config: type) -> Any:
    def read(tree: Any) -> Any:
        problems = Problems()
        built = build(config, tree, "", problems)
        if problems.found or built is INVALID:
            raise ConfigurationError(problems.lines())
        return built

    return read
