"""Where the code reads a key: found in the sources of this installation, by the types that they declare."""

from __future__ import annotations

import ast
import typing
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from relax_lightning.config import callbacks
from relax_lightning.config.optimizer import CriticOptimizerConfig, OptimizerConfig
from relax_lightning.config.sections import Entry, field_types, sections, union_members
from relax_lightning.config.trainer import TrainerConfig

HANDED_ON = {
    TrainerConfig: "Lightning's Trainer",
    callbacks.CriticOnlyWarmupConfig: "callbacks/critic_warmup.py: CriticOnlyWarmup",
    callbacks.LRWarmupConfig: "callbacks/lr_warmup.py: LRWarmup",
    callbacks.CheckpointConfig: "callbacks/checkpoint.py: PairedCheckpoint",
    callbacks.MetricsConfig: "callbacks/metrics.py: MetricLogger",
    callbacks.CurvesConfig: "callbacks/curves.py: CurvePlot",
    callbacks.TimelineConfig: "callbacks/timeline.py: PhaseTimeline",
    callbacks.HealthCheckConfig: "callbacks/health_check.py: HealthCheck",
}
"""Sections whose keys are the arguments of a class, so that no code reads them one by one."""

KEPT_BACK = ("enable_progress_bar", "val_before_training")
"""Keys of these that are not handed on."""

_ROOT = Path(__file__).resolve().parents[2]
_ONLY_CHECKS = ("plan/", "cli.py", "config/loader.py")


def readers_of(entry: Entry) -> list[str]:
    """The functions and classes that act on a key, as `file: name`; checks, and what fills a null, are left out."""
    handed = HANDED_ON.get(entry.section or entry.config)
    found = [] if handed is None or entry.name in KEPT_BACK else [handed]
    if entry.section is not None:
        return found
    # The critic's optimizer is filled from the actor's, and then is one like it.
    config = OptimizerConfig if entry.config is CriticOptimizerConfig else entry.config
    return found + sorted(_all_reads().get((config, entry.name), set()))


@cache
def _all_reads() -> dict[tuple[type, str], set[str]]:
    found: dict[tuple[type, str], set[str]] = {}
    skipped = tuple(f"relax_lightning/{name}" for name in _ONLY_CHECKS)
    for folder in ("relax_lightning", "callbacks"):
        for file in sorted((_ROOT / folder).rglob("*.py")):
            if file.relative_to(_ROOT).as_posix().startswith(skipped):
                continue
            text = file.read_text(encoding="utf-8")
            if "relax_lightning.config" in text or "relax_lightning import config" in text:
                _Reads(str(file.relative_to(_ROOT)), found).visit(ast.parse(text))
    return found


class _Reads(ast.NodeVisitor):
    """Adds the reads of one file. It follows annotations, assignments and attributes, and guesses nothing."""

    def __init__(self, file: str, found: dict[tuple[type, str], set[str]]) -> None:
        self._file = file
        self._found = found
        self._scope: list[str] = []
        self._imported: dict[str, type] = {}
        self._names: dict[str, Any] = {}
        self._own: dict[str, Any] = {}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Note which names are dataclasses of the configuration."""
        ours = {section.config.__name__: section.config for section in sections()}
        for alias in node.names:
            name = alias.asname or alias.name
            if (node.module, alias.name) == ("relax_lightning", "config"):
                self._imported |= {f"{name}.{config}": ours[config] for config in ours}
            elif alias.name in ours and (node.module or "").startswith("relax_lightning.config"):
                self._imported[name] = ours[alias.name]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A method may use what a later one assigns to `self`: go through the class twice."""
        self._own = {}
        for statement in node.body * 2:
            self._visit_inside(node.name, statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Arguments are what they are declared to be; of what a loop runs over, nothing is known."""
        if node.name.endswith("_problems"):
            return
        names = dict(self._names)
        for argument in (*node.args.args, *node.args.kwonlyargs):
            self._names[argument.arg] = self._declared(argument.annotation)
        loops = [n for n in ast.walk(node) if isinstance(n, ast.For | ast.comprehension)]
        for variable in [n for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)]:
            self._names[variable.id] = None
        for statement in node.body:
            self._visit_inside(node.name, statement)
        self._names = names

    def visit_Assign(self, node: ast.Assign) -> None:
        """What is assigned keeps its type."""
        self.generic_visit(node)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A read, where the type on the left is ours."""
        self.generic_visit(node)
        config = self._kind_of(node.value)
        if isinstance(config, type) and node.attr in field_types(config):
            self._record(config, node.attr)

    def visit_Call(self, node: ast.Call) -> None:
        """`fields(config)` is for reading them all."""
        self.generic_visit(node)
        config = self._kind_of(node.args[0]) if _dotted(node.func) == "fields" else None
        for name in field_types(config) if isinstance(config, type) else ():
            self._record(config, name)

    def _visit_inside(self, scope: str, statement: ast.stmt) -> None:
        self._scope.append(scope)
        self.visit(statement)
        self._scope.pop()

    def _record(self, config: Any, name: str) -> None:
        self._found.setdefault((config, name), set()).add(f"{self._file}: {'.'.join(self._scope)}")

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its_value in zip(target.elts, value.elts, strict=False):
                self._bind(one, its_value)
        elif isinstance(target, ast.Name):
            self._names[target.id] = self._kind_of(value)
        elif isinstance(target, ast.Attribute) and _dotted(target.value) == "self":
            self._own[target.attr] = self._kind_of(value)

    def _declared(self, annotation: ast.expr | None) -> type | None:
        """The dataclass that an annotation names, alone or beside None."""
        if isinstance(annotation, ast.BinOp):
            return self._declared(annotation.left) or self._declared(annotation.right)
        return self._imported.get(_dotted(annotation))

    def _kind_of(self, node: ast.expr) -> Any:
        """The dataclass that an expression has, a mapping of them, or None where that is not known."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Call):
            return self._imported.get(_dotted(node.func))
        if isinstance(node, ast.BoolOp):
            return next((kind for value in node.values if (kind := self._kind_of(value))), None)
        if isinstance(node, ast.Subscript):
            mapping = self._kind_of(node.value)
            return typing.get_args(mapping)[1] if typing.get_origin(mapping) is dict else None
        if isinstance(node, ast.Attribute):
            return self._kind_of_attribute(node)
        return None

    def _kind_of_attribute(self, node: ast.Attribute) -> Any:
        if _dotted(node.value) == "self":
            return self._own.get(node.attr)
        config = self._kind_of(node.value)
        kind = field_types(config).get(node.attr) if isinstance(config, type) else None
        return next((k for k in union_members(kind) if is_dataclass(k) or typing.get_origin(k) is dict), None)


def _dotted(node: ast.expr | None) -> str:
    """The text of a name or of attributes of a name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
