"""What a dispatcher's sensitivity buys: three criteria over it, one above the other."""

import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..design import Advice, Setting
from .style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE, log_ticks

# Sensitivities shown below the least best one, and above the critical one, as factors.
BELOW, ABOVE = 5.0, 2.0
LARGEST_TIME = 3.0
# Name of the curve, label of the axis, what is best by it, and its value for a setting.
ROWS: Any = (
    ("decay rate", "decay rate (1/s)", "fastest", lambda s: 1 / s.decay_time),
    ("settling time", "settling time (s)", "soonest", lambda s: s.settling_time),
    ("variance", "imbalance at rest\nover random routing", "steadiest", lambda s: s.relative),
)


def tuning(advice: Advice) -> Figure:
    """Decay rate, settling time and fluctuations against the sensitivity, with what is best by
    each, the present setting, and what counting jobs in transit would give; grey is unstable.

    **Arguments:** `advice`: from `jaxlb.design.advise`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 6.8), layout="constrained")
        panels = figure.subplots(len(ROWS), 1, sharex=True)
        low, high = _range(advice)
        for ax, row in zip(panels, ROWS, strict=True):
            _panel(ax, advice, row, low, high)
        panels[-1].set_xlabel("sensitivity θ (per job)")
        above = panels[0].secondary_xaxis("top", functions=(_inverse, _inverse))
        above.set_xlabel("temperature 1/θ (jobs)")
        above.minorticks_off()
        log_ticks(above.xaxis, 1 / high, 1 / low)
        handles, labels = {}, []
        for ax in panels:
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                if label not in handles:
                    handles[label] = handle
                    labels.append(label)
        figure.legend(
            [handles[label] for label in labels], labels, loc="outside lower center", ncols=2
        )
    return figure


def _inverse(theta: Any) -> Any:
    with np.errstate(divide="ignore"):
        return 1 / np.asarray(theta, float)


def _range(advice: Advice) -> tuple[float, float]:
    """Sensitivities shown."""
    best = [advice.fastest, advice.soonest, advice.steadiest]
    seen = [setting.sensitivity for setting in best if setting.sensitivity > 0]
    if advice.present is not None:
        seen.append(advice.present.sensitivity)
    if math.isfinite(advice.critical):
        seen.append(advice.critical)
    return min(seen) / BELOW, max(seen) * ABOVE


def _panel(ax: Axes, advice: Advice, row: Any, low: float, high: float) -> None:
    name, label, best, value = row
    curve = advice.curves[name]
    values = curve.value
    if name == "variance":
        random = np.interp(0.0, curve.sensitivity, values)
        values = np.sqrt(values / random)
    ax.plot(curve.sensitivity, values, color=BLUE, label="the queues alone")
    if advice.critical < high:
        ax.axvspan(advice.critical, high, color=GREY, zorder=0, label="unstable")
    for setting, colour, style in (
        (advice.counting, GREEN, "--"),
        (advice.weighted, PURPLE, ":"),
    ):
        if math.isfinite(value(setting)):
            ax.axhline(value(setting), color=colour, linestyle=style, label=_name(setting))
    chosen: Setting = getattr(advice, best)
    if low <= chosen.sensitivity <= high:
        ax.plot(chosen.sensitivity, value(chosen), "o", color=BLUE, label="best by each criterion")
    if advice.present is not None:
        ax.axvline(advice.present.sensitivity, color=ORANGE, linewidth=1, label="present setting")
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    log_ticks(ax.xaxis, low, high)
    ax.set_ylabel(label)
    shown = values[(curve.sensitivity >= low) & np.isfinite(values)]
    marked = [value(setting) for setting in (advice.counting, advice.weighted, chosen)]
    marked = [mark for mark in marked if math.isfinite(mark)]
    top = max([*marked, *shown]) if name == "decay rate" else LARGEST_TIME * min([*marked, *shown])
    if name == "variance":
        top = max(1.6, *marked)
    ax.set_ylim(0, 1.08 * top)
    ax.axhline(0, color=BLACK, linewidth=0.7)


def _name(setting: Setting) -> str:
    return f"{setting.name} (θ = {setting.sensitivity:.2g})"
