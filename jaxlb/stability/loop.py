"""The feedback loop on the imaginary axis: its gain at each frequency, and where it crosses.

Cut where the routed inflow leaves the dispatcher, the linearised difference mode is a loop of gain

    G(r) = -(g_x f(r) + (r + mu) g_w . phi(r)) / (r + mu),

with f, phi and g as in `jaxlb.stability.spectrum`; lambda theta f(r) / (r + mu) for the paper's
rule. Its roots solve 1 + G(r) = 0. Without feedback it is stable, so that roots reach the right
half plane only through the imaginary axis.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float, Inexact

from ..model import imbalance
from ..model.delays import AbstractPhaseDelay, NoDelay
from ..model.routing import Logit
from ..model.system import System
from . import nyquist

# How far the frequencies looked at reach beyond every rate of the system.
REACH = 1e8
# Real parts of G below this many roundings of it may have any sign.
ROUNDINGS = 1e3
# Zeros kept of each function, and steps to each.
KEPT = 32
STEPS = 20
# Finer grids about a minimum, each 7.5 times the one before.
ZOOMS = 9
ZOOM_POINTS = 16


def open_loop(system: System, root: Inexact[Array, ""]) -> Complex[Array, ""]:
    """Gain G of the feedback loop at complex `root`, 1/s: dimensionless; 1 + G is zero at a root.

    On the imaginary axis it is the Nyquist curve.

    **Raises:** `ValueError` unless there are two or more servers of one service rate.
    """
    system.require_two_alike()
    delay, service = system.delay, root + system.common_service_rate
    gain = feedback(system)
    return -gain[0] * delay.transform(root) / service - transit_gain(system, gain, root)


def transit_gain(
    system: System, gain: Float[Array, " modes"], root: Inexact[Array, ""]
) -> Complex[Array, ""]:
    """g_w . phi at `root`, dimensionless, from the feedback `gain` of the system's rule."""
    if isinstance(system.delay, AbstractPhaseDelay) and gain.size > 1:
        return gain[1:] @ system.delay.phase_transform(root)
    return jnp.zeros_like(root, jnp.result_type(root, jnp.complex64))


def on_axis(system: System, frequency: Float[Array, ""]) -> Complex[Array, ""]:
    """G at i times `frequency`, rad/s."""
    return open_loop(system, jax.lax.complex(jnp.zeros_like(frequency), frequency))


def frequencies(system: System) -> Float[Array, " points"]:
    """Frequencies, rad/s, from a thousandth of the slower of service and delay to beyond all."""
    service, gain = system.common_service_rate, jnp.abs(feedback(system)[0])
    slow, fast = service, jnp.maximum(service, gain)
    if not isinstance(system.delay, NoDelay):
        slow = jnp.minimum(slow, 1 / system.delay.mean)
        fast = jnp.maximum(fast, nyquist.fastest_rate(system.delay))
    return jax.lax.stop_gradient(nyquist.frequency_grid(1e-3 * slow, 6 * slow, REACH * fast))


def feedback(system: System) -> Float[Array, " modes"]:
    """As `jaxlb.model.imbalance.feedback`, g_x alone for the paper's rule: any delay will do."""
    if isinstance(system.routing, Logit):
        return -(system.arrival_rate * system.routing.sensitivity)[None]
    return imbalance.feedback(system)


class Crossings(NamedTuple):
    """Where each of some functions is zero: frequency, whether it rises there, whether it is one.

    The first `KEPT` of each, in order.
    """

    at: Float[Array, "functions kept"]
    rising: Bool[Array, "functions kept"]
    there: Bool[Array, "functions kept"]


