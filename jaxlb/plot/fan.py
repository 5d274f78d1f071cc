"""An ensemble against time: median, bands, the fluid limit, one path."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .. import fluid
from ..model import AbstractPhaseDelay, Deterministic, System
from ..stochastic import Ensemble
from .style import BLACK, BLUE, ORANGE, STYLE, legend_below, new_axes

# Of the bands, the wider one first: lower and upper level, and how dark.
BANDS = (0.05, 0.95, 0.18), (0.25, 0.75, 0.32)


def fan(
    ensemble: Ensemble,
    system: System,
    scale: Any,
    sample: Ensemble | None = None,
    initial: Any = None,
    imbalance: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Jobs in service at the first server, or the imbalance Q_1 - Q_2, against time.

    The median of the replicas, the bands that hold half and nine tenths of them, the fluid limit
    where the delay has phases or is deterministic, and the first path of `sample`.

    **Arguments:** `ensemble`: with quantiles at least at the levels 0.05, 0.25, 0.5, 0.75 and 0.95
    kept. `system`, `scale`, `initial`: what it was made with. `sample`: one with paths kept.

    **Raises:** `ValueError` if those levels were not kept.
    """
    levels = _levels(ensemble)
    statistics = ensemble.statistics
    quantiles = statistics.imbalance_quantiles if imbalance else statistics.quantiles
    quantiles = quantiles if imbalance else quantiles[:, :, 0, -1]
    times = np.asarray(ensemble.times)
    with matplotlib.rc_context(STYLE):
        ax = new_axes() if ax is None else ax
        for low, high, alpha in BANDS:
            ax.fill_between(
                times,
                quantiles[levels[low]],
                quantiles[levels[high]],
                color=BLUE,
                alpha=alpha,
                linewidth=0,
                label=f"{100 * (high - low):.0f} % of {statistics.count} paths",
            )
        ax.plot(times, quantiles[levels[0.5]], color=BLUE, label="median")
        if sample is not None:
            path = _seen(np.asarray(sample.queue[0]), imbalance)
            ax.plot(sample.times, path, color=ORANGE, linewidth=0.8, label="one path")
        if _has_fluid_limit(system):
            start = None if initial is None else np.asarray(initial) / float(scale)
            limit = fluid.solve(system, times, initial=start)
            mean = float(scale) * _seen(np.asarray(limit.queue), imbalance)
            ax.plot(times, mean, color=BLACK, linestyle="--", linewidth=1.1, label="fluid limit")
        ax.set_xlabel("time $t$, s")
        ax.set_ylabel("imbalance $Q_1 - Q_2$, jobs" if imbalance else "jobs in service $Q_1$")
        ax.margins(x=0)
        legend_below(ax, 3)
    return ax


def _has_fluid_limit(system: System) -> bool:
    if system.looks_at_the_past:
        return False
    if isinstance(system.delay, Deterministic):
        return system.looks_at_queues_alone
    return isinstance(system.delay, AbstractPhaseDelay)


def ensemble_overview(
    ensemble: Ensemble, system: System, scale: Any, sample: Ensemble | None = None
) -> Figure:
    """`fan` of the first server and, if there are two or more, of the imbalance."""
    both = system.num_servers > 1
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 5.4 if both else 3.0), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1 + both, 1, sharex=True))
        for number, ax in enumerate(panels):
            fan(ensemble, system, scale, sample, imbalance=number > 0, ax=ax)
        for ax in panels[:-1]:
            ax.get_legend().remove()
            ax.set_xlabel("")
    return figure


def _levels(ensemble: Ensemble) -> dict[float, int]:
    """Where each level is among those kept."""
    wanted = sorted({level for band in BANDS for level in band[:2]} | {0.5})
    statistics = ensemble.statistics
    kept = [] if statistics is None or statistics.levels is None else statistics.levels.tolist()
    found = {w: k for w in wanted for k, level in enumerate(kept) if abs(level - w) < 1e-6}
    if len(found) < len(wanted):
        raise ValueError(f"`ensemble` must have quantiles at the levels {wanted}, got {kept}.")
    return found


def _seen(queue: np.ndarray, imbalance: bool) -> np.ndarray:
    return queue[:, 0] - queue[:, 1] if imbalance else queue[:, 0]
