"""The best decay rate, sought among roots instead of gains.

Where the sensitivity and all weights are free, gains and roots are two sets of coordinates for the
same rules (`jaxlb.design.placement`). In gains the abscissa has no slope where it is best, for many
roots meet there. Among polynomials all of whose roots have a real part of at most -sigma it is just
a number: they are the products of factors

    (r + sigma)^2 + c (r + sigma) + d,    (r + sigma) + c,    with c, d >= 0,

and roots meet where some of these are zero. So the problem becomes smooth, with bounds, and optima
at which all roots coincide are found exactly.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..model.delays import Erlang
from ..model.routing import WeightedLogit
from ..model.system import System
from ..stability import eigenvalues
from .descend import minimise_within
from .placement import placement
from .problem import Problem, number_of, within


class RootPoint(NamedTuple):
    """A point in parameters, the decay rate that its roots have by construction, and sigma and the
    factors."""

    point: np.ndarray
    decay: float
    at: np.ndarray


def applies(problem: Problem) -> bool:
    """Whether gains and roots are the same set of rules here."""
    system = problem.system
    free = {"routing.sensitivity", "routing.weights"}
    ours = isinstance(system.delay, Erlang) and isinstance(system.routing, WeightedLogit)
    return ours and set(problem.paths) == free


def by_roots(problem: Problem, first: np.ndarray, steps: int) -> Iterator[RootPoint]:
    """Points visited, from the roots at the first point and from roots that coincide."""
    system = problem.system
    delay = system.delay
    assert isinstance(delay, Erlang)
    modes = delay.stages + 1
    stage = float(delay.stage_rate)
    own: Any = np.asarray(eigenvalues(problem.at(first)))
    starts = [_coordinates(own, stage), *(
        np.append(decay / stage, np.zeros(modes)) for decay in (
            max(-own.real.max(), 0.1 * stage), 0.5 * stage, stage)
    )]  # fmt: skip
    lower, upper = _bounds(modes)
    for start in starts:
        functions = _value(problem), _slack(problem)
        for at in minimise_within(*functions, start, lower, upper, steps):
            point = np.asarray(_point(problem.system, problem.paths, jnp.asarray(at)))
            if np.isfinite(point).all():
                yield RootPoint(point, float(at[0]) * stage, at)


def conditions(problem: Problem, at: np.ndarray) -> tuple:
    """At a point of roots: value and slope; slack and slopes of limits; the point and its
    bounds."""
    return *_value(problem)(at), *_slack(problem)(at), at, *_bounds(len(at) - 1)


def _bounds(modes: int) -> tuple[np.ndarray, np.ndarray]:
    """Of sigma and the factors."""
    return np.append(-np.inf, np.zeros(modes)), np.full(modes + 1, np.inf)


def _coordinates(roots: Any, stage: float) -> np.ndarray:
    """sigma and the factors of these roots, in units of the stage rate."""
    roots = roots / stage
    sigma = -roots.real.max()
    pairs = roots[roots.imag > 0] + sigma
    real = np.sort(roots[roots.imag == 0].real + sigma)
    factors = [(-2 * root.real, abs(root) ** 2) for root in pairs]
    factors += [(-a - b, a * b) for a, b in zip(real[::2], real[1::2], strict=False)]
    single = [-real[-1]] if len(real) % 2 else []
    flat = [value for factor in factors for value in factor]
    return np.maximum(np.array([sigma, *flat, *single]), [-np.inf] + [0.0] * len(roots))


def _tuned(system: System, at: Float[Array, " n"]) -> Any:
    """The system with the rule of these factors."""
    delay = system.delay
    assert isinstance(delay, Erlang)
    sigma, factors = at[0], at[1:]
    # In t = 1 + r / gamma: r / gamma + sigma = t - (1 - sigma).
    shift = jnp.stack([jnp.ones_like(sigma), sigma - 1])
    square = jnp.convolve(shift, shift)
    whole = jnp.ones(1, at.dtype)
    for k in range(len(factors) // 2):
        c, d = factors[2 * k], factors[2 * k + 1]
        factor = square + c * jnp.append(0.0, shift) + d * jnp.array([0.0, 0.0, 1.0])
        whole = jnp.convolve(whole, factor)
    if len(factors) % 2:
        whole = jnp.convolve(whole, shift + factors[-1] * jnp.array([0.0, 1.0]))
    found = placement(whole, delay.stage_rate, system.common_service_rate)
    rule = WeightedLogit(found.gain / system.arrival_rate, found.weighted / found.gain)
    return eqx.tree_at(lambda s: s.routing, system, rule)


@eqx.filter_jit
def _point(system, paths, at):
    """The parameters, in the order of the problem."""
    rule = _tuned(system, at).routing
    given = {"routing.sensitivity": rule.sensitivity[None], "routing.weights": rule.weights}
    return jnp.concatenate([given[path] for path in paths])


def _value(problem: Problem) -> Any:
    """Minus the decay rate by construction, and the penalty, with the gradient."""

    def function(at):
        value, slope = _rate(problem.penalty, problem.system, jnp.asarray(at))
        value, slope = float(value), np.asarray(slope)
        fine = np.isfinite(value) and np.isfinite(slope).all()
        return (value, slope) if fine else (np.inf, np.zeros_like(slope))

    return function


@eqx.filter_jit
def _rate(penalty, system, at):
    def value(at):
        decay = at[0] * system.delay.stage_rate
        return -decay if penalty is None else penalty(_tuned(system, at)) - decay

    return jax.value_and_grad(value)(at)


def _slack(problem: Problem) -> Any:
    """Bounds of the parameters, and limits, as functions of the factors."""
    ends = problem.named(np.stack([problem.lower, problem.upper]))
    bounds = np.concatenate(
        [
            np.maximum(ends["routing.sensitivity"], [0.0, -np.inf])[:, None],
            ends["routing.weights"],
            np.stack(problem.bounds_of_limits()),
        ],
        axis=1,
    )
    functions = tuple(limit.function for limit in problem.limits)
    return lambda at: within(*_limited(functions, problem.system, jnp.asarray(at)), *bounds)


@eqx.filter_jit
def _limited(functions, system, at):
    """What is limited, and its derivatives."""

    def values(at):
        tuned = _tuned(system, at)
        rule = tuned.routing
        limits = [number_of(function(tuned)) for function in functions]
        return jnp.concatenate([rule.sensitivity[None], rule.weights, jnp.asarray(limits)])

    return values(at), jax.jacrev(values)(at)
