"""The best value of one number: a scan, and then what its best neighbourhood allows.

The criterion may have several minima, kinks where roots meet, and jumps where an oscillation leaves
the tolerance. So it is first looked at on a grid; a golden-section search, which needs no slope,
goes on about the best point; and where the slope changes its sign there, its zero has the last
digits.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from . import criterion as of
from .problem import Problem, is_one_of, objective

POINTS = 129
# The grid where a bound is infinite: how far it reaches from the start, in both ways.
REACH = 1e4
# Where the golden section ends, and the zero of the slope, relative; and parts of the interval in
# which that is sought.
NARROW = 1e-10
SMALL: Any = 1e-14
WIDER = 1e-5, 1e-3, 1e-1
SMOOTH = (
    of.stationary_variance,
    of.linear_noise_variance,
    of.integrated_squared_error,
    of.control_effort,
)


def by_scan(problem: Problem, first: np.ndarray) -> Iterator[np.ndarray]:
    """Points visited."""
    grid, alone = _grid(problem, float(first[0])), problem._replace(limits=())
    values = np.asarray(_values(alone, jnp.asarray(grid)))
    values = np.where(np.isfinite(values), values, np.inf)
    if problem.limits:
        inside = [problem.feasible(np.array([at])) for at in grid]
        values = np.where(inside, values, np.inf)
    best = int(np.argmin(values))
    yield from grid[:, None]
    if not np.isfinite(values[best]):
        return
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]

    def value(at):
        if not problem.feasible(np.array([at])):
            return np.inf
        found = float(_values(alone, jnp.asarray([at]))[0])
        return found if np.isfinite(found) else np.inf

    about = grid[best]
    for at in _golden(value, low, high):
        yield np.array([at])
        about = at
    if is_smooth(problem):
        at = _flat(problem, about, low, high)
        if at is not None:
            yield np.array([at])


def is_smooth(problem: Problem) -> bool:
    """Whether the criterion is known to have no kinks and no jumps."""
    return is_one_of(problem.criterion, *SMOOTH)


def _golden(value: Any, low: float, high: float) -> Iterator[float]:
    """Points of a golden-section search, the best one last."""
    ratio = (5**0.5 - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = value(left), value(right)
    while high - low > NARROW * max(abs(low), abs(high)):
        yield from (left, right)
        # Of two points without a value the upper one is cut off: what fails, fails at large gains.
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = value(right)
    yield left if at_left <= at_right else right


def _flat(problem: Problem, about: float, low: float, high: float) -> float | None:
    """The zero of the slope next to a minimum that values give to half of the digits."""
    from scipy.optimize import brentq

    def slope(at):
        return problem.value(np.array([at]))[1][0]

    for part in WIDER:
        ends = max(about - part * (high - low), low), min(about + part * (high - low), high)
        if slope(ends[0]) < 0 < slope(ends[1]):
            at: Any = brentq(slope, *ends, xtol=1e-300, rtol=SMALL)
            return float(at)
    return None


@eqx.filter_jit
def _values(problem: Problem, points):
    # One after the other: a batch would wait at each for the slowest.
    return jax.lax.map(lambda point: objective(problem, point[None]), points)


def _grid(problem: Problem, first: float) -> np.ndarray:
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
    return np.unique(np.clip([low, first, *points], low, high))


def _unit(problem: Problem) -> float:
    """A sensitivity that matters: one over the jobs in the system."""
    system = problem.system
    mean = float(system.delay.mean + 1 / jnp.min(system.service_rates))
    return 1 / float(system.arrival_rate * mean)
