"""What an observable is sensitive to: elasticities as bars, the longest on top."""

import re

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from .. import _checks
from ..fluid import Parameter, Sensitivity
from .style import BLACK, BLUE, ORANGE, STYLE, legend_below, new_axes, shown

# The paper's symbols; an index follows.
SYMBOLS = {
    "arrival_rate": "λ",
    "service_rate": "μ",
    "delay.mean": "D",
    "routing.sensitivity": "θ",
    "routing.weights": "α",
    "initial": "q(0)",
}
# Of the longest bar: what is shorter is none.
ROUNDING = 1e-10
# Inches: of a bar, and of all around them.
BAR, AROUND = 0.27, 1.25
LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def tornado(sensitivity: Sensitivity, most: int = 12, ax: Axes | None = None) -> Axes:
    """Elasticities of an observable, d log value / d log parameter, sorted by size.

    A bar to the right: the value grows with the parameter. Parameters without effect, and those
    that are zero, have no bar.

    **Arguments:** `sensitivity`: of one system, from `fluid.sensitivity`. `most`: bars, the longest
    ones.

    **Raises:** `ValueError` on a batch or a bad argument, or if the observable was not found.
    """
    _checks.kind("sensitivity", sensitivity, Sensitivity)
    most = _checks.integer("most", most, 1)
    rows = sensitivity.rows()
    sizes = np.abs([row.elasticity for row in rows])
    demand = "of a value that was found and is not zero"
    _checks.require("sensitivity", sizes, np.isfinite, demand)
    order = np.argsort(-sizes, kind="stable")[:most]
    rows = [rows[place] for place in order if sizes[place] > ROUNDING * sizes.max()]
    lengths = np.array([row.elasticity for row in rows])
    seen = sensitivity.observation
    with matplotlib.rc_context(STYLE):
        ax = new_axes(AROUND + BAR * max(len(rows), 2)) if ax is None else ax
        colours = np.where(lengths > 0, BLUE, ORANGE)
        ax.barh(range(len(rows)), lengths, height=0.68, color=colours, zorder=2)
        for place, row in enumerate(rows):
            side = 1 if row.elasticity > 0 else -1
            ax.annotate(
                f"{row.elasticity:+.2g}".replace("-", "−"),
                (row.elasticity, place),
                (3 * side, 0),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="center",
                fontsize=7.5,
            )
        if not rows:
            ax.text(0, 0, "  no parameter changes it", va="center")
        ax.axvline(0, color=BLACK, linewidth=0.7, zorder=3)
        # Room for the numbers at the ends of the longest bars, and never a side without width.
        low, high = min(lengths.min(initial=0), 0), max(lengths.max(initial=0), 0)
        room = 0.14 * (high - low or 1)
        ax.set_xlim(low - room, high + room)
        ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        ax.set_yticks(range(len(rows)), [_label(row) for row in rows])
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(f"elasticity: % of {seen.name} for 1 % of the parameter")
        unit = f" {seen.unit}" if seen.unit else ""
        ax.set_title(f"{seen.name} {shown(seen.value)}{unit}")
        legend_below(
            ax,
            handles=[
                Patch(color=BLUE, label="grows with it"),
                Patch(color=ORANGE, label="shrinks"),
            ],
        )
    return ax


def _label(row: Parameter) -> str:
    """Symbol, if there is one, value and unit."""
    name, bracket, _ = row.name.partition("[")
    symbol = row.name
    if name in SYMBOLS:
        places = re.findall(r"\d+", row.name) if bracket else []
        below = ",".join(str(int(place) + 1) for place in places).translate(LOWERED)
        symbol = SYMBOLS[name][0] + below + SYMBOLS[name][1:]
    unit = f" {row.unit.removeprefix('1')}" if row.unit else ""
    return f"{symbol} = {shown(row.parameter)}{unit}"
