"""Curves in panels: plain data that can also be written as a table, and how it is drawn."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import BLACK, BLUE, PANEL_HEIGHT, PANEL_WIDTHS, STYLE, new_axes


class Curve(NamedTuple):
    """One line: `x` and `y` against `time`, arrays of one shape, and how to draw it.

    Curves of one label and look share an entry in the legend.
    """

    label: str
    time: Any
    x: Any
    y: Any
    color: str = BLUE
    dashed: bool = False
    thin: bool = False


class Panel(NamedTuple):
    """One set of axes: title, axis labels, curves, and marked points (label, x, y)."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    points: Sequence[tuple[str, float, float]] = ()


def draw(panel: Panel, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Draw one panel on the given axes, or on new ones."""
    with matplotlib.rc_context(STYLE):
        if ax is None:
            ax = new_axes()
        for curve in panel.curves:
            ax.plot(
                curve.x,
                curve.y,
                color=curve.color,
                label=curve.label,
                linestyle=(0, (4, 2)) if curve.dashed else "-",
                linewidth=0.7 if curve.thin else 1.0 if curve.dashed else 1.6,
                alpha=0.75 if curve.thin else 1.0,
            )
        for marker, (label, x, y) in zip("os", panel.points, strict=False):
            ax.plot(x, y, marker, color=BLACK, markersize=4, label=label, zorder=3)
        ax.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
        if legend:
            entries = _legend_entries([ax])
            ax.legend(entries.values(), entries.keys())
    return ax


def side_by_side(panels: Sequence[Panel]) -> Figure:
    """A figure with the panels in a row and one legend below, where it covers no curve."""
    with matplotlib.rc_context(STYLE):
        size = PANEL_WIDTHS[min(len(panels), 2)] * len(panels), PANEL_HEIGHT
        figure = Figure(figsize=size, layout="constrained")
        for number, panel in enumerate(panels, start=1):
            draw(panel, figure.add_subplot(1, len(panels), number), legend=False)
        entries = _legend_entries(figure.axes)
        columns = min(len(entries), 4 if len(panels) > 1 else 2)
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)
    return figure


def _legend_entries(axes: Sequence[Axes]) -> dict[str, Any]:
    """One handle for each label."""
    return {
        label: handle
        for ax in axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
