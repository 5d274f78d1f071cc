"""Trajectories by windowed collocation: for Erlang delays and the logit rule.

The delay chain is linear, and its response over a window is a matrix that depends on the number of
stages and the window's length in mean delays alone; what is left is a fixed point in the jobs in
service, at a few nodes. `chain` has the matrices, `window` one window, `march` all of them.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..model import dynamics, imbalance
from ..model.delays import Erlang
from ..model.routing import Logit
from ..model.system import System
from . import chain
from .march import Given, Record, march
from .window import Problem, Start

# Numbers at once in the integrals over the stages: more would not stay in a cache.
AT_ONCE = 4096
# Up to here a product with a matrix made for it is faster than one by Fourier transforms.
SHORT = 8


def applies(system: System) -> bool:
    """Whether the delay is a chain of equal stages and routing a smooth function of the queues."""
    return isinstance(system.delay, Erlang) and isinstance(system.routing, Logit)


def require(system: System) -> None:
    """Raise `ValueError` where the method does not apply."""
    if not isinstance(system.delay, Erlang):
        kind = type(system.delay).__name__
        raise ValueError(f"`delay` must be Erlang for collocation, got {kind}.")
    if not isinstance(system.routing, Logit):
        kind = type(system.routing).__name__
        raise ValueError(f"`routing` must be Logit for collocation, got {kind}.")


def _server_arrivals(system: System, values: Float[Array, "servers nodes"]) -> Array:
    share = dynamics.shares(system, values[:, None])
    return system.num_servers * system.arrival_rate * share


def _difference_arrivals(system: System, values: Float[Array, "1 nodes"]) -> Array:
    routing: Any = system.routing
    difference = partial(imbalance.share_difference, routing)
    return 2 * system.arrival_rate * jax.vmap(difference, 1)(values)[None]


def _linear_arrivals(system: System, values: Float[Array, "1 nodes"]) -> Array:
    return imbalance.feedback(system)[0] * values


# Each server is a mode, or the difference of two of them.
SERVERS = Problem(_server_arrivals, lambda system: system.service_rates)
DIFFERENCE, LINEAR_DIFFERENCE = (
    Problem(arrivals, lambda system: system.common_service_rate[None])
    for arrivals in (_difference_arrivals, _linear_arrivals)
)


class Solution(NamedTuple):
    """Jobs of each mode in service and in the stages, the result code, and the estimated error."""

    queue: Float[Array, "times modes"]
    stages: Float[Array, "times modes stages"]
    result: dfx.RESULTS
    error: Float[Array, ""]


@eqx.filter_jit
def solve(
    problem: Problem, system: System, times: Float[Array, " times"], start: Start, max_steps: int
) -> Solution:
    """The modes of `problem` at the times, from time zero on."""
    orderly = _orderly(times) & system.valid & jnp.all(jnp.isfinite(start.stages))
    # What cannot be solved is replaced by what can, so that derivatives stay finite.
    scaled = jnp.where(orderly, times, jnp.zeros_like(times)) / system.delay.mean
    record, last = march(problem, Given(system, start), scaled, max_steps)
    reached = orderly & (scaled < last.time)
    length = jnp.asarray(chain.LENGTHS, times.dtype)[record.level]
    fraction = jnp.where(reached, (scaled - record.time) / length, 0)
    queue = jnp.where(reached[:, None], _queue(record, fraction), jnp.inf)
    stages = jnp.where(reached[:, None, None], _stages(record, fraction, length), jnp.inf)
    return Solution(queue, stages, _result(orderly, reached, last), last.error)


def _orderly(times: Float[Array, " times"]) -> Bool[Array, ""]:
    steps = jnp.diff(times, prepend=0)
    return jnp.all(jnp.isfinite(times) & (steps >= 0)) & jnp.all(steps[1:] > 0)


def _result(orderly, reached, last):
    codes = dfx.RESULTS
    failed = codes.where(last.stuck, codes.dt_min_reached, codes.max_steps_reached)
    done = codes.where(jnp.all(reached), codes.successful, failed)
    return codes.where(orderly, done, codes.internal_error)


def _queue(record: Record, fraction: Float[Array, " times"]) -> Float[Array, "times modes"]:
    """Jobs in service, by the windows' polynomials; exact where a window begins."""
    matrix = jnp.asarray(chain.coefficients(), fraction.dtype)
    series = record.window.values @ matrix
    moved = _polynomial(series, fraction[:, None]) - _polynomial(series, 0 * fraction[:, None])
    return record.window.start.queue + moved


def _polynomial(series: Float[Array, "... degrees"], at: Float[Array, "..."]) -> Array:
    """Chebyshev series of [0, 1] at points, by Clenshaw's recurrence; the shapes broadcast."""
    x = 2 * at - 1
    one, two = 0 * x, 0 * x
    for k in range(series.shape[-1] - 1, 0, -1):
        one, two = series[..., k] + 2 * x * one - two, one
    return series[..., 0] + x * one - two


def _stages(
    record: Record, fraction: Float[Array, " times"], length: Float[Array, " times"]
) -> Float[Array, "times modes stages"]:
    """Jobs in each stage: those at the window's start that have moved on, and those since."""
    count = record.window.start.stages.shape[-1]
    # Enough points for the law of the time to a stage, the narrowest in the longest window.
    points, weights = np.polynomial.legendre.leggauss(24 + 4 * math.isqrt(count))
    points, weights = (points + 1) / 2, weights / 2

    @jax.checkpoint
    def at(one):
        made, fraction, passed = one
        series = made.inflow @ jnp.asarray(chain.coefficients(), passed.dtype)
        since = jnp.asarray(points, passed.dtype)
        inflow = _polynomial(series[:, None], fraction * (1 - since))
        law = _poisson(count, count * passed * since)
        old = _convolve(_poisson(count, count * passed[None])[0], made.start.stages)
        # Exactly the start where a window begins, with the derivatives of what follows.
        old = old + jax.lax.stop_gradient(jnp.where(passed > 0, 0, made.start.stages - old))
        return old + passed * (inflow * jnp.asarray(weights, passed.dtype)) @ law

    several = max(1, AT_ONCE // (count * len(points)))
    return jax.lax.map(at, (record.window, fraction, fraction * length), batch_size=several)


def _poisson(count: int, mean: Float[Array, " points"]) -> Float[Array, "points {count}"]:
    """Probabilities of 0, 1, ... where `mean` are expected."""
    number = np.arange(count)
    factorials = np.cumsum(np.log(np.maximum(number, 1)))
    # The tiniest mean has the derivatives of none.
    mean = mean[:, None] + 1e-30
    number, factorials = (jnp.asarray(part, mean.dtype) for part in (number, factorials))
    return jnp.exp(number * jnp.log(mean) - mean - factorials)


def _convolve(law: Float[Array, " stages"], jobs: Float[Array, "modes stages"]) -> Array:
    """Jobs after each has moved on by a random number of stages."""
    count = len(law)
    if count <= SHORT:
        ahead = np.arange(count)[:, None] - np.arange(count)
        return jobs @ jnp.where(ahead >= 0, law[np.maximum(ahead, 0)], 0).T
    spectrum = jnp.fft.rfft(law, 2 * count) * jnp.fft.rfft(jobs, 2 * count)
    return jnp.fft.irfft(spectrum, 2 * count)[..., :count]
