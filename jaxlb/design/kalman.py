"""The best estimate of jobs in each delay phase, for a dispatcher that does not see phases.

For two servers w, the difference of jobs in each phase, obeys w' = G' w + initial u + noise, and
what is seen is the difference of arrivals at the servers, dY = exit.w dt + noise. The estimate

    dm = (G' m + initial u) dt + K (dY - exit.m dt),    K = (V exit + S) / R,

has the least error, and its covariance V solves the Riccati equation of Kalman and Bucy, where R is
the noise of dY per unit of time and S its covariance with that of w.

A dispatcher that logs what it sends knows part of the noise, and so the number in transit: V is
zero along that direction and the equation singular. It is solved without it. For one that does not,
w has the variances 2 lambda times the occupancies, so that K is zero: of Poisson arrivals those
that are over say nothing of the jobs still in transit.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model.memory import FilteredLogit
from ..model.routing import WeightedLogit
from ..model.system import System, require_one
from ..stability.domain import flagged, is_valid
from ..stochastic.linear_noise import imbalance_noise
from ..stochastic.lyapunov import lyapunov

# Steps of Newton's method, far more than it takes.
MOST_STEPS = 64


def kalman(system: System, log: bool = True) -> FilteredLogit:
    """The rule of a dispatcher that sees no phases, from one made for a dispatcher that does.

    The best estimate of jobs in each phase, by the Kalman-Bucy filter, takes their place.

    **Arguments:** `system`: with a delay with phases and a `WeightedLogit`, such as one by
    `jaxlb.design.lqr`. `log`: whether the dispatcher knows where it sent each job, and sees jobs
    arrive. If not, it knows the shares that it has drawn with; arrivals would tell it nothing.
    Static.

    **Returns:** a `FilteredLogit`, differentiable once. With `log` its gains sum to -1, without
    they are zero.

    **Raises:** `ValueError` on a bad argument. Traced, NaN.

    **Accuracy:** rounding with two stages; with more phases within 1e-9 of the Riccati equation
    solved in time. Gains of 50 stages sum to -1 within 1e-13, in float32 1e-5
    (`tests/design/test_kalman.py`).

    **Cost:** a Lyapunov equation for each of some 10 steps: on one core 1 ms with 2 stages,
    1.5 ms with 10, 4 ms with 50 (`experiments/benchmarks/design_costs.py`).

    **Source:** Kalman and Bucy (1961), Journal of Basic Engineering 83(1), 95-108; Kleinman (1968),
    IEEE Trans. Automatic Control 13(1), for Newton's method.
    """
    require_one(system)
    system.require_two_alike()
    _checks.kind("log", log, bool)
    delay = system.phase_delay("an estimate of jobs in each")
    routing = require_weights(system)
    # By default some devices multiply single precision in fewer bits.
    with jax.default_matmul_precision("highest"):
        gains = flagged(is_valid(system), _gains, system)
    gains = gains if log else 0 * gains
    return FilteredLogit(routing.sensitivity, routing.weights, gains, delay, log)


def require_weights(system: System) -> WeightedLogit:
    """The system's rule, if it is made for jobs in transit that are seen; else `ValueError`."""
    if not isinstance(system.routing, WeightedLogit):
        raise ValueError(
            "`routing` must be a WeightedLogit, made for phases that are seen, got "
            f"{type(system.routing).__name__}."
        )
    return system.routing


@eqx.filter_jit
def _gains(system: System) -> Float[Array, " phases"]:
    law: Any = system.delay
    # With it the error is a chain that starts again at each arrival: a stable one, since the number
    # in transit is known.
    start = jax.lax.stop_gradient(-law.initial.astype(jnp.result_type(*system.numbers)))
    if len(start) < 2:
        return start

    def go_on(state):
        k, gains, change = state
        # Then the next change is below rounding.
        close = jnp.sqrt(jnp.finfo(gains.dtype).eps) * jnp.max(jnp.abs(gains))
        return (k < MOST_STEPS) & (change > close)

    def step(state):
        k, gains, _ = state
        better, _ = _newton(held, gains)
        return k + 1, better, jnp.max(jnp.abs(better - gains))

    held = jax.lax.stop_gradient(system)
    _, gains, _ = jax.lax.while_loop(go_on, step, (0, start, jnp.full_like(start[0], jnp.inf)))
    # To first order the error does not change with the gains: this step has their derivatives.
    gains, ok = _newton(system, gains)
    return jnp.where(ok, gains, jnp.nan)


def _newton(
    system: System, gains: Float[Array, " phases"]
) -> tuple[Float[Array, " phases"], Bool[Array, ""]]:
    """Better gains, from the error with these; and whether that stays bounded."""
    law: Any = system.delay
    leave, arrivals = law.exit_rates().astype(gains.dtype), 2 * system.arrival_rate
    noise = imbalance_noise(system)
    noise, shared = noise[1:, 1:], noise[1:, 0]
    closed = law.generator.T - jnp.outer(gains, leave)
    crossed = jnp.outer(gains, shared)
    driven = noise + arrivals * (jnp.outer(gains, gains) - jnp.outer(law.initial, law.initial))
    driven = driven - crossed - crossed.T
    # Errors sum to zero, so that the last one is known from the others.
    error, ok = lyapunov(closed[:-1, :-1] - closed[:-1, -1:], driven[:-1, :-1])
    seen = error @ (leave[:-1] - leave[-1])
    return (jnp.append(seen, -jnp.sum(seen)) + shared) / arrivals, ok
