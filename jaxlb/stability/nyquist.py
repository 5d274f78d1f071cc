"""Boundary in the gain, for any delay law, by a search on the imaginary axis.

Zeros are found with all held constant; the one that counts is then differentiated by the implicit
function theorem. The two are programs of their own, so that derivatives compile without the search.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from ..model.delays import AbstractDelay
from ..model.routing import Logit
from ..model.system import System
from . import loop
from .axis import KEPT, PAST, REACH, crossings, fastest_rate, frequency_grid, implicit, unit_grid
from .erlang_boundary import HopfPoint
from .residual import hold


def hopf_point(system: System) -> HopfPoint:
    """Least gain, at a sensitivity of one times lambda, and its frequency.

    The loop at unit sensitivity is h(r) = g_x f(r) / (r + mu) + g_w . phi(r), and equation (17)
    theta h(r) = 1; so theta is one over the largest real h(i w) there is.
    """
    unit = eqx.tree_at(lambda s: s.routing.sensitivity, system, jnp.ones_like(system.arrival_rate))
    return _hopf_point_at(unit, *_search_hopf_point(hold(unit)))


def safe_gain(system: System) -> Float[Array, ""]:
    """mu over the largest -Re F(i y) with Im F(i y) <= 0, for `Logit`.

    The largest is at a turning point of Re F or where Im F is zero.
    """
    return _safe_gain_at(system, *_search_worst(hold(system)))


@eqx.filter_jit
def _search_hopf_point(unit: System):
    """Frequency, whether there is none, and whether it is zero."""
    rate = unit.common_service_rate
    scale, top = 1 / unit.delay.mean, REACH * jnp.maximum(fastest_rate(unit.delay), rate)
    if isinstance(unit.routing, Logit):
        grid = frequency_grid(PAST * scale, 6 * scale, top)
    else:
        slow = jnp.minimum(scale, rate)
        grid = frequency_grid(1e-3 * slow, 6 * slow, top)
    found = crossings(lambda w: _unit_loop(unit, w).imag[None], grid)
    w = found.at[0]
    h = jax.vmap(lambda w: _unit_loop(unit, w))(w).real
    # Below this, relative to lambda / |i w + mu|, rounding decides the sign.
    floor = loop.ROUNDINGS * jnp.finfo(h.dtype).eps * unit.arrival_rate / jnp.hypot(w, rate)
    h = jnp.where(found.there[0] & (h > floor), h, 0.0)
    best = jnp.argmax(h)
    still = _unit_loop(unit, 0.0 * scale).real
    real = (still > 0) & (still >= h[best])
    never = ~real & (h[best] <= 0)
    return jnp.where(never | real, scale, w[best]), never, real


@eqx.filter_jit
def _hopf_point_at(unit: System, w, never, real) -> HopfPoint:
    w = implicit(lambda w: _unit_loop(unit, w).imag, w)
    w = jnp.where(real, 0.0, w)
    h = _unit_loop(unit, w).real
    gain = unit.arrival_rate / jnp.where(never, 1.0, h)
    return HopfPoint(jnp.where(never, jnp.inf, gain), jnp.where(never, jnp.inf, w))


def _unit_loop(unit: System, frequency: Float[Array, ""]) -> Complex[Array, ""]:
    """h(i w), of a system of unit sensitivity."""
    return -loop.on_axis(unit, frequency)


@eqx.filter_jit
def _search_worst(system: System):
    """The y of the largest -Re F(i y), whether it is a turning point, and whether there is none."""
    delay = system.delay

    def conditions(y):
        value, slope = _value_and_slope(delay, y)
        return jnp.stack([slope.real, value.imag])

    found = crossings(conditions, unit_grid(delay, PAST))
    depth = -jax.vmap(jax.vmap(lambda y: _shape(delay, y)))(found.at)
    # Where Im F is zero rounding must not decide whether it counts.
    reached = jnp.stack([depth[0].imag >= 0, jnp.ones(KEPT, bool)])
    depth = jnp.where(found.there & reached, depth.real, 0.0)
    worst = jnp.argmax(depth)
    never = depth.ravel()[worst] <= loop.ROUNDINGS * jnp.finfo(depth.dtype).eps
    return jnp.where(never, 2.0, found.at.ravel()[worst]), worst < KEPT, never


@eqx.filter_jit
def _safe_gain_at(system: System, y, turning, never):
    delay = system.delay
    # At a turning point the place does not matter to first order, but to second.
    turn = implicit(lambda y: _value_and_slope(delay, y)[1].real, y)
    flat = implicit(lambda y: _shape(delay, y).imag, y)
    depth = -_shape(delay, jnp.where(turning, turn, flat)).real
    worst = jnp.where(never, 1.0, depth)
    return jnp.where(never, jnp.inf, system.common_service_rate / worst)


def _value_and_slope(delay: AbstractDelay, y: Float[Array, ""]) -> Any:
    return jax.jvp(lambda y: _shape(delay, y), (y,), (jnp.ones_like(y),))


def _shape(delay: AbstractDelay, y: Float[Array, ""]) -> Complex[Array, ""]:
    """F(i y), the transform of the delay over its mean."""
    y = y / delay.mean
    return delay.transform(jax.lax.complex(jnp.zeros_like(y), y))
