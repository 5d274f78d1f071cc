"""The spread of the queues along a trajectory: the largest less the smallest, |x| of two servers.

Panels cover the horizon, each with Chebyshev nodes, from which the queues' velocities follow.
Between nodes the spread is taken for a cubic. Of a maximum of smooth functions all kinks point
down, so that its largest values are smooth.
"""

from functools import partial
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.polynomial import chebyshev

from ..model import dynamics
from ..model.delays import Deterministic
from ..model.system import System, require_one
from . import delay_limit
from .trajectory import solve

# Of the polynomial of one panel, which has one node more.
DEGREE = 16
# Of its last two coefficients, relative to the largest spread: beyond it lobes may be missed.
RESOLVED = 1e-2
# The last panel of those that divide a deterministic delay is at least so much of one.
SHORTEST = 1e-2


class Case(NamedTuple):
    """What moves: the system, its jobs at time zero, and the settings of `fluid.solve`."""

    system: System
    start: Float[Array, "servers compartments"]
    settings: dict[str, Any]


class Now(NamedTuple):
    """The spread at some times, jobs, how fast it changes, jobs/s, and whether both are known."""

    value: Float[Array, " times"]
    velocity: Float[Array, " times"]
    ok: Bool[Array, ""]


class Course(NamedTuple):
    """The spread over intervals: when each begins and how long it is, s; at both ends the spread,
    jobs, and how fast it changes, jobs/s; and whether all is known."""

    begin: Float[Array, " intervals"]
    width: Float[Array, " intervals"]
    value: Float[Array, "intervals 2"]
    velocity: Float[Array, "intervals 2"]
    ok: Bool[Array, ""]


class Lobes(NamedTuple):
    """Of each interval: whether a local maximum of the spread is in it, which one, when, and the
    second derivative there, jobs/s^2."""

    there: Bool[Array, " intervals"]
    value: Float[Array, " intervals"]
    time: Float[Array, " intervals"]
    curvature: Float[Array, " intervals"]


