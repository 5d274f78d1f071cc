"""The best value of one number: a scan, and then what its best neighbourhood allows.

The criterion may have several minima, kinks where roots meet, and jumps where an oscillation leaves
the tolerance. So it is looked at on a grid, and on ever finer ones about the best point, which need
no slope and no single minimum; and where the criterion is smooth the zero of its slope has the last
digits.
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from . import criterion as of
from .problem import Problem, is_one_of, name_of

# Points of the first grid, and of those that follow.
POINTS, FINER = 129, 17
# The grid where a bound is infinite: how far it reaches from the start, in both ways.
REACH = 1e4
# Values are the same within this part.
SAME = 1e-9
# Where grids end, and the zero of the slope, relative; and how far from the best point that
# is sought, relative to it.
NARROW = 1e-10
SMALL: Any = 1e-14
WIDER = 1e-7, 1e-5, 1e-3, 1e-1
SMOOTH = (
    of.stationary_variance,
    of.linear_noise_variance,
    of.integrated_squared_error,
    of.control_effort,
)


def by_scan(problem: Problem, first: np.ndarray) -> Iterator[np.ndarray]:
    """Points visited."""

    def value(at):
        point = np.array([at])
        return problem.number(point) if problem.feasible(point) else np.inf

    grid = grid_of(problem, float(first[0]))
    values = np.array([value(at) for at in grid])
    best = int(np.argmin(values))
    yield from grid[:, None]
    if not np.isfinite(values[best]):
        return
    _require_best(problem, grid, values, best)
    while True:
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        about = grid[best]
        if high - low <= NARROW * max(abs(low), abs(high)):
            break
        grid = np.linspace(low, high, FINER)
        values = np.array([value(at) for at in grid])
        best = int(np.argmin(values))
        yield from grid[:, None]
    if is_smooth(problem):
        at = _flat(problem, about)
        if at is not None:
            yield np.array([at])


def _require_best(problem: Problem, grid: np.ndarray, values: np.ndarray, best: int) -> None:
    """Raise `ValueError` if it improves to the end of a grid that the bounds go beyond."""
    lowest = best == 0 and problem.lower[0] < grid[0]
    highest = best == len(grid) - 1 and problem.upper[0] > grid[-1]
    gained = np.median(values) - values[best] > SAME * abs(values[best])
    if (lowest or highest) and gained:
        raise ValueError(
            f"`parameters` must be bounded here: {name_of(problem.criterion)} still improves at "
            f"{problem.parts[0].path} = {grid[best]:.3g}."
        )


def is_smooth(problem: Problem) -> bool:
    """Whether the criterion is known to have no kinks and no jumps."""
    return is_one_of(problem.criterion, *SMOOTH)


def _flat(problem: Problem, about: float) -> float | None:
    """The zero of the slope next to a minimum that values give to half of the digits."""
    from scipy.optimize import brentq

    def slope(at):
        return problem.value(np.array([at]))[1][0]

    for part in WIDER:
        ends = np.clip([about * (1 - part), about * (1 + part)], problem.lower, problem.upper)
        if slope(ends[0]) < 0 < slope(ends[1]):
            at: Any = brentq(slope, *ends, xtol=1e-300, rtol=SMALL)
            return float(at)
    return None


def grid_of(problem: Problem, first: float) -> np.ndarray:
    """Points from bound to bound, in equal ratios where that can be."""
    size = abs(first) if first != 0 else _unit(problem)
    low, high = (
        float(np.clip(bound[0], -REACH * size, REACH * size))
        for bound in (problem.lower, problem.upper)
    )
    if low < 0:
        points = np.linspace(low, high, POINTS)
    else:
        points = np.geomspace(max(low, min(size, high) / REACH), max(high, 1e-300), POINTS)
    return np.unique(np.clip([low, *points], low, high))


def _unit(problem: Problem) -> float:
    """A sensitivity that matters: one over the jobs in the system."""
    system = problem.system
    mean = float(system.delay.mean + 1 / jnp.min(system.service_rates))
    return 1 / float(system.arrival_rate * mean)
