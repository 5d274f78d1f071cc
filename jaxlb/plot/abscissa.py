"""The spectral abscissa against the sensitivity: one system, or delays of one mean."""

import math
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib.axes import Axes

from .. import _checks, stability
from ..model import Logit, System
from ..stability.erlang import is_erlang
from . import points as at
from .style import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    STYLE,
    legend_below,
    log_ticks,
    new_axes,
    shown,
)

DASHES = (0, (4, 2))


def abscissa_against_sensitivity(system: System, ax: Axes | None = None) -> Axes:
    """The spectral abscissa against the sensitivity: in the grey half balance is unstable.

    Marked are the fastest decay, the Hopf point and the system itself; what has no place on the
    logarithmic axis, such as sensitivity zero, is at its edge, hollow.

    **Raises:** `ValueError` for a rule that is not a logit rule.
    """
    own = at.parameters(system)
    theta = own["sensitivity"]
    best, hopf = at.fastest_decay(system), at.hopf_point(system)
    seen = theta, best.sensitivity, hopf.sensitivity
    thetas = at.sensitivities(seen, at.resolution(system), [best.sensitivity])
    # Its own with the rest, which spares a compilation.
    *roots, now = at.rightmost(system, {"sensitivity": np.append(thetas, theta)})
    abscissa = np.real(roots)
    with matplotlib.rc_context(STYLE):
        ax = new_axes(3.4) if ax is None else ax
        ax.plot(thetas, abscissa, color=BLUE)
        for place, name, marker, colour in (
            (best, "fastest decay", "D", GREEN),
            (hopf, "Hopf point", "s", BLUE),
            (at.Place(theta, now), "this system", "o", ORANGE),
        ):
            if place.sensitivity < math.inf:
                _mark(ax, thetas, place, name, marker, colour)
        _axes(ax, thetas)
        ax.set_title("Decay: " + at.described(system, "sensitivity"))
        legend_below(ax, 1)
    return ax


def effect_of_stages(
    system: System,
    stages: Any = (1, 2, 4, 8, 32, math.inf),
    ax: Axes | None = None,
) -> Axes:
    """The spectral abscissa against the sensitivity for delays of one mean, more or less variable.

    Does variability help? With more stages the best decay is faster, but the critical sensitivity,
    where a curve enters the grey half, is smaller. Dashed: the system's own law, and its
    sensitivity.

    **Arguments:** `stages`: L of each curve, real numbers >= 1; infinity is the deterministic
    delay.

    **Raises:** `ValueError` on a bad argument and for a rule other than `Logit`.
    """
    own = at.parameters(system)
    if not isinstance(system.routing, Logit):
        raise ValueError(f"`routing` must be Logit, got {type(system.routing).__name__}.")
    shapes = _checks.as_float("stages", stages, (None,))
    _checks.require("stages", shapes, lambda v: np.all(v >= 1) & (v.size > 0), "at least 1")
    own.pop("stages", None)
    theta, own_limit = own.pop("sensitivity"), float(stability.critical_sensitivity(system))
    limits, doubles = (
        np.asarray(gain, float) / own["arrival_rate"]
        for gain in _gains(own["service_rate"], own["mean"], shapes)
    )
    thetas = at.sensitivities([theta, own_limit, *limits, *doubles], at.MIDDLE, doubles)
    curves = stability.erlang_root(**own, stages=shapes[:, None], sensitivity=thetas).root.real
    own_thetas, own_roots = _own_curve(system, thetas)
    with matplotlib.rc_context(STYLE):
        ax = new_axes(3.4) if ax is None else ax
        colours = COLOURS(np.linspace(1, 0, len(limits)))
        for shape, limit, curve, colour in zip(shapes, limits, curves, colours, strict=True):
            name = f"L = {shown(shape)}, cv {float(shape) ** -0.5:.2g}"
            ax.plot(thetas, curve, color=colour, label=f"{name}: {_until(limit)}")
            _mark_limit(ax, limit, colour)
        dashed: Any = {"color": BLACK, "linewidth": 1.2, "linestyle": DASHES}
        name = f"this system, cv {shown(system.delay.squared_cv**0.5)}"
        ax.plot(own_thetas, own_roots.real, label=f"{name}: {_until(own_limit)}", **dashed)
        _mark_limit(ax, own_limit, "white")
        if theta > 0:
            ax.axvline(theta, **dashed)
        _axes(ax, thetas)
        ax.set_title("Variable or constant delay: " + at.described(system, "stages", "sensitivity"))
        legend_below(ax)
    return ax


def _own_curve(system: System, thetas: np.ndarray) -> tuple[np.ndarray, Any]:
    """Sensitivities over the same range, as many as the system can afford, and its roots there."""
    if not is_erlang(system):
        # As many as in the picture of the system alone: so it is compiled once.
        count = at.resolution(system) + at.NEAR + 1
        thetas = np.geomspace(thetas[0], thetas[-1], count)
    return thetas, at.rightmost(system, {"sensitivity": thetas})


def _until(limit: float) -> str:
    return f"stable below {shown(limit)}" if limit < math.inf else "always stable"


def _mark_limit(ax: Axes, limit: float, colour: Any) -> None:
    if limit < math.inf:
        ax.plot(limit, 0, "s", color=colour, markeredgecolor=BLACK, markersize=5, zorder=4)


@jax.jit
def _gains(service_rate, mean, stages):
    """Critical gain, and gain of the fastest decay, for each number of stages."""

    def of_one(stages):
        critical = stability.erlang_boundary(service_rate, mean, stages).gain
        return critical, stability.erlang_best_gain(service_rate, mean, stages).value

    return jax.vmap(of_one)(stages)


def _mark(
    ax: Axes, thetas: np.ndarray, place: at.Place, name: str, marker: str, colour: str
) -> None:
    theta, value = place.sensitivity, place.root.real
    inside = thetas[0] <= theta <= thetas[-1]
    ax.plot(
        np.clip(theta, thetas[0], thetas[-1]),
        value,
        marker,
        color=colour if inside else "white",
        markeredgecolor=BLACK if inside else colour,
        markersize=6,
        linestyle="none",
        label=f"{name}{'' if inside else ' (outside)'}: θ = {shown(theta)}, {shown(value)} /s",
        clip_on=False,
        zorder=4,
    )


def _axes(ax: Axes, thetas: np.ndarray) -> None:
    low, high = ax.get_ylim()
    pad = 0.08 * (max(high, 0.0) - low)
    ax.set(ylim=(low - pad, max(high, pad)), xscale="log", xlim=(thetas[0], thetas[-1]))
    ax.set(xlabel=at.PARAMETERS["sensitivity"][1], ylabel="spectral abscissa (1/s)")
    ax.axhspan(0, ax.get_ylim()[1], color=GREY, zorder=0, linewidth=0)
    ax.axhline(0, color=BLACK, linewidth=0.8, zorder=1)
    log_ticks(ax.xaxis, thetas[0], thetas[-1])
