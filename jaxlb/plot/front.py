"""Trade-offs: what the best by one criterion costs in another."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from .. import _checks
from ..design import Front
from .style import BLACK, BLUE, GREEN, ORANGE, PURPLE, STYLE, legend_below, log_ticks, new_axes

COLOURS = BLUE, ORANGE, GREEN, PURPLE
# An axis is logarithmic beyond this ratio of what it shows.
WIDE = 8.0
SETTLING = "settling_time"


def front(fronts: Front | dict[str, Front], bound: Any = None, ax: Axes | None = None) -> Axes:
    """Fronts of `jaxlb.design.pareto`, the first criterion across and the second one up.

    A dot is a design: hollow if it is not certified to be the best, crossed out if it is unstable
    at some lower sensitivity. Both ends and the system that was given are marked.

    **Arguments:** `fronts`: one, or up to four of the same criteria by label. `bound`: s, the
    settling time that no dispatcher can beat, where that is one of the criteria.

    **Raises:** `ValueError` on a bad argument.
    """
    named = {"": fronts} if isinstance(fronts, Front) else fronts
    _require(named)
    drawn = list(named.values())
    names, more = drawn[0].names, drawn[0].more
    with matplotlib.rc_context(STYLE):
        ax = new_axes(3.4) if ax is None else ax
        for colour, (label, each) in zip(COLOURS, named.items(), strict=False):
            _draw(ax, each, label, colour)
        _mark(ax, drawn)
        if bound is not None:
            _draw_bound(ax, names, bound)
        for k, axis in enumerate((ax.xaxis, ax.yaxis)):
            unit = f" ({drawn[0].units[k]})" if drawn[0].units[k] else ""
            axis.set_label_text(_spoken(names[k]) + unit)
            _scale(ax, axis)
        ways = "right" if more[0] else "left", "up" if more[1] else "down"
        ax.set_title(f"Trade-off: better is {ways[0]} and {ways[1]}")
        legend_below(ax)
    return ax


def _require(named: Any) -> None:
    """Raise `ValueError` unless these are fronts of the same criteria."""
    _checks.kind("fronts", named, dict)
    if not 1 <= len(named) <= len(COLOURS):
        raise ValueError(f"`fronts` must be one to {len(COLOURS)}, got {len(named)}.")
    for each in named.values():
        _checks.kind("fronts", each, Front)
    names = {each.names for each in named.values()}
    if len(names) > 1:
        raise ValueError(f"`fronts` must be of the same criteria, got {sorted(names)}.")


def _draw(ax: Axes, front: Front, label: str, colour: str) -> None:
    """The line, and a dot for each design."""
    x, y = front.values.T
    ax.plot(x, y, color=colour, linewidth=1.2, label=label or "_")
    face = np.where(front.converged, colour, "white")
    ax.scatter(x, y, s=16, color=face, edgecolors=colour, linewidths=1.0, zorder=3)


def _mark(ax: Axes, fronts: list[Front]) -> None:
    """Ends, present settings, and what is special about designs."""
    values = np.concatenate([front.values for front in fronts])
    kept = np.concatenate([front.conditional for front in fronts])
    sure = np.concatenate([front.converged for front in fronts])
    first, last = (np.array([front.values[k] for front in fronts]) for k in (0, -1))
    present = np.unique([front.present for front in fronts], axis=0)
    names = fronts[0].names
    hollow: Any = {"linestyle": "none", "color": BLACK, "markerfacecolor": "none", "zorder": 4}
    for points, marker, size, label in (
        (first, "s", 8, f"best {_spoken(names[0])}"),
        (last, "D", 7.5, f"best {_spoken(names[1])}"),
        (present[np.isfinite(present).all(axis=1)], "*", 9, "present setting"),
        (values[kept], "x", 6, "unstable at some lower sensitivity"),
    ):
        if len(points):
            ax.plot(*points.T, marker=marker, markersize=size, label=label, **hollow)
    if not sure.all():
        ax.plot([], [], marker="o", markersize=4, label="not certified to be best", **hollow)


def _draw_bound(ax: Axes, names: tuple[str, str], bound: Any) -> None:
    """The least settling time as a line."""
    if not any(name.startswith(SETTLING) for name in names):
        raise ValueError(f"`bound` must be left out unless a criterion is {SETTLING}, got {bound}.")
    bound = float(_checks.positive("bound", bound, "s"))
    line = ax.axvline if names[0].startswith(SETTLING) else ax.axhline
    line(bound, color=BLACK, linestyle=(0, (4, 2)), linewidth=1.0, label="no dispatcher is sooner")


def _scale(ax: Axes, axis: Any) -> None:
    """A logarithmic axis where values are far apart."""
    low, high = axis.get_data_interval()
    if low > 0 and high > WIDE * low:
        ax.set(**{f"{axis.axis_name}scale": "log"})
        log_ticks(axis, *axis.get_view_interval())


def _spoken(name: str) -> str:
    return name.replace("_", " ")
