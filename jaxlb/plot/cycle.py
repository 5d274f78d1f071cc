"""Limit cycles: the plane of imbalances, amplitude and period along a parameter, waveforms."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.axes import Axes

from .. import _checks, fluid
from ..fluid.limit_cycle import Branch, LimitCycle, RelayCycle
from ..model import System
from .style import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    ORANGE,
    PURPLE,
    STYLE,
    legend_below,
    log_ticks,
    new_axes,
)

# Points of a period, and of a trajectory; periods that a trajectory lasts; phases that are shown.
POINTS, PATH_POINTS, PERIODS, MOST_SHOWN = 400, 4000, 12, 4
# Where trajectories start, over the amplitude of the cycle; without one, over the offered load.
STARTS, STARTS_WITHOUT = (0.05, 1.6), np.array([0.2, 1.0])
QUANTITIES = {"amplitude": "amplitude of $q_1 - q_2$", "period": "period (s)"}


def phase_portrait(system: System, starts: Any = None, ax: Axes | None = None) -> Axes:
    """Trajectories of the fluid limit in the plane of the imbalances in service and in transit.

    Black is the limit cycle, if there is one; the point in the middle is balance, hollow where it
    is unstable.

    **Arguments:** `system`: two servers of one service rate, a logit rule, and a delay with phases
    or `Deterministic`. `starts`: q_1 - q_2 at time zero, of which each server has half above or
    below its offered load, none in transit; at most twice that load. By default near balance and
    beyond the cycle.

    **Raises:** `ValueError` on a bad argument, or where the difference system is not closed.
    """
    cycle = fluid.limit_cycle.find(system)
    load = float(system.offered_load)
    if starts is None:
        reach = np.multiply(STARTS, cycle.amplitude) if cycle.exists else load * STARTS_WITHOUT
        starts = np.minimum(reach, 2 * load)
    starts = np.asarray(_checks.finite("starts", starts, "jobs", (None,)))
    no_more = f"at most {2 * load:.4g}, twice the offered load, in size"
    _checks.require("starts", starts, lambda value: abs(value) <= 2 * load * (1 + 1e-12), no_more)
    period = float(cycle.period if cycle.exists else system.delay.mean + 1 / system.service_rate)
    times = np.linspace(0, PERIODS * period, PATH_POINTS)
    with matplotlib.rc_context(STYLE):
        ax = new_axes(4.2) if ax is None else ax
        for start, colour in zip(starts, _cycled(len(starts)), strict=True):
            queues = load + start / 2 * np.array([1, -1])
            jobs = np.asarray(fluid.solve(system, times, queues).jobs)
            apart = jobs[:, 0] - jobs[:, 1]
            label = f"from $q_1 - q_2$ = {start:.3g}"
            ax.plot(apart[:, -1], apart[:, :-1].sum(axis=1), color=colour, linewidth=1, label=label)
            ax.plot(start, 0, "o", color=colour, markersize=3)
        if cycle.valid:
            x, w = _in_plane(system, cycle)
            ax.plot(x, w, color=BLACK, linewidth=1.8, label="limit cycle", zorder=3)
        face = "white" if cycle.exists else BLACK
        name = "balance, unstable" if cycle.exists else "balance, stable"
        ax.plot(0, 0, "o", color=BLACK, markerfacecolor=face, markersize=6, label=name, zorder=4)
        ax.set(xlabel="in service, $q_1 - q_2$", ylabel="in transit, $z_1 - z_2$")
        legend_below(ax)
    return ax


def bifurcation_diagram(
    branches: Mapping[str, Branch],
    limits: Mapping[str, RelayCycle] | None = None,
    quantity: str = "amplitude",
    label: str = "sensitivity θ (per job)",
    ax: Axes | None = None,
) -> Axes:
    """Amplitude or period of limit cycles along a parameter, one curve for each branch.

    A curve begins at the Hopf point, a square. With the amplitude, the line at zero is balance:
    solid where it is stable, dashed where a cycle takes its place.

    **Arguments:** `branches`: of `jaxlb.fluid.limit_cycle.continuation`, by their names. `limits`:
    their relay limits, dotted, by the same names. `quantity`: "amplitude" or "period". `label`: of
    the parameter.

    **Raises:** `ValueError` on another quantity.
    """
    if quantity not in QUANTITIES:
        raise ValueError(f"`quantity` must be one of {', '.join(QUANTITIES)}, got {quantity!r}.")
    with matplotlib.rc_context(STYLE):
        ax = new_axes() if ax is None else ax
        colours = COLOURS(np.linspace(0.7, 0, len(branches)))
        for (name, branch), colour in zip(branches.items(), colours, strict=True):
            # Of values without a cycle there is nothing to draw.
            there = np.where(branch.valid, getattr(branch, quantity), np.nan)
            ax.plot(branch.values, there, color=colour, label=name)
            hopf = branch.is_hopf
            ax.plot(branch.values[hopf], there[hopf], "s", color=colour, markersize=4, zorder=3)
            if limits and limits[name].valid:
                end = float(getattr(limits[name], quantity))
                ax.axhline(end, color=colour, linestyle=(0, (1, 2)), linewidth=1, zorder=1)
        values = np.concatenate([branch.values for branch in branches.values()])
        if quantity == "amplitude" and len(branches) == 1:
            _balance(ax, next(iter(branches.values())))
        ax.set(xscale="log", xlabel=label, ylabel=QUANTITIES[quantity])
        ax.set_xlim(values.min(), values.max())
        log_ticks(ax.xaxis, values.min(), values.max())
        legend_below(ax, 4)
    return ax


def waveforms(system: System, cycle: LimitCycle, ax: Axes | None = None) -> Axes:
    """The imbalance in each delay phase and in service over two periods of a limit cycle.

    The bulge of jobs moves through the phases into service: dots are the peaks of one passage. Of
    many phases, each of which holds few jobs, some are shown, times the number of phases.

    **Raises:** `ValueError` for a cycle that is not valid.
    """
    if not bool(cycle.valid):
        raise ValueError("`cycle` must be valid, got one that does not exist or was not found.")
    period = float(cycle.period)
    times = np.linspace(0, 2 * period, 2 * POINTS + 1)
    wave = np.array(cycle.imbalance(times))
    phases = system.num_phases
    shown = np.unique(np.linspace(1, phases, min(phases, MOST_SHOWN)).round().astype(int))
    factor = phases if phases > MOST_SHOWN else 1
    wave[:, 1:] *= factor
    with matplotlib.rc_context(STYLE):
        ax = new_axes() if ax is None else ax
        colours = COLOURS(np.linspace(0.7, 0, len(shown)))
        after = 0.0
        for phase, colour in [*zip(shown, colours, strict=True), (0, BLACK)]:
            name = f"{factor if factor > 1 else ''}$w_{{{phase}}}$, phase {phase}"
            name = name if phase else "$x$, in service"
            ax.plot(times / period, wave[:, phase], color=colour, label=name)
            after = _peak(times, wave[:, phase], after)
            ax.plot(
                after / period,
                np.interp(after, times, wave[:, phase]),
                "o",
                color=colour,
                markersize=4,
            )
        ax.axhline(0, color=BLACK, linewidth=0.7, zorder=1)
        ax.set(xlabel="time in periods", ylabel="difference of jobs", xlim=(0, 2))
        legend_below(ax, 3)
    return ax


def _cycled(count: int) -> list[str]:
    colours = BLUE, ORANGE, GREEN, PURPLE
    return [colours[number % len(colours)] for number in range(count)]


def _in_plane(system: System, cycle: LimitCycle) -> tuple[np.ndarray, np.ndarray]:
    """x and the difference in transit over a period."""
    times = np.linspace(0, float(cycle.period), POINTS + 1)
    if system.num_phases:
        wave = np.asarray(cycle.imbalance(times))
        return wave[:, 0], wave[:, 1:].sum(axis=1)
    service = np.asarray(cycle.harmonics[0])
    number = 2 * np.arange(len(service)) + 1
    root = 2j * np.pi / float(cycle.period) * number
    through = np.asarray(jax.vmap(system.delay.transform)(jnp.asarray(root)))
    # What has been sent and has not arrived, from what arrives.
    transit = (
        service * (root + float(system.common_service_rate)) * (1 - through) / (root * through)
    )
    wave = np.exp(np.outer(times, root))
    return np.real(wave @ service), np.real(wave @ transit)


def _balance(ax: Axes, branch: Branch) -> None:
    """The line at zero."""
    without = np.where(branch.valid & ~branch.is_hopf, np.nan, 0.0)
    ax.plot(branch.values, 0 * without, color=BLACK, label="balance, stable")
    taken = np.where(branch.valid, 0.0, np.nan)
    ax.plot(branch.values, taken, color=BLACK, linestyle=(0, (3, 2)), label="balance, unstable")


def _peak(times: np.ndarray, wave: np.ndarray, after: float) -> float:
    """Time of the first maximum after a time, of a wave that has more than one."""
    inside = (wave[1:-1] >= wave[:-2]) & (wave[1:-1] > wave[2:]) & (wave[1:-1] > 0.9 * wave.max())
    peaks = times[1:-1][inside & (times[1:-1] > after)]
    return float(peaks[0]) if len(peaks) else after
