"""The abscissa made smooth: a soft maximum over all roots, ever harder.

    t log sum exp(Re r / t), over the roots r, and over mean delays for the worst case of them,

lies above the largest real part by at most t log(number). With t falling, each problem starts where
the last one ended: the optimum is followed to where roots meet, at which the abscissa itself has no
slope to follow.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..model import imbalance
from ..stability.worst_case import with_mean
from .descend import by_kinks
from .problem import Problem, build

# t relative to the size of the roots: the first, the last, and how many.
HARDNESS = 1.0, 1e-4
STAGES = 9
# Mean delays for the worst case.
MEANS = 5


def by_smoothing(
    problem: Problem, first: np.ndarray, error: float, steps: int
) -> Iterator[np.ndarray]:
    """Points visited, for a decay rate, the worst over mean delays wrong by up to `error`."""
    stretch = jnp.linspace(1 - error, 1 + error, MEANS if error else 1)
    point = first
    size = float(np.max(np.abs(_roots(problem.at(first), stretch))))
    for part in np.geomspace(*HARDNESS, STAGES):
        softness = jnp.asarray(part * size)

        def value(at, softness=softness):
            found, slope = _soft(
                problem.penalty, problem.parts, problem.system, jnp.asarray(at), stretch, softness
            )
            found, slope = float(found), np.asarray(slope, float)
            fine = np.isfinite(found) and np.isfinite(slope).all()
            return (found, slope) if fine else (np.inf, np.zeros_like(slope))

        for visited in by_kinks(problem, point, steps, value):
            point = visited
            yield point


@eqx.filter_jit
def _soft(penalty, parts, system, point, stretch, softness):
    """Soft maximum and its gradient."""

    def of_point(point):
        tuned = build(system, parts, point)
        value = softness * jax.nn.logsumexp(_roots(tuned, stretch).real / softness)
        return value if penalty is None else value + penalty(tuned)

    return jax.value_and_grad(of_point)(point)


def _roots(system: Any, stretch: Float[Array, " means"]) -> Array:
    """All eigenvalues, for each mean delay."""

    def of_mean(part):
        delay = with_mean(system.delay, system.delay.mean * part)
        return jnp.linalg.eigvals(imbalance.matrix(eqx.tree_at(lambda s: s.delay, system, delay)))

    return jax.lax.map(of_mean, stretch).ravel()
