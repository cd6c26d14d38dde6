"""YAML as everyone expects it: 1e-3 is a number, a date is text, and a key that is there twice is a fault."""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = "tag:yaml.org,2002:float"
# PyYAML follows YAML 1.1, where a float needs a dot; this is how everyone writes a learning rate.
_SCIENTIFIC = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$|^[-+]?[0-9][0-9_]*\.[0-9_]*[eE][0-9]+$")


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        assert node is not None
        # Later than here, `<<` has been replaced by keys that a mapping may well have twice.
        seen = set()
        for name in [name for name, _ in node.value if isinstance(name, yaml.ScalarNode)]:
            if name.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name.value} twice", problem_mark=name.start_mark
                )
            seen.add(name.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes text that the loader would read as a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT, _SCIENTIFIC, list("-+0123456789"))


def parse_yaml(text: str) -> Any:
    """What a YAML text holds.

    Raises:
        yaml.YAMLError: The text is no YAML.
    """
    return yaml.load(text, Loader=_Loader)


def dump_yaml(tree: Any) -> str:
    """Plain mappings, lists and scalars as YAML that `parse_yaml` reads back."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def dump_in_one_line(value: Any) -> str:
    """The same for a value that stands behind its key, on the same line."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=True
    )
    return text.removesuffix("...\n").rstrip("\n")
