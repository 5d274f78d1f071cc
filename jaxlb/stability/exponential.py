"""Exponential delay, L = 1: everything in closed form (section 4.3 of the paper)."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from .. import _checks
from ..model import imbalance
from ..model.delays import Erlang
from ..model.routing import Logit
from ..model.system import System, require_one
from . import domain


def exponential_roots(system: System) -> Complex[Array, " 2"]:
    """Both roots of equation (19), 1/s, the rightmost or upper one first.

    **Raises:** `ValueError` unless the delay is `Erlang` with one stage and the rule `Logit`.
    """
    _require_exponential(system)
    return _exponential_roots(system)


@domain.of_system
def _exponential_roots(system: System) -> Complex[Array, " 2"]:
    middle, squared, _ = _middle_squared_and_rate(system)
    double = squared == 0
    # The root's slope is infinite at zero; there the derivative is set to zero.
    half_gap = jnp.where(double, 0.0, jnp.sqrt(jnp.where(double, 1.0, squared) + 0j))
    return middle + half_gap * jnp.array([1, -1])


def exponential_imbalance(
    system: System, times: Any, queue: Any, in_transit: Any = 0.0
) -> Float[Array, " times"]:
    """Imbalance x(t) of the linear difference system with L = 1, jobs per unit of scale.

    exp(m t) [x_0 cosh(d t) + (gamma w_0 + (gamma - mu) x_0 / 2) sinh(d t) / d] with roots m +- d:
    the paper's formula for a complex pair, continued to real roots and to a double root.

    **Arguments:** `times`: s, increasing, shape (times,). `queue`, `in_transit`: x_0 and w_0, jobs
    per unit of scale.

    **Raises:** as `exponential_roots`, and on a bad time or start.
    """
    times = _checks.times("times", times)
    x, w = _checks.finite("queue", queue, "jobs"), _checks.finite("in_transit", in_transit, "jobs")
    _require_exponential(system)
    return _exponential_imbalance(system, times, x, w)


@domain.of_system
def _exponential_imbalance(system: System, times, x, w) -> Float[Array, " times"]:
    middle, squared, rate = _middle_squared_and_rate(system)
    push = rate * w + (rate - system.common_service_rate) * x / 2
    # cosh(d t) and sinh(d t) / d are smooth in d^2, which a square root is not: near the double
    # root by their series, elsewhere with exp((m + d) t) taken out so that nothing overflows.
    v = squared * times**2
    near = jnp.abs(v) < 0.1
    u = jnp.where(near, v, 0.0)
    series = x * _polynomial(u, 0) + push * times * _polynomial(u, 1)
    d = jnp.sqrt(jnp.where(near, 1.0, jnp.abs(squared)))
    grown = jnp.exp(d * times * jnp.where(squared > 0, -2, 0))
    real = (x * (1 + grown) + push * (1 - grown) / d) / 2
    turning = x * jnp.cos(d * times) + push * jnp.sin(d * times) / d
    exponent = middle * times + jnp.where(near | (squared < 0), 0.0, d * times)
    return jnp.exp(exponent) * jnp.where(near, series, jnp.where(squared > 0, real, turning))


def _polynomial(v: Float[Array, "..."], odd: int) -> Float[Array, "..."]:
    """cosh(sqrt(v)), or sinh(sqrt(v)) / sqrt(v) if `odd`, for abs(v) <= 0.1: to 1e-18."""
    powers = jnp.stack([v**n / math.factorial(2 * n + odd) for n in range(7)])
    return powers.sum(axis=0)


def _require_exponential(system: System) -> None:
    require_one(system)
    delay = system.delay
    if not (isinstance(delay, Erlang) and delay.stages == 1):
        raise ValueError(f"`delay` must be Erlang(mean, 1), got {delay!r}.")
    if not isinstance(system.routing, Logit):
        raise ValueError(f"`routing` must be Logit, got {type(system.routing).__name__}.")
    system.require_servers_alike()


def _middle_squared_and_rate(system: System):
    """Roots are `middle` +- the square root of `squared`; and gamma."""
    service, stage = system.common_service_rate, 1 / system.delay.mean
    gain = -imbalance.feedback(system)[0]
    return -(service + stage) / 2, ((service - stage) ** 2 - 4 * stage * gain) / 4, stage
