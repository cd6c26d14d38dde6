"""What jsonargparse has to know before a LightningCLI is built, and what it says of a user's class, in one sentence."""

from __future__ import annotations

import re
from typing import Any

from jsonargparse import _loaders_dumpers, set_parsing_settings
from jsonargparse.typing import register_type

from relax_lightning.config.building import INVALID, Problems, build
from relax_lightning.config.faults import ConfigurationError
from relax_lightning.config.loader import to_dict
from relax_lightning.config.rollout import EngineConfig, PromptsConfig, RewardConfig, RolloutFunctionConfig
from relax_lightning.config.yaml_text import CoreLoader


def register_config_types() -> None:
    """Let jsonargparse read the dataclasses whose own keys are `class_path` and `init_args`.

    It would take the two for its own notation of a subclass. Call this before a parser is made, once.
    """
    # Text where a class wants a number is read as in a file of ours; `set_loader` would not reach whole numbers.
    _loaders_dumpers.yaml_default_loader = CoreLoader
    types = [EngineConfig, PromptsConfig, RewardConfig, RolloutFunctionConfig]
    # Only a type that is "enabled" here is left to its registered reader; else its fields become arguments.
    set_parsing_settings(subclasses_enabled=types)
    for config in types:
        register_type(config, serializer=to_dict, deserializer=_reader(config), fail_already_registered=False)


def refusal(message: str) -> str:
    """One sentence from jsonargparse's indented tree of all that it has tried: the way to its deepest fault."""
    way: list[tuple[int, str]] = []
    faults = [(-1, message)]
    for line in filter(None, message.splitlines()):
        text = line.strip(" -")
        indent = len(line) - len(line.lstrip(" -"))
        way = [(above, name) for above, name in way if above < indent]
        if place := _PLACE.fullmatch(text):
            way.append((indent, place[1] or place[2]))
        elif not _NO_FAULT.match(text):
            faults.append((indent, ": ".join([*(name for _, name in way), text])))
    _, deepest = max(faults, key=lambda fault: fault[0])
    return f"{' '.join(deepest.split()):.500}; correct its class_path or init_args"


_PLACE = re.compile(r"""Parser key "(.+)":|Problem with given class_path '(.+)':""")
_NO_FAULT = re.compile(
    "Does not validate|Subtypes:|Errors:|Subclass types|Given value|a class path|a dict with"
)


def _reader(config: type) -> Any:
    def read(tree: Any) -> Any:
        problems = Problems()
        built = build(config, tree, "", problems)
        if problems.found or built is INVALID:
            raise ConfigurationError(problems.lines())
        return built

    return read
