"""YAML 1.2 with its core schema: 010 is ten, yes and 1:00 are text, 1e-3 is a number, a key twice is a fault."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

MOST_LEVELS = 50
"""A mapping in a mapping is two; what reads a tree calls itself once a level."""
MOST_VALUES = 20_000
"""Every key and value, those that an alias repeats included."""
MOST_DIGITS = 300
"""Of a whole number: more would be no floating-point number."""

_PREFIX = "tag:yaml.org,2002:"
# YAML 1.2.2, section 10.3.2; and `<<` of 1.1, which everyone knows.
_CORE = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
    "merge": r"<<",
}
_KEPT = ("null", "bool", "int", "float", "str", "seq", "map")


class CoreLoader(yaml.SafeLoader):
    """Reads the core schema, and no more levels and values than a configuration has."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - of PyYAML's own class
        None: [(_PREFIX + kind, re.compile(rf"(?:{pattern})\Z")) for kind, pattern in _CORE.items()]
    }

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._depth = self._num_values = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node, counted with all that an alias repeats."""
        event, before = self.peek_event(), self._num_values
        self._depth, self._num_values = self._depth + 1, before + 1
        if self._depth > MOST_LEVELS:
            raise _fault(f"more than {MOST_LEVELS} levels of nesting", event.start_mark)
        node = super().compose_node(parent, index)
        assert node is not None
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._sizes[node] = self._num_values - before
        elif node not in self._sizes:
            raise _fault(f"*{event.anchor} inside of what it stands for", event.start_mark)
        else:
            self._num_values += self._sizes[node]
        if self._num_values > MOST_VALUES:
            raise _fault(f"more than {MOST_VALUES} values", event.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping whose keys are text or whole numbers, each there once."""
        node = super().compose_mapping_node(anchor)
        assert node is not None
        # Later than here, `<<` has been replaced by keys that a mapping may well have twice.
        seen = set()
        for name, _ in node.value:
            if name.tag.removeprefix(_PREFIX) not in ("str", "int", "merge"):
                got = name.value if isinstance(name, yaml.ScalarNode) else "of several values"
                raise _fault(f"the key {got or 'null'}, which is no text: put it in quotes", name.start_mark)
            text = name.value if name.tag.endswith(":merge") else str(self.construct_object(name))
            if text in seen:
                raise _fault(f"the key {name.value} twice", name.start_mark)
            seen.add(text)
        return node

    def construct_yaml_str(self, node: Any) -> str:
        """Text that can be written as UTF-8, and be part of a path."""
        text = super().construct_yaml_str(node)
        if "\0" in text:
            raise _fault("a NUL character, which no path or name can have", node.start_mark)
        try:
            # As in JSON, a character may be written as the two halves of a pair.
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise _fault("half of a surrogate pair, which is no character", node.start_mark) from error

    def construct_yaml_bool(self, node: Any) -> bool:
        """True or false, in the three spellings of 1.2."""
        return self._scalar(node, "bool").lower() == "true"

    def construct_yaml_int(self, node: Any) -> int:
        """Decimal digits, 0o17 or 0x1F."""
        text = self._scalar(node, "int")
        if len(text) > MOST_DIGITS:
            raise _fault(f"a number of {len(text)} digits", node.start_mark)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    def construct_yaml_float(self, node: Any) -> float:
        """A number, `.inf` or `.nan`."""
        text = self._scalar(node, "float")
        value = float(text.replace(".", "", 1) if text[-1] in "fFnN" else text)
        if math.isinf(value) and text[-1] not in "fF":
            raise _fault(f"{text}, which is larger than any number", node.start_mark)
        return value

    def _scalar(self, node: Any, kind: str) -> str:
        text = self.construct_scalar(node)
        assert isinstance(text, str)
        if not re.fullmatch(_CORE[kind], text):
            raise _fault(f"{text!r:.80} as !!{kind}", node.start_mark)
        return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that a reader of YAML 1.1 or 1.2 would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


CoreLoader.yaml_constructors = {
    _PREFIX + kind: getattr(CoreLoader, f"construct_yaml_{kind}") for kind in _KEPT
} | {None: yaml.SafeLoader.construct_undefined}
for _kind, _pattern in _CORE.items():
    _Dumper.add_implicit_resolver(_PREFIX + _kind, re.compile(rf"(?:{_pattern})\Z"), None)


def parse_yaml(text: str | bytes) -> Any:
    """What a YAML text holds; bytes are UTF-8, or UTF-16 with its mark.

    Raises:
        yaml.YAMLError: The text is no YAML, or not within the bounds above.
    """
    loader = CoreLoader(text)
    try:
        return loader.get_single_data()
    except (ValueError, OverflowError) as error:
        # PyYAML lets pass what `chr` says of an escape such as "\U00110000".
        raise _fault(f"an escape that is no character ({error})", loader.get_mark()) from error
    finally:
        loader.dispose()


def dump_yaml(tree: Any) -> str:
    """Plain mappings, lists and scalars as YAML that `parse_yaml` reads back."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def dump_in_one_line(value: Any) -> str:
    """The same for a value that stands behind its key, on the same line."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=True
    )
    return text.removesuffix("...\n").rstrip("\n")


def yaml_fault(error: yaml.YAMLError) -> str:
    """What is wrong with a text, in one line that begins with its place."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    if isinstance(error, yaml.reader.ReaderError):
        return f"{str(error).splitlines()[0]}, at position {error.position}"
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    context = getattr(error, "context", None) if problem.startswith("but ") else None
    return where + (f"{context}, {problem}" if context else problem)


def _fault(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
