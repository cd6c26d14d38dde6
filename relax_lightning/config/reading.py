"""Files, overrides and interpolations: from what a user writes to one plain tree."""

from __future__ import annotations

import copy
import os
import re
import typing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from relax_lightning.config.building import FromEnvironment, Problems
from relax_lightning.config.faults import show
from relax_lightning.config.sections import field_types
from relax_lightning.config.tree import Config
from relax_lightning.config.yaml_text import MOST_LEVELS, parse_yaml, yaml_fault

MOST_BYTES = 2**20
"""Of a file: prompts or weights that are given for one are not read to their end."""


def read_file(path: str, problems: Problems) -> dict[str, Any]:
    """The tree of one YAML file; an unreadable one is a problem and counts as empty."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        tree = None if len(text) > MOST_BYTES else parse_yaml(text)
    except FileNotFoundError:
        problems.add(path, "wanted a YAML file, got nothing at this path; change --config")
    except (OSError, ValueError) as error:
        problems.add(path, f"wanted a readable YAML file, got {_one_line(error)}; change --config")
    except yaml.YAMLError as error:
        problems.add(path, f"wanted YAML, got {yaml_fault(error)}; correct the file")
    else:
        if len(text) > MOST_BYTES:
            problems.add(path, "wanted a YAML file of at most 1 MiB, got a larger one; change --config")
        elif tree is None:
            return {}
        elif isinstance(tree, dict):
            return with_full_reward({str(name): value for name, value in tree.items()})
        else:
            problems.add(path, f"wanted a mapping of keys, got {type(tree).__name__}; correct the file")
    return {}


def read_override(text: str, problems: Problems) -> dict[str, Any]:
    """The tree of one `key=value`, leading dashes allowed.

    The value is YAML; where text is wanted it is the text as it was typed, save null and what begins with a quote or
    a bracket.
    """
    key, equals, value_text = text.lstrip("-").partition("=")
    if not equals:
        problems.add(key, f"wanted key=value, got {text!r}; add the value")
        return {}
    if key.count(".") >= MOST_LEVELS:
        problems.add(key[:40] + "...", f"wanted a key of at most {MOST_LEVELS} names, got more; correct it")
        return {}
    try:
        value = parse_yaml(value_text)
    except yaml.YAMLError as error:
        if not (_wants_text(key) and _is_bare(value_text) and _is_unicode(value_text)):
            problems.add(key, f"wanted YAML, got {show(value_text)} ({yaml_fault(error)}); correct the value")
            return {}
        value = value_text
    if _wants_text(key) and _is_bare(value_text):
        value = value_text
    tree: Any = value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    return with_full_reward(tree)


def _is_unicode(text: str) -> bool:
    # Bytes of a command line that are no UTF-8 come as halves of surrogate pairs.
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_bare(text: str) -> bool:
    return text.strip() not in ("", "~", "null", "Null", "NULL") and text.lstrip()[0] not in "\"'[{"


def merge(below: Any, above: Any) -> Any:
    """`above` laid over `below`: mappings join, everything else is replaced; digits reach into a list."""
    if isinstance(below, list) and _reaches_into(below, above):
        return [merge(value, above[str(n)]) if str(n) in above else value for n, value in enumerate(below)]
    if not isinstance(below, dict) or not isinstance(above, dict):
        return copy.deepcopy(above)
    merged = {
        name: copy.deepcopy(value) for name, value in below.items() if name not in _outdated(below, above)
    }
    for name, value in above.items():
        merged[name] = merge(merged.get(name), value)
    return merged


def interpolate(
    tree: dict[str, Any],
    defaults: dict[str, Any],
    problems: Problems,
    *,
    keep_missing_variables: bool = False,
) -> dict[str, Any]:
    """The tree with every `${...}` replaced; a key whose interpolation fails is a problem and is left out.

    Args:
        tree: what the user wrote, merged.
        defaults: the tree that an interpolation sees below the user's.
        problems: faults are added here.
        keep_missing_variables: an environment variable NAME that is not set, and has no default, reads as the
            text `${NAME}`; else it is a fault.
    """
    if not _interpolates(tree):
        return tree
    sound = _without(tree, lambda path, text: _has_grammar_fault(path, text, problems))
    root = OmegaConf.create(merge(defaults, _with_quoted_defaults(sound)))
    assert isinstance(root, DictConfig)
    return _replaced(sound, root, (), _Reading(problems, keep_missing_variables))


def _with_quoted_defaults(value: Any) -> Any:
    # OmegaConf would read 2024_01 as a number, and give its text, 202401; null alone means more than its letters.
    if isinstance(value, dict):
        return {name: _with_quoted_defaults(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_with_quoted_defaults(v) for v in value]
    return _BARE_DEFAULT.sub(r"\1'\2'", value) if isinstance(value, str) else value


_BARE_DEFAULT = re.compile(r"(?<!\\)(\$\{oc\.env:\s*\w+\s*,\s*)(?!null\s*\})(\w[\w.+-]*)(?=\s*\})", re.ASCII)


def _interpolates(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_interpolates, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and "${" in value


def with_full_reward(tree: dict[str, Any]) -> dict[str, Any]:
    """The same tree, a bare reward name written out as `{name: ...}`."""
    data = tree.get("data")
    rollout = data.get("rollout") if isinstance(data, dict) else None
    if isinstance(rollout, dict) and isinstance(rollout.get("reward"), str):
        rollout["reward"] = {"name": rollout["reward"]}
    return tree


def _reaches_into(below: list[Any], above: Any) -> bool:
    return (
        isinstance(above, dict)
        and bool(above)
        and all(k.isdigit() and int(k) < len(below) for k in map(str, above))
    )


def _outdated(below: dict[str, Any], above: dict[str, Any]) -> set[str]:
    # A file that names another class, reward or data file must not inherit the arguments of the one below.
    if above.get("class_path") is not None and above["class_path"] != below.get("class_path"):
        return {"init_args", "name", "path"}
    names_another = any(above.get(name) not in (None, below.get(name)) for name in ("name", "path"))
    return {"class_path", "init_args"} if names_another else set()


@dataclass(frozen=True)
class _Reading:
    problems: Problems
    keep_missing_variables: bool


def _replaced(value: Any, node: Any, path: tuple[Any, ...], reading: _Reading) -> Any:
    if isinstance(value, dict):
        items = {name: _replaced_at(name, v, node, (*path, name), reading) for name, v in value.items()}
        return {name: v for name, v in items.items() if v is not _BROKEN}
    if isinstance(value, list):
        return _whole([_replaced_at(n, v, node, (*path, n), reading) for n, v in enumerate(value)])
    return value


def _replaced_at(name: Any, value: Any, parent: Any, path: tuple[Any, ...], reading: _Reading) -> Any:
    if isinstance(value, dict | list):
        return _replaced(value, parent[name], path, reading)
    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        return _with_placeholders(parent, name) if reading.keep_missing_variables else _resolved(parent, name)
    except (OmegaConfBaseException, RecursionError) as error:
        reading.problems.add(_dotted(path), _interpolation_fault(value, error))
        return _BROKEN


_BROKEN: Any = object()


def _whole(items: list[Any]) -> Any:
    # Without one of its values the others would stand at other places.
    return _BROKEN if any(item is _BROKEN for item in items) else items


def _resolved(parent: Any, name: Any) -> Any:
    result = parent[name]
    if OmegaConf.is_config(result):
        return OmegaConf.to_container(result, resolve=True)
    return FromEnvironment(result) if isinstance(result, str) else result


def _with_placeholders(parent: Any, name: Any) -> Any:
    # OmegaConf alone knows where in a text a variable stands, so a missing one is set to its placeholder meanwhile.
    stand_ins: list[str] = []
    try:
        while True:
            try:
                return _resolved(parent, name)
            except OmegaConfBaseException as error:
                missing = _MISSING_VARIABLE.search(str(error))
                if missing is None or missing[1] in stand_ins:
                    raise
                stand_ins.append(missing[1])
                os.environ[missing[1]] = f"${{{missing[1]}}}"
    finally:
        for variable in stand_ins:
            del os.environ[variable]


_MISSING_VARIABLE = re.compile(r"Environment variable '(.+?)' not found")


def _interpolation_fault(text: str, error: BaseException) -> str:
    missing = _MISSING_VARIABLE.search(str(error))
    if missing:
        name = missing[1]
        change = f"export {name}=... or write ${{oc.env:{name},DEFAULT}}"
        return f"wanted the environment variable {name}, got none; {change}"
    if isinstance(error, RecursionError):
        return f"wanted a value, got {show(text)}, which refers to itself; change it"
    return f"wanted something that {show(text)} can refer to, got: {_one_line(error)}; change it"


def _has_grammar_fault(path: tuple[Any, ...], text: str, problems: Problems) -> bool:
    try:
        OmegaConf.create({"value": text})
    except (OmegaConfBaseException, RecursionError) as error:
        problems.add(
            _dotted(path),
            f"wanted ${{key}} or ${{oc.env:NAME}}, got {show(text)} ({_one_line(error)}); change it",
        )
        return True
    return False


def _without(
    value: Any, refuse: typing.Callable[[tuple[Any, ...], str], bool], path: tuple[Any, ...] = ()
) -> Any:
    if isinstance(value, dict):
        items = {name: _without(v, refuse, (*path, name)) for name, v in value.items()}
        return {name: v for name, v in items.items() if v is not _BROKEN}
    if isinstance(value, list):
        return _whole([_without(v, refuse, (*path, n)) for n, v in enumerate(value)])
    return _BROKEN if isinstance(value, str) and "${" in value and refuse(path, value) else value


def _wants_text(key: str) -> bool:
    kind: Any = Config
    for name in key.split("."):
        members = [kind, *typing.get_args(kind)]
        sections = [m for m in members if isinstance(m, type) and is_dataclass(m)]
        if typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        elif sections and name in {f.name for f in fields(sections[0])}:
            kind = field_types(sections[0])[name]
        else:
            return False
    members = {kind, *typing.get_args(kind)}
    return str in members and not members & {int, float, bool} and typing.get_origin(kind) not in (dict, list)


def _one_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