def held(case: Any) -> Any:
    """The same without derivatives."""
    arrays, rest = eqx.partition(case, eqx.is_inexact_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def spread(case: Case, times: Float[Array, " times"]) -> Now:
    """The spread at a few times in any order; differentiable as `fluid.solve` is.

    Equal times are moved apart by rounding.
    """
    order = jnp.argsort(times)
    apart = 8 * jnp.finfo(times.dtype).eps * times.max() * jnp.arange(len(times))
    queue, velocity, ok = _motion(case, (times[order] + apart).astype(times.dtype))
    place = jnp.argsort(order)
    value, velocity = (part[place] for part in _of_extremes(queue, queue, velocity))
    return Now(value, velocity, ok)


def course(case: Case, edges: Float[Array, " edges"]) -> Course:
    """The spread over the panels between these edges, without derivatives."""
    case, times = held(case), nodes(edges)
    solution = solve(case.system, times, case.start, **case.settings)
    queue = by_panel(solution.queue)
    length = jnp.diff(edges)
    slopes, tail = (jnp.asarray(part, queue.dtype) for part in _matrices())
    velocity = jnp.einsum("kl,pls->pks", slopes, queue) / length[:, None, None]
    value, velocity = _of_extremes(queue, queue, velocity)
    apart = queue - queue.mean(axis=-1, keepdims=True)
    cut = jnp.abs(jnp.einsum("kl,pls->pks", tail, apart)).max()
    rounding = 100 * jnp.finfo(queue.dtype).eps * queue.max()
    ok = solution.ok & (cut <= RESOLVED * value.max() + rounding)
    begin, end = by_panel(times)[:, :-1].ravel(), by_panel(times)[:, 1:].ravel()
    value, velocity = (
        jnp.stack([part[:, :-1].ravel(), part[:, 1:].ravel()], axis=1) for part in (value, velocity)
    )
    return Course(begin, end - begin, value, velocity, ok)


def _motion(case: Case, times: Float[Array, " times"]) -> tuple[Array, Array, Array]:
    """The queues, their velocities by the equations of motion, and whether both are known."""
    system, start, settings = case
    if not isinstance(system.delay, Deterministic):
        solution = solve(system, times, start, **settings)
        velocity = jax.vmap(partial(dynamics.drift, system))(solution.jobs)[..., -1]
        return solution.queue, velocity, solution.ok
    tolerances, most = (settings.get("rtol"), settings.get("atol")), settings.get("max_steps")
    found, result = delay_limit.solve_jobs(system, times, start[:, 1], None, tolerances, most)
    queue, earlier = found[..., 1], found[..., 2]
    inflow = delay_limit.Routed(system)(earlier.T).T
    inflow = jnp.where((times >= system.delay.mean)[:, None], inflow, 0)
    return queue, inflow - system.service_rates * queue, result == dfx.RESULTS.successful


def _of_extremes(queue: Array, *parts: Array) -> list[Array]:
    """Of each part, which has servers last, that of the longest queue less that of the shortest."""
    most, least = (pick(queue, axis=-1, keepdims=True) for pick in (jnp.argmax, jnp.argmin))
    return [
        (jnp.take_along_axis(part, most, -1) - jnp.take_along_axis(part, least, -1))[..., 0]
        for part in parts
    ]


def panels_of(
    system: System, horizon: Float[Array, ""], panels: int
) -> tuple[Float[Array, " edges"], Int[Array, ""]]:
    """Edges of panels that cover [0, horizon], and how many of them are within it.

    With a deterministic delay the trajectory has kinks at multiples of it: there panels end, and
    some that are left over lie beyond the horizon.
    """
    count = jnp.arange(panels + 1)
    length, within = horizon / panels, jnp.asarray(panels)
    if isinstance(system.delay, Deterministic):
        part = jnp.floor(panels * system.delay.mean / horizon)
        length = jnp.where(part >= 1, system.delay.mean / jnp.clip(part, 1, panels), length)
        within = jnp.clip(jnp.ceil(horizon / length - SHORTEST), 1, panels).astype(count.dtype)
    inside = length * count
    edges = jnp.where(count < within, inside, horizon + length * (count - within))
    return edges.astype(horizon.dtype), within


def nodes(edges: Float[Array, " edges"]) -> Float[Array, " nodes"]:
    """Increasing times from zero on: the nodes of each panel, shared where two panels meet."""
    at = jnp.asarray((1 - np.cos(np.pi * np.arange(DEGREE) / DEGREE)) / 2, edges.dtype)
    inside = edges[:-1, None] + jnp.diff(edges)[:, None] * at
    return jnp.append(inside.ravel(), edges[-1])


def by_panel(values: Float[Array, "nodes ..."]) -> Float[Array, "panels points ..."]:
    """What is known at the nodes, panel by panel."""
    number = DEGREE * np.arange(len(values) // DEGREE)[:, None] + np.arange(DEGREE + 1)
    return values[number]


def _matrices() -> tuple[np.ndarray, np.ndarray]:
    """From values at the nodes of [0, 1] to derivatives there, and to the last two coefficients."""
    at = -np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)
    series = np.linalg.inv(chebyshev.chebvander(at, DEGREE))
    return 2 * chebyshev.chebvander(at, DEGREE - 1) @ chebyshev.chebder(series), series[-2:]


def clenshaw_curtis(degree: int) -> np.ndarray:
    """Weights of the nodes cos(pi k / degree), k = 0, ..., degree, of [-1, 1], for half of it."""
    order = np.arange(degree + 1)
    even = np.where(order % 2 == 0, 1 / (1 - np.where(order % 2, 0.0, order) ** 2), 0.0)
    return even @ np.linalg.inv(np.cos(np.pi * np.outer(order, order) / degree))


def lobes(seen: Course) -> Lobes:
    """Local maxima of the cubics."""
    first, second, third = _cubic(seen)
    root = second**2 - 3 * third * first
    there = root > 0
    bend = jnp.sqrt(jnp.where(there, root, 1.0)) - second
    there = there & (bend > 0)
    at = first / jnp.where(there, bend, 1.0)
    there = there & (at >= 0) & (at < 1)
    at = jnp.where(there, at, 0.0)
    value = seen.value[:, 0] + at * (first + at * (second + at * third))
    curvature = (2 * second + 6 * third * at) / seen.width**2
    return Lobes(there, value, seen.begin + at * seen.width, curvature)


def crossing(
    seen: Course, interval: Int[Array, ""], begin: Float[Array, ""], level: Float[Array, ""]
) -> Float[Array, ""]:
    """When the cubic of an interval comes down to the level, from the fraction `begin` of it on."""
    first, second, third = (part[interval] for part in _cubic(seen))

    def halve(_, ends):
        middle = (ends[0] + ends[1]) / 2
        rise = middle * (first + middle * (second + middle * third))
        above = seen.value[interval, 0] + rise > level
        return jnp.where(above, middle, ends[0]), jnp.where(above, ends[1], middle)

    bits = jnp.finfo(begin.dtype).nmant
    ends = jax.lax.fori_loop(0, bits, halve, (begin, jnp.ones_like(begin)))
    return seen.begin[interval] + seen.width[interval] * (ends[0] + ends[1]) / 2


def _cubic(seen: Course) -> tuple[Array, Array, Array]:
    """Coefficients of the fraction of the interval, its square and its cube."""
    first, end = (seen.width[:, None] * seen.velocity).T
    rise = seen.value[:, 1] - seen.value[:, 0]
    return first, 3 * rise - 2 * first - end, first + end - 2 * rise


def case_of(system: System, initial: Any, settings: dict[str, Any]) -> Case:
    """The case, in the dtype of the system; numbers among the settings become arrays, so that new
    values do not recompile."""
    require_one(system)
    if system.num_servers < 2:
        raise ValueError(f"`num_servers` must be at least 2 here, got {system.num_servers}.")
    start = dynamics.initial_jobs(system, initial).astype(jnp.result_type(*system.numbers))
    settings = {
        name: jnp.asarray(value) if isinstance(value, float) else value
        for name, value in settings.items()
    }
    return Case(system, start, settings)
