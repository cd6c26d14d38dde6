"""A JSON Schema of configuration files, made from the dataclasses, so that an editor completes and checks them."""

from __future__ import annotations

import typing
from dataclasses import MISSING, is_dataclass
from typing import Any

from relax_lightning.config.loader import REQUIRED, to_dict
from relax_lightning.config.rollout import RewardConfig
from relax_lightning.config.sections import Entry, Section, sections, union_members
from relax_lightning.config.tree import Config

_INTERPOLATION = r"\$\{"
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}


def json_schema() -> dict[str, Any]:
    """The schema of one file, in the 2020-12 draft of JSON Schema.

    No key is required, for a file may be one of several. Where something else than text is wanted, text passes that
    holds an interpolation. Checks that look at several keys are left to the loader.
    """
    definitions = {s.config.__name__: _section(s) for s in sections() if s.same_as is None}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of relax-lightning",
        **definitions.pop(Config.__name__),
        "type": ["object", "null"],
        "$defs": definitions,
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "description": section.config.__doc__,
        # An empty section is null in YAML. A reward may be a bare name, so any text passes there.
        "type": ["object", "null", "string"],
        **({} if section.config is RewardConfig else {"pattern": _INTERPOLATION}),
        "properties": {entry.name: _property(entry) for entry in section.entries},
        "additionalProperties": False,
    }


def _property(entry: Entry) -> dict[str, Any]:
    described: dict[str, Any] = {"description": entry.meaning}
    has_default = entry.default is not MISSING and entry.key not in REQUIRED
    if has_default and (entry.section is None or entry.default is None):
        described["default"] = to_dict(entry.default)
    limits = entry.rule.schema if entry.rule is not None else {}
    return described | _of_kind(entry.kind, limits)


def _of_kind(kind: Any, limits: dict[str, Any]) -> dict[str, Any]:
    """What a type lets pass. Every keyword but `type` and `enum` binds values of its own type alone."""
    schema: dict[str, Any] = {"type": []}
    for member in union_members(kind):
        if is_dataclass(member):
            return {"$ref": f"#/$defs/{typing.cast(type, member).__name__}"}
        if member is Any:
            return {}
        schema["type"].append(_TYPES.get(member) or _container(member, schema))
    if "enum" in limits:
        words = limits["enum"] + ([None] if "null" in schema["type"] else [])
        return {"anyOf": [{"enum": words}, {"type": "string", "pattern": _INTERPOLATION}]}
    if "string" not in schema["type"]:
        schema |= {"type": [*schema["type"], "string"], "pattern": _INTERPOLATION}
    return schema | limits


def _container(kind: Any, schema: dict[str, Any]) -> str:
    """Name of a list's or mapping's type; what it holds goes into `schema`."""
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is dict:
        schema["additionalProperties"] = _of_kind(inner[1], {})
        return "object"
    schema["items"] = _of_kind(inner[0], {})
    if typing.get_origin(kind) is tuple:
        schema |= {"minItems": len(inner), "maxItems": len(inner)}
    return "array"
