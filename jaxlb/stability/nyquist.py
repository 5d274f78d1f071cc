"""Stability boundary for any delay law, on the imaginary axis.

A search on a fixed grid of frequencies brackets every crossing, halving refines it, and two Newton
steps, which alone are differentiated, take it to rounding and give it its derivatives: by the
implicit function theorem, exact up to the third.

The grid of `frequency_grid` has steps of 0.05 / D near zero, growing to 0.8 % of the frequency, to
10^8 times the fastest rate. Between two points the curve is cut at its turning point, so that two
crossings there are not missed. That is enough for laws whose phase is smooth on such steps: a
mixture of fixed times that differ by a factor of a hundred is not.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from ..model import imbalance
from ..model.delays import AbstractDelay, AbstractPhaseDelay
from ..model.routing import Logit
from ..model.system import System
from .erlang_boundary import DelayWindow, HopfPoint

POINTS = 2048
# Crossings kept; a law that winds more often has its first ones first.
KEPT = 32
# Leaves 1e-11 of a grid interval, from where two steps of Newton reach rounding.
HALVINGS = 36

Curve = Callable[[Float[Array, ""]], Float[Array, ""]]


def hopf_point(system: System) -> HopfPoint:
    """Least gain, at a sensitivity of one times lambda, and its frequency.

    The loop at unit sensitivity is h(r) = g_x f(r) / (r + mu) + g_w . phi(r), and equation (17)
    theta h(r) = 1; so theta is one over the largest real h(i w) there is.
    """
    return _hopf_point_at(system, *_search_hopf_point(_constant(system)))


def delay_window(system: System) -> DelayWindow:
    """All crossings in the mean of a law of fixed shape, for `Logit`.

    With F the transform at unit mean a root i w at mean D, y = w D, has K Re F(i y) = -mu and
    D = y / (-K Im F(i y)); as D grows it moves right where -Re F grows with y and left where it
    falls. Counting both in the order of D tells where any root is on the right.
    """
    lower, upper, single = _search_window(_constant(system))
    return DelayWindow(_mean_at(system, *lower), _mean_at(system, *upper), single)


def safe_gain(system: System) -> Float[Array, ""]:
    """mu over the largest -Re F(i y) with Im F(i y) <= 0, for `Logit`.

    The largest is at a turning point of Re F or where Im F is zero.
    """
    return _safe_gain_at(system, *_search_worst(_constant(system.delay)))


# Each search is a program of its own, so that its derivatives compile without it.
@eqx.filter_jit
def _search_hopf_point(system: System):
    """Frequency, whether there is none, and whether it is zero."""
    rate = system.common_service_rate
    scale, top = 1 / system.delay.mean, 1e8 * jnp.maximum(fastest_rate(system.delay), rate)
    if isinstance(system.routing, Logit):
        # Re f(i w) >= 1 - 0.73 w D, as cos x >= 1 - 0.73 x, and on the boundary it is negative.
        grid = frequency_grid(1.36 * scale, 6 * scale, top)
    else:
        slow = jnp.minimum(scale, rate)
        grid = frequency_grid(1e-3 * slow, 6 * slow, top)
    brackets = _brackets(lambda w: _loop(system, w).imag, grid)
    w = _refine(lambda w: _loop(system, w).imag, brackets)
    h = jax.vmap(lambda w: _loop(system, w))(w).real
    # Below this, relative to lambda / |i w + mu|, rounding decides the sign.
    floor = 1e3 * jnp.finfo(h.dtype).eps * system.arrival_rate / jnp.hypot(w, rate)
    h = jnp.where(brackets.there & (h > floor), h, 0.0)
    best = jnp.argmax(h)
    still = _loop(system, 0.0 * scale).real
    real = (still > 0) & (still >= h[best])
    never = ~real & (h[best] <= 0)
    return jnp.where(never | real, scale, w[best]), never, real


@eqx.filter_jit
def _hopf_point_at(system: System, w, never, real) -> HopfPoint:
    w = _carry(lambda w: _loop(system, w).imag, w)
    w = jnp.where(real, 0.0, w)
    h = _loop(system, w).real
    theta = jnp.where(never, jnp.inf, 1 / jnp.where(never, 1.0, h))
    return HopfPoint(theta * system.arrival_rate, jnp.where(never, jnp.inf, w))


@eqx.filter_jit
def _search_window(system: System):
    """y = w D at either end and whether that end is there; whether there is one window only."""
    gain, rate, delay = _gain(system), system.common_service_rate, system.delay
    level = rate / jnp.where(gain > 0, gain, 1.0)

    def curve(y):
        return -_shape(delay, y).real - level

    brackets = _brackets(curve, _unit_grid(delay))
    y = _refine(curve, brackets)
    back = -jax.vmap(lambda y: _shape(delay, y))(y).imag
    there = brackets.there & (back > 0) & (gain > 0)
    order = jnp.argsort(jnp.where(there, y / jnp.where(there, back, 1.0), jnp.inf))
    y, there = y[order], there[order]
    on_the_right = jnp.cumsum(jnp.where(there, jnp.where(brackets.positive[order], -1, 1), 0))
    count = jnp.arange(len(order))
    first = jnp.argmax(on_the_right > 0)
    some = on_the_right[first] > 0
    calm = there & (count > first) & (on_the_right <= 0)
    last = jnp.argmax(calm)
    returns = some & calm[last]
    single = ~returns | ~jnp.any((count > last) & (on_the_right > 0))
    return (y[first], some), (y[last], returns), single


@eqx.filter_jit
def _mean_at(system: System, y, exists):
    def crossing(y):
        return -_shape(system.delay, y).real * _gain(system) - system.common_service_rate

    y = _carry(crossing, jnp.where(exists, y, 2.0))
    back = -_gain(system) * _shape(system.delay, y).imag
    return jnp.where(exists, y / jnp.where(exists, back, 1.0), jnp.inf)


@eqx.filter_jit
def _search_worst(delay: AbstractDelay):
    """The y of the largest -Re F(i y), whether it is a turning point, and whether there is none."""
    grid = _unit_grid(delay)

    def shape(y):
        return jax.jvp(lambda y: _shape(delay, y), (y,), (jnp.ones_like(y),))

    value, slope = jax.vmap(shape)(grid)
    turns, zeros = _changes(grid, slope.real > 0), _changes(grid, value.imag > 0)
    y = jnp.concatenate(
        [
            _refine(lambda y: shape(y)[1].real, turns),
            _refine(lambda y: shape(y)[0].imag, zeros),
        ]
    )
    depth = -jax.vmap(lambda y: _shape(delay, y))(y)
    turning = jnp.arange(len(y)) < KEPT
    # Where Im F is zero rounding must not decide whether it counts.
    there = jnp.concatenate([turns.there, zeros.there]) & (~turning | (depth.imag >= 0))
    depth = jnp.where(there, depth.real, 0.0)
    worst = jnp.argmax(depth)
    never = depth[worst] <= 1e3 * jnp.finfo(depth.dtype).eps
    return jnp.where(never, 2.0, y[worst]), turning[worst], never


@eqx.filter_jit
def _safe_gain_at(system: System, y, turning, never):
    def depth(y):
        return -_shape(system.delay, y).real

    # At a turning point the place does not matter to first order, but to second.
    turn = _carry(lambda y: _value_and_slope(depth, y)[1], y)
    flat = _carry(lambda y: _shape(system.delay, y).imag, y)
    worst = jnp.where(never, 1.0, depth(jnp.where(turning, turn, flat)))
    return jnp.where(never, jnp.inf, system.common_service_rate / worst)


def _constant(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


def _gain(system: System) -> Float[Array, ""]:
    return system.arrival_rate * system.routing.sensitivity  # pyright: ignore


def _loop(system: System, frequency: Float[Array, ""]) -> Complex[Array, ""]:
    """h(i w) at unit sensitivity."""
    r = jax.lax.complex(jnp.zeros_like(frequency), frequency)
    passed, delay = r + system.common_service_rate, system.delay
    if isinstance(system.routing, Logit):
        return -system.arrival_rate * delay.transform(r) / passed
    one = jnp.ones_like(system.arrival_rate)
    unit = eqx.tree_at(lambda s: s.routing.sensitivity, system, one)
    feedback = imbalance.feedback(unit)
    loop = feedback[0] * delay.transform(r) / passed
    if isinstance(delay, AbstractPhaseDelay):
        loop = loop + feedback[1:] @ delay.phase_transform(r)
    return loop


def _shape(delay: AbstractDelay, y: Float[Array, ""]) -> Complex[Array, ""]:
    """F(i y), the transform of the delay over its mean."""
    y = y / delay.mean
    return delay.transform(jax.lax.complex(jnp.zeros_like(y), y))


def fastest_rate(delay: AbstractDelay) -> Float[Array, ""]:
    """The largest rate of the law, 1/s."""
    slow = 1 / delay.mean
    if not isinstance(delay, AbstractPhaseDelay):
        return slow
    source, _ = delay.routes()
    return jnp.maximum(slow, jnp.max(delay.rates()[source > 0]))


def _unit_grid(delay: AbstractDelay) -> Float[Array, " points"]:
    """In y = w D; below 1.36 no law has a negative real part, see above."""
    return frequency_grid(1.36 + 0 * delay.mean, 6.0, 1e8 * fastest_rate(delay) * delay.mean)


def frequency_grid(first, linear, top) -> Float[Array, " points"]:
    """From `first` to `top`, in equal steps well below `linear` and equal ratios well above it."""
    span = jnp.arcsinh(top / linear)
    return first + linear * jnp.sinh(jnp.linspace(0.0, 1.0, POINTS, dtype=span.dtype) * span)


class _Brackets(NamedTuple):
    """Intervals at whose ends a curve has opposite signs: which are such, and the first sign."""

    left: Float[Array, " kept"]
    right: Float[Array, " kept"]
    positive: Bool[Array, " kept"]
    there: Bool[Array, " kept"]


def _value_and_slope(curve: Curve, x):
    return jax.jvp(curve, (x,), (jnp.ones_like(x),))


def _pick(chosen, *arrays):
    """Entries of each array at the first `KEPT` true places of `chosen`, and which are there."""
    (index,) = jnp.nonzero(chosen, size=KEPT, fill_value=0)
    return *(array[index] for array in arrays), jnp.arange(KEPT) < chosen.sum()


def _changes(grid, positive) -> _Brackets:
    change = positive[1:] != positive[:-1]
    left, right, side, there = _pick(change, grid[:-1], grid[1:], positive[:-1])
    return _Brackets(left, right, side, there)


def _brackets(curve: Curve, grid) -> _Brackets:
    """Intervals that hold one zero of `curve` each."""
    value, slope = jax.vmap(lambda x: _value_and_slope(curve, x))(grid)
    positive = value > 0
    # Towards zero at one end and away from it at the other: a pair of zeros may be inside.
    dips = (positive[1:] == positive[:-1]) & (value[:-1] * slope[:-1] < 0)
    dips = dips & (value[1:] * slope[1:] > 0)
    left, right, side, there = _pick(dips, grid[:-1], grid[1:], positive[:-1])
    turn = _refine(lambda x: _value_and_slope(curve, x)[1], _Brackets(left, right, ~side, there))
    there = there & ((jax.vmap(curve)(turn) > 0) != side)
    whole = _changes(grid, positive)
    before, after = _Brackets(left, turn, side, there), _Brackets(turn, right, ~side, there)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), whole, before, after)


def _refine(curve: Curve, brackets: _Brackets):
    """The zero of `curve` in each bracket, to 1e-11 of its width or rounding."""
    left, right, positive, _ = brackets

    def halve(state, _):
        left, right = state
        middle = (left + right) / 2
        same = (jax.vmap(curve)(middle) > 0) == positive
        return (jnp.where(same, middle, left), jnp.where(same, right, middle)), None

    left, right = jax.lax.scan(halve, (left, right), length=HALVINGS)[0]
    return (left + right) / 2


def _carry(curve: Curve, at):
    """The zero `at`, with the derivatives of the zero of `curve`."""
    at = jax.lax.stop_gradient(at)
    for _ in range(2):
        value, slope = jax.jvp(curve, (at,), (jnp.ones_like(at),))
        # Beyond a thousandth it was no zero, or a double one, which has no derivative.
        small = jnp.abs(value) < 1e-3 * jnp.abs(slope * at)
        at = at - jnp.where(small, value / jnp.where(small, slope, 1.0), 0.0)
    return at
