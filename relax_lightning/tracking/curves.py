"""The picture of the main curves of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relax_lightning.run.errors import writing
from relax_lightning.tracking.journal import Journal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#2563a8", "#d2691e", "#3a8a4d", "#8b4a9c", "#b8860b")
_GRAY = "#666666"
_NUM_SMOOTHED = 40


@dataclass(frozen=True)
class Panel:
    """One small plot: a title and the metrics drawn in it."""

    title: str
    metrics: tuple[str, ...]
    low: float | None = None
    """Smallest value shown; what lies below is cut off, so that one early outlier does not flatten the rest."""


PANELS = (
    Panel("reward", ("reward/mean",)),
    Panel("response length (tokens)", ("response/length_mean",)),
    Panel("critic: value loss", ("critic/value_loss",)),
    Panel("critic: explained variance", ("critic/explained_variance",), low=-1.0),
    Panel("actor: policy loss", ("actor/pg_loss",)),
    Panel("clip fractions", ("actor/pg_clipfrac", "critic/value_clipfrac")),
    Panel("actor: KL of the update", ("actor/ppo_kl",)),
    Panel("actor: entropy", ("actor/entropy",)),
)


def draw_curves(journal: Journal, path: Path) -> None:
    """Draw the main curves as a PNG; a reader of `path` sees the old picture or the new one, whole."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(2, 4).flat, PANELS, strict=True):
        _draw_panel(axes, panel, journal)
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        figure.savefig(partial, format="png", dpi=100)
        partial.replace(path)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` values at each place, of fewer at the beginning.

    Args:
        values: One value a step.
        window: Number of values, at least 1.
    """
    return [
        sum(part) / len(part) for part in (values[max(0, i + 1 - window) : i + 1] for i in range(len(values)))
    ]


def _draw_panel(axes: Axes, panel: Panel, journal: Journal) -> None:
    names = [name for name in panel.metrics if journal.series(name)[0]]
    for name, color in zip(names, _COLORS, strict=False):
        steps, values = journal.series(name)
        window = max(1, len(values) // _NUM_SMOOTHED)
        axes.plot(steps, values, color=color, alpha=0.3 if window > 1 else 1.0, linewidth=1.0)
        label = name if len(panel.metrics) > 1 else None
        axes.plot(
            steps, smooth(values, window), color=color, linewidth=1.8, label=label, marker=_marker(values)
        )
    if panel.metrics == ("reward/mean",):
        _draw_validation(axes, journal)
    _dress(axes, panel, is_empty=not names)


def _draw_validation(axes: Axes, journal: Journal) -> None:
    names = [name for name in journal.names if name.startswith("val/") and name.endswith("/reward_mean")]
    for name, color in zip(names, _COLORS[1:], strict=False):
        steps, values = journal.series(name)
        label = name.removesuffix("/reward_mean")
        axes.plot(steps, values, color=color, linewidth=1.0, marker="o", markersize=4, label=label)


def _dress(axes: Axes, panel: Panel, *, is_empty: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    axes.tick_params(labelsize=8, colors=_GRAY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("iteration", fontsize=8, color=_GRAY)
    if panel.low is not None and axes.get_ylim()[0] < panel.low:
        axes.set_ylim(bottom=panel.low, top=1.05)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, frameon=False)
    if is_empty:
        axes.text(0.5, 0.5, "no points yet", transform=axes.transAxes, ha="center", va="center", color=_GRAY)


def _marker(values: Sequence[float]) -> str:
    return "." if len(values) == 1 else ""
