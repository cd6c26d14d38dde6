"""The live table of a run on a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relax_lightning.tracking.fields import (
    ACTOR,
    CRITIC,
    ROLLOUT,
    SPEED,
    ShownMetric,
    duration_text,
    validation_text,
)
from relax_lightning.tracking.progress import LineProgress, Progress, TimeLeft, iteration_text

_LOGGERS = ("", "lightning", "lightning.pytorch", "lightning.fabric", "lightning_utilities")


class LiveProgress(Progress):
    """A panel that stays at the bottom of the terminal while what a run prints scrolls above it.

    Args:
        console: Where to draw; None is the terminal.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live: Live | None = None
        self._handlers: list[tuple[logging.StreamHandler, object]] = []
        self._left = TimeLeft()
        self._max: int | None = None
        self._iteration = 0
        self._metrics: Mapping[str, float] = {}
        self._validation = ""
        self._phase: tuple[str, float] | None = None
        self._is_done = False

    def start(self, first_iteration: int, max_iterations: int | None) -> None:
        """Draw the panel, and send prints and log lines above it."""
        self.stop()
        self._max, self._iteration, self._is_done = max_iterations, first_iteration - 1, False
        self._left.start(first_iteration, max_iterations)
        streams = (sys.stdout, sys.stderr)
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)
        self._live.start()
        self._redirect_log_handlers(streams)

    def phase(self, name: str | None) -> None:
        """Name the phase and count its seconds from now."""
        self._phase = None if name is None else (name, time.monotonic())

    def iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Show the iteration's numbers."""
        self._left.tick(iteration)
        self._iteration, self._metrics, self._phase = iteration, dict(metrics), None

    def validation(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Show the validation's numbers."""
        self._validation = f"{validation_text(metrics)}  (iteration {iteration})"

    def stop(self) -> None:
        """Draw a last time and give the terminal back."""
        if self._live is None:
            return
        live, self._live = self._live, None
        self._phase, self._is_done = None, True
        for handler, stream in self._handlers:
            handler.setStream(stream)  # pyright: ignore[reportArgumentType]
        self._handlers.clear()
        live.stop()

    def _redirect_log_handlers(self, streams: Sequence[object]) -> None:
        # A handler keeps the stream it was made with, which would write through the panel.
        for name in _LOGGERS:
            for handler in logging.getLogger(name).handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream in streams:
                    self._handlers.append((handler, handler.stream))
                    handler.setStream(sys.stderr)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._header()]
        if self._max is not None:
            # The bar ends no line of its own; the padding does.
            parts.append(Padding(ProgressBar(total=self._max, completed=self._iteration), (0, 0, 1, 0)))
        groups = (("rollout", (*ROLLOUT, SPEED)), ("critic", CRITIC), ("actor", ACTOR))
        parts.append(Columns([self._group(title, shown) for title, shown in groups], padding=(1, 4)))
        if self._validation:
            parts.append(Text.assemble(("validation  ", "bold"), self._validation))
        return Panel(
            Group(*parts), title="relax-lightning", title_align="left", width=min(100, self._console.width)
        )

    def _header(self) -> Text:
        text = Text.assemble(("iteration ", "bold"), iteration_text(self._iteration, self._max))
        if self._phase is not None:
            name, began = self._phase
            text.append(f"   {name} {time.monotonic() - began:.1f} s", style="cyan")
        left = self._left.seconds
        if left and not self._is_done:
            text.append(f"   left {duration_text(left)}", style="dim")
        return text

    def _group(self, title: str, group: Sequence[ShownMetric]) -> Table:
        has_run = any(shown.metric in self._metrics for shown in group)
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(title, style="bold" if has_run else "dim"))
        for shown in group:
            value = shown.text(self._metrics)
            table.add_row(Text(shown.title, style="dim"), Text(value or "-", justify="right"))
        return table


def make_progress(is_enabled: bool = True) -> Progress:
    """The progress that fits: live on a terminal, lines elsewhere, nothing where it is switched off."""
    if not is_enabled:
        return Progress()
    if sys.stdout.isatty():
        return LiveProgress()
    return LineProgress()
