"""Exponential delay, L = 1: everything in closed form (section 4.3 of the paper)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from .. import _checks
from ..model import imbalance
from ..model.delays import Erlang
from ..model.routing import Logit
from ..model.system import System


def exponential_roots(system: System) -> Complex[Array, " 2"]:
    """Both roots of equation (19), 1/s, the rightmost or upper one first.

    **Raises:** `ValueError` unless the delay is `Erlang` with one stage and the rule `Logit`.
    """
    middle, half_gap, _ = _middle_half_gap_and_rate(system)
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
    middle, half_gap, rate = _middle_half_gap_and_rate(system)
    # With exp((m + d) t) taken out nothing overflows; at the double root sinh(d t) / d is t.
    double = half_gap == 0
    gap = jnp.where(double, 1.0, half_gap)
    cosine = (1 + jnp.exp(-2 * half_gap * times)) / 2
    sine = jnp.where(double, times, -jnp.expm1(-2 * gap * times) / (2 * gap))
    push = rate * w + (rate - system.common_service_rate) * x / 2
    return (jnp.exp((middle + half_gap) * times) * (x * cosine + push * sine)).real


def _middle_half_gap_and_rate(system: System):
    delay = system.delay
    if not (isinstance(delay, Erlang) and delay.stages == 1):
        raise ValueError(f"`delay` must be Erlang(mean, 1), got {delay!r}.")
    if not isinstance(system.routing, Logit):
        raise ValueError(f"`routing` must be Logit, got {type(system.routing).__name__}.")
    service, stage = system.common_service_rate, delay.stage_rate
    gain = -imbalance.feedback(system)[0]
    squared = ((service - stage) ** 2 - 4 * stage * gain) / 4
    zero = squared == 0
    # The root's slope is infinite at zero; there the derivative is set to zero.
    root = jnp.sqrt(jnp.where(zero, 1.0, squared) + 0j)
    return -(service + stage) / 2, jnp.where(zero, 0.0, root), stage
