"""Stability charts: where in a plane of two parameters balance is stable, and how fast it turns."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch

from .. import _checks, stability
from ..model import Logit, System
from ..stability.erlang import is_erlang
from . import points as at
from .style import (
    BLACK,
    COLOURS,
    GREY,
    HALO,
    ORANGE,
    STYLE,
    colour_bar,
    legend_below,
    log_ticks,
    new_axes,
)

# Points on each axis: with formulas, and where each point takes a system.
FINE, COARSE = 300, 32
# The colours of a coarse chart have so many points for each of its own.
FINER = 5
# The chart reaches this factor beyond what it must show.
REACH = 8.0
# Decades of frequency that the colours resolve.
DECADES = 3


def stability_chart(
    system: System,
    x: str = "mean",
    y: str = "sensitivity",
    x_range: Any = None,
    y_range: Any = None,
    points: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Where balance is stable in the plane of two parameters, the others held; logarithmic axes.

    The line is the Hopf boundary by its formula, the colour the frequency of the rightmost root,
    grey where the slowest imbalance does not oscillate. The system's own point is marked; where it
    is beyond the chart, hollow and at its edge.

    **Arguments:** `x`, `y`: two of `arrival_rate`, `service_rate`, `mean` (of the delay), `stages`
    and `sensitivity`. `x_range`, `y_range`: least and largest value, > 0; by default about the
    system's own and the boundary. `points`: on each axis.

    **Raises:** `ValueError` on a bad argument, for a rule that is not a logit rule, for `stages`
    unless the delay is `Erlang` or `Deterministic` and the rule `Logit`, and for `mean` with a
    delay whose mean cannot be changed.

    Without formulas the frequency is interpolated between points, and found where it begins.

    **Cost:** with formulas 0.1 s for 90 000 points, after 2 s of compilation; else some 20 s.
    """
    own = at.parameters(system)
    for name, value in (("x", x), ("y", y)):
        at.require_variable(system, name, value)
    if x == y:
        raise ValueError(f"`y` must be another parameter than `x`, got {y!r}.")
    count = FINE if is_erlang(system) else COARSE
    count = count if points is None else _checks.integer("points", points, 2)
    xs = np.geomspace(*_range("x_range", x_range, x, system, own), count)
    ys = np.geomspace(*_range("y_range", y_range, y, system, own), count)
    values = {x: xs[None, :], y: ys[:, None]}
    frequency = at.rightmost(system, values).imag
    full = {**own, **values}
    # Positive where balance is unstable; minus infinity where that is out of reach.
    ratio = full["arrival_rate"] * full["sensitivity"] / at.critical_gain(system, values)
    excess = np.log(ratio, out=np.full(ratio.shape, -np.inf), where=ratio > 0)
    excess = np.broadcast_to(excess, frequency.shape)
    turning = xs, ys, frequency
    if not is_erlang(system):
        turning = _finer(xs, ys, frequency, lambda u, v: at.rightmost(system, {x: u, y: v}).imag)
    with matplotlib.rc_context(STYLE):
        ax = new_axes(3.8) if ax is None else ax
        _draw_frequency(ax, *turning)
        handles = _draw_boundary(ax, xs, ys, excess)
        handles.append(_mark(ax, own[x], own[y]))
        if np.any(frequency == 0):
            handles.append(Patch(facecolor=GREY, label="no oscillation"))
        _name_regions(ax, excess, own[x], own[y])
        ax.set(xlabel=at.PARAMETERS[x][1], ylabel=at.PARAMETERS[y][1])
        ax.set_title("Stability of balance: " + at.described(system, x, y))
        legend_below(ax, 3, handles)
    return ax


def _range(
    name: str, given: Any, parameter: str, system: System, own: dict[str, float]
) -> tuple[float, float]:
    """The given range, checked, or one about all that is worth seeing."""
    if given is not None:
        low, high = np.asarray(_checks.positive(name, given, shape=(2,)), float)
        if not low < high:
            raise ValueError(f"`{name}` must be increasing, got {low:g} {high:g}.")
        if parameter == "stages" and low < 1:
            raise ValueError(f"`{name}` must be at least 1, got {low:g}.")
        return low, high
    if parameter == "stages":
        most = own["stages"] if np.isfinite(own["stages"]) else 0.0
        return 1.0, max(64.0, 4 * most)
    seen = np.array([own[parameter]])
    if parameter == "sensitivity":
        seen = np.append(seen, stability.critical_sensitivity(system))
    elif parameter == "mean" and isinstance(system.routing, Logit):
        seen = np.append(seen, stability.critical_delay(system)[:2])
    seen = seen[np.isfinite(seen) & (seen > 0)]
    if not seen.size:
        seen = np.array([1 / (own["arrival_rate"] * own["mean"])])
    middle = own[parameter] if own[parameter] > 0 else seen[0]
    # Not without end: an upper end of the window may be anywhere.
    seen = np.clip(seen, middle / 1e3, middle * 1e3)
    return seen.min() / REACH, seen.max() * REACH


