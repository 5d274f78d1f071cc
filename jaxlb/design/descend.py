"""Descent in many parameters: by gradients, with limits, and where there are kinks.

Each method takes a `Problem` and a point to begin with, and gives the points that it visits, in
turn.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..stability.coordinates import from_line, to_line
from ..stability.rough import quasi_newton
from .problem import Problem, objective

# Of a limit that is not kept, in units of the criterion.
PENALTY = 10.0
# Where there is no value: far above all there are, in units of the first.
FAR = 1e6
# Of Adam, relative to a parameter's distance from its nearest bound.
RATE = 0.1


class Line(NamedTuple):
    """Coordinates without bounds, as `jaxlb.stability.coordinates`; `first` and `scale` serve
    parameters that have none. `size`: that of the criterion."""

    lower: Array
    upper: Array
    first: Array
    scale: Array
    size: Array

    def point(self, line: Array) -> Array:
        """The parameters at these coordinates."""
        low, high = jnp.isfinite(self.lower), jnp.isfinite(self.upper)
        grown = jnp.exp(jnp.clip(line, -700, 700))
        width = jnp.where(low & high, self.upper - self.lower, 0.0)
        one = jnp.where(low, self.lower + grown, self.upper - 1 / grown)
        both = self.lower + width * jax.nn.sigmoid(line)
        free = self.first + self.scale * line
        return jnp.where(low & high, both, jnp.where(low | high, one, free))


def by_optax(problem: Problem, first: np.ndarray, method: str, steps: int) -> Iterator[np.ndarray]:
    """Adam with a cosine schedule, or L-BFGS, by Optax; within the bounds."""
    region = problem.region
    size = abs(problem.value(first)[0])
    parts = problem.lower, problem.upper, first, region.scale(first), size if size > 0 else 1.0
    axis = Line(*(jnp.asarray(part) for part in parts))
    line = jnp.asarray(to_line(region, first))
    state = _optimiser(method, steps).init(line)
    for _ in range(steps):
        line, state, fine = _step(problem._replace(limits=()), axis, method, steps, line, state)
        point = np.asarray(axis.point(line))
        if not (bool(fine) and np.isfinite(point).all()):
            return
        yield np.clip(point, problem.lower, problem.upper)


def _optimiser(method: str, steps: int) -> Any:
    # Here, because importing jaxlb must cost what JAX and Diffrax cost.
    import optax

    if method == "adam":
        return optax.adam(optax.cosine_decay_schedule(RATE, steps))
    return optax.lbfgs()


@eqx.filter_jit
def _step(problem: Problem, axis: Line, method: str, steps: int, line: Array, state: Any):
    """One step: the coordinates, the state, and whether the criterion was finite."""

    def of_line(line):
        return objective(problem, axis.point(line)) / axis.size

    value, slope = jax.value_and_grad(of_line)(line)
    more = {} if method == "adam" else {"value": value, "grad": slope, "value_fn": of_line}
    change, state = _optimiser(method, steps).update(slope, state, line, **more)
    return line + change, state, jnp.isfinite(value)


def by_slsqp(problem: Problem, first: np.ndarray, steps: int) -> Iterator[np.ndarray]:
    """Sequential quadratic programming (SciPy): bounds and limits, for smooth functions."""
    yield from minimise_within(
        problem.value, problem.slack, first, problem.lower, problem.upper, steps
    )


def minimise_within(
    function: Any, slack: Any, first: np.ndarray, lower: np.ndarray, upper: np.ndarray,
    steps: int,
) -> Iterator[np.ndarray]:  # fmt: skip
    """SLSQP on a function with a gradient, within bounds and where each slack is not negative."""
    from scipy.optimize import minimize

    visited: list[np.ndarray] = []
    width = np.where(np.isfinite(upper - lower), upper - lower, np.maximum(np.abs(first), 1.0))
    scale = np.where(width > 0, np.minimum(width, np.maximum(np.abs(first), 1e-3 * width)), 1.0)
    size = abs(function(first)[0])
    size = size if 0 < size < np.inf else 1.0

    def value(scaled):
        found, slope = function(scaled * scale)
        visited.append(scaled * scale)
        return (found / size if np.isfinite(found) else FAR), slope * scale / size

    rows = len(slack(first)[0])
    bounds = [(low if np.isfinite(low) else None, high if np.isfinite(high) else None)
              for low, high in zip(lower / scale, upper / scale, strict=True)]  # fmt: skip
    constraint = {
        "type": "ineq",
        "fun": lambda scaled: slack(scaled * scale)[0],
        "jac": lambda scaled: slack(scaled * scale)[1] * scale,
    }
    minimize(
        value,
        first / scale,
        jac=True,
        method="SLSQP",
        bounds=bounds,
        constraints=[constraint] if rows else [],
        options={"maxiter": steps, "ftol": 1e-14},
    )
    yield from (np.clip(point, lower, upper) for point in visited)


def by_kinks(
    problem: Problem, first: np.ndarray, steps: int, value: Any = None
) -> Iterator[np.ndarray]:
    """BFGS with a weak Wolfe search, for functions with kinks; limits by a penalty.

    `value`: what to make small instead of the problem's own.
    """
    region = problem.region
    value = problem.value if value is None else value
    size = max(abs(problem.value(first)[0]), 1e-12)

    def function(line):
        point, stretch = from_line(region, first, line)
        found, slope = value(point)
        inside, slopes = problem.slack(point)
        out = inside < 0
        found = found - PENALTY * size * inside[out].sum()
        slope = slope - PENALTY * size * out @ slopes
        return found, slope * stretch, point

    for moved in quasi_newton(function, to_line(region, first), steps):
        yield moved.more
