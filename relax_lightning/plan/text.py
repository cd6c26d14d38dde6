"""A plan as tables: rich ones on a terminal, aligned columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from relax_lightning.plan.footprint import GIB, MemoryPlan, PhaseMemory
from relax_lightning.plan.report import BatchPlan, PathPlan, PhasePlan, Placement, Plan
from relax_lightning.plan.schedule import RoleSchedule


@dataclass(frozen=True)
class Table:
    """One table of the plan."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def print_plan(plan: Plan) -> None:
    """Print every table of the plan."""
    for table in tables(plan):
        if sys.stdout.isatty():
            _print_rich(table)
        else:
            print(_plain(table))


def tables(plan: Plan) -> Iterator[Table]:
    """The tables, in the order a reader asks."""
    yield _placement(plan.placement)
    if plan.batch is not None:
        yield _batch(plan.batch)
    yield _rates(plan.learning_rates)
    yield _phases(plan.phases)
    yield _memory(plan.memory)
    yield _paths(plan.paths)


def _placement(placement: list[Placement]) -> Table:
    header = ("role", "where", "processes", "shares its GPUs with", "TP", "PP", "CP", "DP")
    rows = [(p.role, p.where, str(p.processes), ", ".join(p.shares) or "-", *_sizes(p)) for p in placement]
    return Table("roles", header, rows)


def _batch(batch: BatchPlan) -> Table:
    unknown = "not known: give data.rollout.train.max_prompt_tokens"
    longest = unknown if batch.longest_sample is None else f"{batch.longest_sample:,} tokens"
    packed = (
        "" if batch.tokens_per_microbatch is None else f" of at most {batch.tokens_per_microbatch:,} tokens"
    )
    count = batch.microbatches_per_step
    most = "at most " if batch.tokens_per_microbatch is not None else ""
    rows = [
        ("prompts", f"{batch.prompts:,}"),
        ("samples", f"{batch.samples:,}"),
        ("samples an optimizer step", f"{batch.samples_per_optimizer_step:,}"),
        *((f"optimizer steps, {role}", f"{steps:,}") for role, steps in batch.optimizer_steps.items()),
        ("micro-batches a step and rank", unknown if count is None else f"{most}{count:,}{packed}"),
        ("longest sample", longest),
        ("response tokens", f"at most {batch.most_response_tokens:,}"),
    ]
    return Table("one iteration", ("what", "how much"), rows)


def _rates(schedules: dict[str, RoleSchedule]) -> Table:
    marks = ("step 0", "step 1", "warm-up end", "last step")
    rows = [
        (role, *_counts(s), *("-" if mark not in s.rates else f"{s.rates[mark]:.3g}" for mark in marks))
        for role, s in schedules.items()
    ]
    return Table("learning rates", ("role", "iterations", "steps", "warm-up", *marks), rows)


def _phases(phases: list[PhasePlan]) -> Table:
    rows = [(p.phase, p.does, f"from iteration {p.from_iteration}") for p in phases]
    return Table("phases of an iteration", ("phase", "what happens", "when"), rows)


def _memory(memory: MemoryPlan | None) -> Table:
    if memory is None:
        note = (
            "unknown: the model's sizes are not known (no architecture, no config.json, not a published name)"
        )
        return Table("memory", (), [], note)
    header = (
        "GiB a GPU" if memory.on_gpu else "GiB a process",
        *memory.columns,
        "sum",
        "leaves the GPU",
    )
    rows = [
        (phase.phase, *_parts(phase, memory.columns), _gib(phase.total), ", ".join(phase.leaves) or "nothing")
        for phase in memory.phases
    ]
    host = ", ".join(f"{name} {_gib(size)}" for name, size in memory.host.items()) or "nothing"
    note = f"on the host: {host}; a checkpoint takes {_gib(memory.checkpoint)}; {memory.note}"
    return Table("memory", header, rows, note)


def _sizes(p: Placement) -> list[str]:
    return ["-" if size is None else str(size) for size in (p.tensor, p.pipeline, p.context, p.data)]


def _counts(s: RoleSchedule) -> list[str]:
    return [str(s.iterations), str(s.iterations * s.steps_per_iteration), str(s.warmup_steps)]


def _parts(phase: PhaseMemory, columns: list[str]) -> list[str]:
    return [_gib(phase.parts.get(name, 0)) for name in columns]


def _gib(size: int) -> str:
    return "-" if size == 0 else f"{size / GIB:.2f}" if size >= GIB / 100 else f"{size / 2**20:.1f} MiB"


def _paths(paths: PathPlan) -> Table:
    rows = [
        ("begins with", paths.begins),
        ("run folder", paths.run_folder),
        ("checkpoints, actor", paths.actor_checkpoints),
        ("checkpoints, critic", paths.critic_checkpoints),
        ("saved", paths.saves),
        ("tracking", paths.tracking),
    ]
    return Table("what is read and written", ("what", "where"), rows)


def _plain(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    lines = [table.title]
    for row in [table.header, *table.rows] if table.rows else []:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join([*lines, *([f"  {table.note}"] if table.note else []), ""])


def _print_rich(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    shown = RichTable(title=table.title, title_justify="left", title_style="bold", caption=table.note or None)
    for name in table.header:
        shown.add_column(name, overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown if table.rows else f"[bold]{table.title}[/bold]\n  {table.note}")