def _finer(xs: np.ndarray, ys: np.ndarray, frequency: np.ndarray, find: Any) -> tuple:
    """Frequencies on a finer grid: by `find` where oscillation begins, else by interpolation."""
    turns = frequency > 0
    places = [np.linspace(0, n - 1, (n - 1) * FINER + 1) for n in frequency.shape]
    share = _between(turns.astype(float), *places)
    finer = np.exp(_between(np.log(np.where(turns, frequency, 1.0)), *places)) * (share > 0.5)
    columns, rows = (
        np.exp(np.interp(place, np.arange(len(axis)), np.log(axis)))
        for axis, place in ((xs, places[1]), (ys, places[0]))
    )
    unsure = np.argwhere((share > 0) & (share < 1))
    # As many at a time as the grid had: so it is compiled once.
    for part in np.array_split(unsure, range(turns.size, len(unsure), turns.size)):
        if part.size:
            given = np.resize(part, (turns.size, 2))
            found = find(columns[given[:, 1]], rows[given[:, 0]])
            finer[part[:, 0], part[:, 1]] = found[: len(part)]
    return columns, rows, finer


def _between(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Bilinear interpolation at fractional rows and columns."""
    for places in (rows, columns):
        values = np.stack([np.interp(places, np.arange(len(v)), v) for v in values.T])
    return values


def _draw_frequency(ax: Axes, xs: np.ndarray, ys: np.ndarray, frequency: np.ndarray) -> None:
    ax.set(xscale="log", yscale="log", facecolor=GREY)
    ax.grid(False)
    turning = np.ma.masked_less_equal(frequency, 0)
    if turning.count():
        # Towards the double root the frequency falls to zero without end.
        least, top = turning.min(), turning.max()
        bottom = max(least, top / 10**DECADES)
        top = top if top > bottom else 2 * bottom
        # As an image within PDF and SVG.
        mesh = ax.pcolormesh(
            xs,
            ys,
            turning,
            norm=LogNorm(bottom, top),
            cmap=COLOURS,
            shading="nearest",
            rasterized=True,
        )
        colour_bar(
            ax, mesh, "oscillation frequency $\\omega$ (rad/s)", bottom, top, bool(least < bottom)
        )
    ax.set(xlim=(xs[0], xs[-1]), ylim=(ys[0], ys[-1]))
    log_ticks(ax.xaxis, xs[0], xs[-1])
    log_ticks(ax.yaxis, ys[0], ys[-1])


def _draw_boundary(ax: Axes, xs: np.ndarray, ys: np.ndarray, excess: np.ndarray) -> list:
    """The zero contour of `excess`; what a legend shows of it."""
    excess = np.ma.masked_invalid(excess)
    if not (excess.count() and excess.min() < 0 < excess.max()):
        return []
    contour = ax.contour(xs, ys, excess, levels=[0.0], colors=BLACK, linewidths=2.2)
    contour.set_path_effects(HALO)
    (line,) = ax.plot([], [], color=BLACK, linewidth=2.2, label="Hopf boundary")
    return [line]


def _mark(ax: Axes, x: float, y: float) -> Any:
    """The system's own point, or where it would be beyond the edge."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    inside = left <= x <= right and bottom <= y <= top
    (mark,) = ax.plot(
        np.clip(x, left, right),
        np.clip(y, bottom, top),
        "o",
        color=BLACK if inside else "none",
        markerfacecolor="white" if not inside else ORANGE,
        markeredgecolor=BLACK,
        markersize=7,
        linestyle="none",
        label="this system" if inside else "this system (outside)",
        clip_on=False,
        zorder=5,
    )
    return mark


def _name_regions(ax: Axes, excess: np.ndarray, own_x: float, own_y: float) -> None:
    """`stable` and `unstable`, each where it is farthest from all else."""
    step = -(-max(excess.shape) // 40)
    unstable = excess[::step, ::step] > 0
    rows, columns = (np.arange(n) / max(n - 1, 1) for n in unstable.shape)
    places = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)
    flags = unstable.ravel()
    own = ax.transAxes.inverted().transform(
        ax.transData.transform((np.clip(own_x, *ax.get_xlim()), np.clip(own_y, *ax.get_ylim())))
    )
    # A word is wider than high.
    stretch = np.array([1.0, 2.5])
    edge = np.minimum(places, 1 - places)
    for flag, word in ((True, "unstable"), (False, "stable")):
        if not np.any(flags == flag):
            continue
        inside, outside = places[flags == flag], places[flags != flag]
        others = np.vstack([outside, own])
        room = np.min(np.linalg.norm((inside[:, None] - others) * stretch, axis=-1), axis=1)
        room = np.minimum(room, np.min(edge[flags == flag] * stretch, axis=1))
        if room.max() < 0.06:
            continue
        place = inside[np.argmax(room)]
        ax.text(
            place[0],
            place[1],
            word,
            transform=ax.transAxes,
            ha="center",
            va="center",
            fontweight="bold",
            fontsize=10,
            color=BLACK,
            path_effects=HALO,
            zorder=4,
        )