def crossings(
    functions: Callable[[Float[Array, ""]], Float[Array, " functions"]],
    grid: Float[Array, " points"],
) -> Crossings:
    """The zeros of `functions` between points of `grid` with different signs, differentiable.

    Between two points the functions are cut at a turning point, so that two zeros there are seen.
    All functions are refined by one loop, so that what they have in common is compiled once.
    """

    def sloped(w):
        return jax.jvp(functions, (w,), (jnp.ones_like(w),))

    values, slopes = jax.lax.stop_gradient(jax.vmap(sloped, out_axes=1)(grid))

    def of_one(number, values, slopes):
        # Towards zero at one end and away from it at the other.
        falls, grows = values * slopes < 0, values * slopes > 0
        same = (values[1:] > 0) == (values[:-1] > 0)
        (dip,) = jnp.nonzero(same & falls[:-1] & grows[1:], size=KEPT, fill_value=0)
        turn = jax.vmap(lambda *cell: _zero(lambda w: sloped(w)[1][number], *cell))(
            grid[dip], grid[dip + 1], slopes[dip + 1] > 0
        )
        turned = jax.vmap(lambda w: functions(w)[number])(turn)
        points, positive = jnp.append(grid, turn), jnp.append(values, turned) > 0
        order = jnp.argsort(points)
        points, positive = points[order], positive[order]
        last = points.size - 1
        (cell,) = jnp.nonzero(positive[1:] != positive[:-1], size=KEPT, fill_value=last)
        there, after = cell < last, jnp.minimum(cell + 1, last)

        def solve(low, high, up, there):
            at = _zero(lambda w: functions(w)[number], low, high, up)
            at = jax.lax.stop_gradient(jnp.where(there, at, low))
            return _implicit(lambda w: functions(w)[number], at)

        at = jax.vmap(solve)(points[cell], points[after], positive[after], there)
        return Crossings(at, positive[after], there)

    return jax.vmap(of_one)(jnp.arange(values.shape[0]), values, slopes)


def _zero(function: nyquist.Curve, low: Array, high: Array, up: Array) -> Array:
    """The zero between two points, `up` telling the sign at `high`: Newton, kept in between."""

    def step(_, state):
        low, high, at = state
        value, slope = jax.lax.stop_gradient(jax.jvp(function, (at,), (jnp.ones_like(at),)))
        after = (value > 0) == up
        low, high = jnp.where(after, low, at), jnp.where(after, at, high)
        newton = at - value / jnp.where(slope == 0, 1.0, slope)
        inside = (newton >= low) & (newton <= high) & (slope != 0)
        return low, high, jnp.where(inside, newton, (low + high) / 2)

    start = jax.lax.stop_gradient((low, high, (low + high) / 2))
    return jax.lax.fori_loop(0, STEPS, step, start)[2]


def _implicit(function: nyquist.Curve, at: Float[Array, ""]) -> Float[Array, ""]:
    """The zero `at` of `function`, with derivatives by the implicit function theorem.

    Nothing of them is compiled where none is asked for.
    """

    def move(slope, change):
        by_one = slope(jnp.ones_like(change))
        return jnp.where(by_one == 0, 0.0, change / jnp.where(by_one == 0, 1.0, by_one))

    return jax.lax.custom_root(function, at, lambda _, at: at, move)


def lowest(function: nyquist.Curve, low: Array, high: Array) -> Array:
    """Where `function` is least between two points, by ever finer grids, differentiable.

    The function has one minimum between the points. Values alone give its place to the root of
    rounding. Grids, because a device takes their points at once, and because the function is
    compiled only once.
    """
    low, high = jax.lax.stop_gradient((low, high))

    def zoom(_, ends):
        points = jnp.linspace(ends[0], ends[1], ZOOM_POINTS)
        best = jnp.argmin(jax.vmap(function)(points))
        return points[jnp.maximum(best - 1, 0)], points[jnp.minimum(best + 1, ZOOM_POINTS - 1)]

    low, high = jax.lax.stop_gradient(jax.lax.fori_loop(0, ZOOMS, zoom, (low, high)))

    return _implicit(jax.grad(function), (low + high) / 2)
