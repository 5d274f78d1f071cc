"""The roots in the complex plane as the sensitivity grows."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from .. import _checks, stability
from ..model import Erlang, System
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
    colour_bar,
    legend_below,
    new_axes,
    shown,
)

# Most roots drawn for each sensitivity, and most stages for which all are computed.
MOST_ROOTS, MOST_STAGES = 9, 256
# Pairs beyond the rightmost with more stages, and steps of Newton's method to each.
FURTHER, STEPS = 2, 30


def root_locus(system: System, sensitivities: Any = None, ax: Axes | None = None) -> Axes:
    """The rightmost roots in the complex plane as the sensitivity grows, which is the colour.

    Marked: where they start without feedback, the fastest decay, the crossing of the imaginary
    axis, and the system's own roots. Balance is unstable where one is in the grey half plane.

    Drawn are the nine rightmost roots with an `Erlang` delay of up to 256 stages and any of up to
    64 phases; six with more stages or a `Deterministic` delay; else the rightmost pair alone.

    **Arguments:** `sensitivities`: per job, > 0, two or more; by default about the system's
    own, the best and the critical one.

    **Raises:** `ValueError` on a bad argument and for a rule that is not a logit rule.
    """
    own = at.parameters(system)
    theta = own["sensitivity"]
    best, hopf = at.fastest_decay(system), at.hopf_point(system)
    if sensitivities is None:
        seen = theta, best.sensitivity, hopf.sensitivity
        thetas = at.sensitivities(seen, at.resolution(system), [best.sensitivity])
    else:
        given = _checks.positive("sensitivities", sensitivities, "per job", (None,))
        thetas = np.unique(np.asarray(given, float))
        _checks.require("sensitivities", thetas, lambda v: v.size > 1, "two or more", "per job")
    # Its own, and those without feedback where no formula has them, with the rest: one compilation.
    if is_erlang(system):
        *roots, now = _roots(system, np.append(thetas, theta or thetas[0]))
        start = _without_feedback(system)
    else:
        *roots, now, start = _roots(system, np.append(thetas, [theta or thetas[0], 0.0]))
        start = start[np.isfinite(start)]
    roots, now = np.array(roots), now if theta > 0 else start
    marks = [("without feedback", "x", BLACK, start)]
    if best.sensitivity > 0:
        marks.append(
            (f"fastest decay: θ = {shown(best.sensitivity)}", "D", GREEN, np.array([best.root]))
        )
    if hopf.sensitivity < math.inf:
        pair = np.array([hopf.root, hopf.root.conjugate()])
        marks.append((f"Hopf point: θ = {shown(hopf.sensitivity)}", "s", BLUE, pair))
    marks.append((f"this system: θ = {shown(theta)}", "o", ORANGE, now))
    with matplotlib.rc_context(STYLE):
        ax = new_axes(3.8) if ax is None else ax
        _draw_roots(ax, thetas, roots)
        for label, marker, colour, places in marks:
            _draw_mark(ax, label, marker, colour, places)
        _frame(ax, [-own["service_rate"], start[0], best.root, hopf.root], roots, now)
        ax.set(xlabel="real part (1/s)", ylabel="imaginary part (rad/s)")
        ax.set_title("Roots: " + at.described(system, "sensitivity"))
        legend_below(ax)
    return ax


def _without_feedback(system: System) -> np.ndarray:
    """Roots of service, and of the stages if there are any."""
    rates = [system.common_service_rate]
    if isinstance(system.delay, Erlang):
        rates.append(system.delay.stage_rate)
    return -np.array(rates, float) + 0j


def _draw_roots(ax: Axes, thetas: np.ndarray, roots: Any) -> None:
    # As an image within PDF and SVG: there are thousands.
    dots = ax.scatter(
        roots.real,
        roots.imag,
        s=4,
        c=np.broadcast_to(thetas[:, None], roots.shape),
        cmap=COLOURS,
        norm=LogNorm(thetas[0], thetas[-1]),
        linewidths=0,
        rasterized=True,
        zorder=2,
    )
    colour_bar(ax, dots, at.PARAMETERS["sensitivity"][1], thetas[0], thetas[-1])


def _draw_mark(ax: Axes, label: str, marker: str, colour: str, places: Any) -> None:
    cross = marker == "x"
    ax.plot(
        places.real,
        places.imag,
        marker,
        color=colour,
        markeredgecolor=colour if cross else BLACK,
        markeredgewidth=1.8 if cross else 0.8,
        markersize=6,
        linestyle="none",
        label=label,
        # A cross leaves what is below it to be seen.
        zorder=5 if cross else 4,
    )


def _frame(ax: Axes, marked: Any, roots: Any, now: Any) -> None:
    """Show where the rightmost pair goes, and what of the others is near it."""
    first = np.nanmax(roots.real, axis=1)
    right = max(np.nanmax(now.real), np.nanmax(first), 0.0)
    left = 1.8 * min(*np.real(marked), np.nanmin(first), np.nanmax(now.real))
    right = max(right, -0.15 * left)
    near: Any = now[now.real >= left]
    kept: Any = np.append(roots[roots.real >= left], near)
    heights = np.imag(marked)
    highest = np.max(np.abs(np.append(heights[np.isfinite(heights)], near.imag)))
    # All of what is marked, and of the rest not more than keeps that readable.
    top = min(1.08 * np.nanmax(np.abs(kept.imag)), max(5 * (right - left), 1.3 * highest))
    top = max(top, -0.05 * left)
    ax.set(xlim=(left, right + 0.06 * (right - left)), ylim=(-top, top))
    ax.locator_params(axis="x", nbins=6)
    ax.axvspan(0, ax.get_xlim()[1], color=GREY, zorder=0, linewidth=0)
    ax.axvline(0, color=BLACK, linewidth=0.8, zorder=1)
    ax.axhline(0, color=BLACK, linewidth=0.4, zorder=1)


def _roots(system: System, thetas: np.ndarray) -> Any:
    """Roots at each sensitivity, shape (points, roots), the rightmost first; NaN for none."""
    if is_erlang(system):
        own = {**at.parameters(system), "sensitivity": thetas}
        if own["stages"] > MOST_STAGES:
            return np.concatenate([_pair(own), *_further(own)], axis=1)
        roots = _mapped(stability.all_roots, system, thetas)
    elif at.is_small(system):
        roots = _mapped(stability.eigenvalues, system, thetas)
    else:
        roots = at.rightmost(system, {"sensitivity": thetas})[:, None]
        return np.concatenate([roots, roots.conj()], axis=1)
    order = np.argsort(-roots.real, axis=1, kind="stable")[:, :MOST_ROOTS]
    roots = np.take_along_axis(roots, order, axis=1)
    # Not one of a pair alone.
    alone = ~np.any(np.isclose(roots[:, -1:].conj(), roots, rtol=1e-6, atol=0), axis=1)
    roots[alone, -1] = np.nan
    return roots


def _mapped(function: Any, system: System, thetas: np.ndarray) -> Any:
    return np.asarray(at.of_each(function, system, {"sensitivity": thetas}))


def _pair(own: dict[str, Any]) -> np.ndarray:
    """The two rightmost roots, which meet at the double root."""
    numbers = np.broadcast_arrays(*(own[name] for name in at.PARAMETERS))
    names = "arrival_rate", "service_rate", "mean", "stages", "sensitivity"
    middle, squared = _pairs(dict(zip(names, map(jnp.asarray, numbers), strict=True)))
    half = np.sqrt(np.asarray(squared) + 0j)
    return np.stack([middle + half, middle - half], axis=1)


@jax.jit
@jax.vmap
def _pairs(numbers: dict[str, Array]):
    return stability.erlang_pair(**numbers)[:2]


def _further(own: dict[str, Any]) -> list[np.ndarray]:
    """The pairs after the first: L log(1 + z / L) + log(z + m) = log kappa + (2 k + 1) i pi."""
    mean, stages = own["mean"], own["stages"]
    m, log_kappa = (
        own["service_rate"] * mean,
        np.log(own["arrival_rate"] * own["sensitivity"] * mean),
    )
    pairs = []
    for k in range(1, FURTHER + 1):
        target = log_kappa + (2 * k + 1) * math.pi * 1j
        # From the branch of Lambert's function that solves it without stages.
        z = target + m
        z = z - np.log(z) - m
        gap = np.full(z.shape, np.inf)
        for _ in range(STEPS):
            passed = z if math.isinf(stages) else stages * np.log1p(z / stages)
            gap = passed + np.log(z + m) - target
            z = z - gap / (1 / (1 + z / stages) + 1 / (z + m))
        root = np.where(np.abs(gap) < 1e-9, z / mean, np.nan)
        pairs.append(np.stack([root, root.conj()], axis=1))
    return pairs
