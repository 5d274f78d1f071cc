"""One look for every picture: colour-blind-safe, drawn without a display or any global state."""

import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import (
    LogFormatterSciNotation,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)
from matplotlib.transforms import ScaledTranslation

# Okabe and Ito (2008): distinct under the common colour-vision deficiencies, and in print.
BLUE, ORANGE, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#222222"
GREY = "#e4e4e4"

STYLE: Any = {
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.dpi": 120,
    "font.size": 8.5,
    "grid.color": GREY,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.5,
    "pdf.fonttype": 42,
    "savefig.bbox": "tight",
    "savefig.dpi": 250,
    "svg.hashsalt": "jaxlb",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
# Inches: a figure of one panel is wide and low, like a strip chart.
PANEL_HEIGHT = 2.9
PANEL_WIDTHS = {1: 5.2, 2: 3.5}
LEGEND_DROP = 34
# The part of viridis on which black lines and words can be read.
COLOURS = LinearSegmentedColormap.from_list(
    "readable", matplotlib.colormaps["viridis"](np.linspace(0.3, 1.0, 64))
)
# What keeps a line or a word readable on any ground.
HALO: list[patheffects.AbstractPathEffect] = [
    patheffects.withStroke(linewidth=2.5, foreground="white")
]
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Without a date the same picture gives the same bytes.
METADATA: dict[str, Any] = {
    ".png": {},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


def new_axes(height: float = PANEL_HEIGHT) -> Axes:
    """The axes of a new figure of one panel, `height` in inches."""
    return Figure(figsize=(PANEL_WIDTHS[1], height), layout="constrained").add_subplot()


def legend_below(ax: Axes, columns: int = 2, handles: Any = None) -> None:
    """A legend under the axes, where it covers nothing."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    # Points from the axes, whatever their size: tick labels and axis label are in between.
    offset = ScaledTranslation(0, -LEGEND_DROP / 72, figure.dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + offset,
        ncols=columns,
        borderaxespad=0,
        columnspacing=1.2,
    )


def log_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks of a logarithmic axis that do not crowd: plain numbers, powers of ten where those would
    be long."""
    decades = math.log10(high / low)
    between = (1, 2, 5) if decades < 2.2 else (1,)
    there = [
        step * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for step in between
        if low <= step * 10.0**power <= high
    ]
    # On a short axis one would not show the scale: evenly spaced numbers do.
    if len(there) > 1:
        axis.set_major_locator(LogLocator(subs=between))
    else:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
    plain = low >= 1e-4 and high < 1e5
    axis.set_major_formatter("{x:g}" if plain else LogFormatterSciNotation())
    axis.set_minor_formatter(NullFormatter())


def colour_bar(
    ax: Axes, drawn: Any, label: str, low: float, high: float, below: bool = False
) -> None:
    """A logarithmic colour bar beside the axes, from `low` to `high`, or also `below`."""
    figure = ax.get_figure()
    assert figure is not None
    bar = figure.colorbar(drawn, ax=ax, label=label, pad=0.02, extend="min" if below else "neither")
    log_ticks(bar.ax.yaxis, low, high)
    bar.ax.spines["outline"].set_linewidth(0.7)


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as PNG, PDF or SVG, by the suffix; the same figure gives the same bytes."""
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        raise ValueError(f"`path` must end with {', '.join(METADATA)}, got {str(path)!r}.")
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, format=suffix[1:], metadata=METADATA[suffix])


def shown(value: Any) -> str:
    """A number for people: four digits, a minus sign, a power of ten, a symbol for infinity."""
    digits, _, power = f"{float(value):.4g}".replace("inf", "∞").partition("e")
    raised = "×10" + str(int(power)).translate(RAISED) if power else ""
    return digits.replace("-", "−") + raised
