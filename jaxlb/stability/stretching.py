"""Mean delays at which a root is on the imaginary axis, the law keeping its shape; any rule.

With the mean delay s times what it is and v = s times the frequency, a root i v / s solves

    H(i v, s) = (i v + mu s) (1 - s g_w . phi(i v)) - s g_x f(i v) = 0,

f, phi and g being those of the system as it is. The two real parts are quadratic in s; where their
resultant, a function of v alone, is zero, they have an s in common. As s grows the root moves right
if -H_s / H_r does. Without delay there is one root, g_x - mu: counting from there in the order of s
tells where any is on the right.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from ..model.delays import NoDelay
from ..model.routing import Logit
from ..model.system import System
from . import loop
from .axis import PAST, crossings, implicit, unit_grid
from .erlang_boundary import DelayWindow
from .residual import hold


class DelayCrossings(NamedTuple):
    """Mean delays at which balance loses or regains stability, s, in order.

    Where there are no more: infinity. `unstable`: whether balance is unstable between that mean and
    the next.
    """

    mean: Float[Array, " crossings"]
    unstable: Bool[Array, " crossings"]


class _Events(NamedTuple):
    """Changes of stability in the order of the mean: v, zero for a real root; whether each is
    there; whether balance is unstable after it. And whether it is unstable without delay."""

    v: Float[Array, " crossings"]
    there: Bool[Array, " crossings"]
    unstable: Bool[Array, " crossings"]
    at_once: Bool[Array, ""]


def delay_crossings(system: System) -> DelayCrossings:
    """All changes of stability among the first 32 crossings, and that of a real root."""
    if isinstance(system.delay, NoDelay):
        never = jnp.full(1, jnp.inf, system.arrival_rate.dtype)
        return DelayCrossings(never, jnp.zeros(1, bool))
    events = _search(hold(system))
    return DelayCrossings(_means_at(system, events.v, events.there), events.unstable)


def delay_window(system: System) -> DelayWindow:
    """The first window of instability, and whether it is the only one."""
    if isinstance(system.delay, NoDelay):
        unstable = loop.feedback(system)[0] > system.common_service_rate
        never = jnp.full_like(system.common_service_rate, jnp.inf)
        return DelayWindow(jnp.where(unstable, 0.0, never), never, jnp.ones((), bool))
    events = _search(hold(system))
    means = _means_at(system, events.v[:3], events.there[:3])
    # Unstable without delay, the window starts at zero.
    from_zero = jnp.append(jnp.zeros_like(means[:1]), means[:2])
    lower, upper, beyond = jnp.where(events.at_once, from_zero, means)
    return DelayWindow(lower, upper, jnp.isinf(beyond))


@eqx.filter_jit
def _search(system: System) -> _Events:
    gain, service = loop.feedback(system), system.common_service_rate
    grid = unit_grid(system.delay, PAST if isinstance(system.routing, Logit) else 1e-3)
    grid = grid / system.delay.mean
    pairs = crossings(lambda v: _resultant(system, v)[None], grid)
    v = jnp.append(pairs.at[0], 0.0)
    there = jnp.append(pairs.there[0], True)
    factor, sure = jax.vmap(lambda v: _factor(system, v))(v)
    there = there & sure & (factor > 0) & jnp.isfinite(factor)
    factor = jnp.where(there, factor, jnp.inf)
    rising = jax.vmap(lambda v, s: _rise(system, v, s) > 0)(v, jnp.where(there, factor, 1.0))
    order = jnp.argsort(factor)
    v, there = v[order], there[order]
    roots = jnp.where(v > 0, 2, 1)
    at_once = gain[0] > service
    count = jnp.where(at_once, 1, 0) + jnp.cumsum(
        jnp.where(there, jnp.where(rising[order], roots, -roots), 0)
    )
    unstable = count > 0
    before = jnp.append(at_once, unstable[:-1])
    (chosen,) = jnp.nonzero(there & (unstable != before), size=v.size, fill_value=v.size - 1)
    changes = jnp.arange(v.size) < jnp.sum(there & (unstable != before))
    return _Events(v[chosen], changes, unstable[chosen] & changes, at_once)


@eqx.filter_jit
def _means_at(system: System, v: Float[Array, " n"], there: Bool[Array, " n"]):
    """The mean at each crossing, differentiable, infinity where there is none."""

    def at_one(v, there):
        turning = there & (v > 0)
        place = implicit(lambda v: _resultant(system, v), jnp.where(turning, v, 1.0))
        factor, _ = _factor(system, jnp.where(turning, place, 0.0))
        return jnp.where(there, jnp.where(there, factor, 1.0) * system.delay.mean, jnp.inf)

    return jax.vmap(at_one)(v, there)


def _responses(system: System, r: Complex[Array, ""]) -> tuple[Array, Array]:
    """f and g_w . phi at complex r."""
    return system.delay.transform(r), loop.transit_gain(system, loop.feedback(system), r)


def _quadratics(system: System, v: Float[Array, ""]):
    """H / s as square s + linear + i v / s, for v > 0; and whether the rule ignores transit."""
    gain, service = loop.feedback(system), system.common_service_rate
    r = jax.lax.complex(jnp.zeros_like(v), v)
    f, seen = _responses(system, r)
    return -service * seen, service - r * seen - gain[0] * f, jnp.all(gain[1:] == 0)


def _resultant(system: System, v: Float[Array, ""]) -> Float[Array, ""]:
    square, linear, blind = _quadratics(system, v)
    p2, q2, p1, q1 = square.real, square.imag, linear.real, linear.imag
    # Where the rule ignores jobs in transit both parts are linear.
    return jnp.where(blind, p1, p2 * p2 * v + p1 * (q2 * p1 - p2 * q1))


def _factor(system: System, v: Float[Array, ""]) -> tuple[Array, Array]:
    """s where the resultant is zero, or for a real root; and whether more than rounding tells."""
    pair = v > 0
    v = jnp.where(pair, v, 1.0)
    square, linear, blind = _quadratics(system, v)
    p2, q2, p1, q1 = square.real, square.imag, linear.real, linear.imag
    top, bottom = jnp.where(blind, -v, p2 * v), jnp.where(blind, q1, q2 * p1 - p2 * q1)
    rounding = loop.ROUNDINGS * jnp.finfo(v.dtype).eps
    sure = blind | ~pair | (jnp.abs(p2) > rounding * jnp.abs(q2))
    # At r = 0, mu (1 - s g_w . phi) = g_x.
    _, seen = _responses(system, jnp.zeros_like(v) + 0j)
    service = system.common_service_rate
    top = jnp.where(pair, top, service - loop.feedback(system)[0])
    bottom = jnp.where(pair, bottom, service * seen.real)
    return jnp.where(bottom == 0, 0.0, top / jnp.where(bottom == 0, 1.0, bottom)), sure


def _rise(system: System, v: Float[Array, ""], s: Float[Array, ""]) -> Float[Array, ""]:
    """Re dr / ds of the root at i v."""
    gain, service = loop.feedback(system), system.common_service_rate

    def balance(r, s):
        f, seen = _responses(system, r)
        return (r + service * s) * (1 - s * seen) - s * gain[0] * f

    r, s = jax.lax.complex(jnp.zeros_like(v), v), s + 0j
    one, zero = jnp.ones_like(r), jnp.zeros_like(r)
    _, by_r = jax.jvp(balance, (r, s), (one, zero))
    _, by_s = jax.jvp(balance, (r, s), (zero, one))
    return -(by_s * by_r.conj()).real
