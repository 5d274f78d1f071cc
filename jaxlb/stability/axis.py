"""Search on the imaginary axis: a grid of frequencies, and zeros and minima of functions on it.

The grid of `frequency_grid` has steps of about a hundredth of the frequency, and equal ones of that
size at `linear` below it. Between two of its points a function is cut at its turning point, so that
two zeros there are not missed. That is enough for laws whose phase is smooth on such steps: a
mixture of fixed times that differ by a factor of a hundred is not.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..model.delays import AbstractDelay, AbstractPhaseDelay

POINTS = 2048
# How far the frequencies looked at reach beyond every rate of the system.
REACH = 1e8
# Re F(i y) >= 1 - 0.73 y, as cos x >= 1 - 0.73 x: below this it is positive, so that with `Logit`
# there is no root i y.
PAST = 1.36
# Zeros kept of each function, and steps to each.
KEPT = 32
STEPS = 20
# Finer grids about a minimum, each 7.5 times the one before.
ZOOMS = 9
ZOOM_POINTS = 16

Curve = Callable[[Float[Array, ""]], Float[Array, ""]]


def frequency_grid(first, linear, top) -> Float[Array, " points"]:
    """From `first` to `top`, in equal steps well below `linear` and equal ratios well above it."""
    span = jnp.arcsinh(top / linear)
    return first + linear * jnp.sinh(jnp.linspace(0.0, 1.0, POINTS, dtype=span.dtype) * span)


def fastest_rate(delay: AbstractDelay) -> Float[Array, ""]:
    """The largest rate of the law, 1/s."""
    slow = 1 / delay.mean
    if not isinstance(delay, AbstractPhaseDelay):
        return slow
    source, _ = delay.routes()
    return jnp.maximum(slow, jnp.max(delay.rates()[source > 0]))


def unit_grid(delay: AbstractDelay, first: float) -> Float[Array, " points"]:
    """From `first` on in y, frequency times mean delay."""
    return frequency_grid(first + 0 * delay.mean, 6.0, REACH * fastest_rate(delay) * delay.mean)


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

    # In the precision of the functions, whatever that of the grid.
    grid = grid.astype(jax.eval_shape(functions, grid[0]).dtype)
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
            return implicit(lambda w: functions(w)[number], at)

        at = jax.vmap(solve)(points[cell], points[after], positive[after], there)
        return Crossings(at, positive[after], there)

    return jax.vmap(of_one)(jnp.arange(values.shape[0]), values, slopes)


def _zero(function: Curve, low: Array, high: Array, up: Array) -> Array:
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


def implicit(function: Curve, at: Float[Array, ""]) -> Float[Array, ""]:
    """The zero `at` of `function`, with derivatives by the implicit function theorem.

    Nothing of them is compiled where none is asked for.
    """

    def move(slope, change):
        by_one = slope(jnp.ones_like(change))
        return jnp.where(by_one == 0, 0.0, change / jnp.where(by_one == 0, 1.0, by_one))

    return jax.lax.custom_root(function, at, lambda _, at: at, move)


def lowest(function: Curve, low: Array, high: Array) -> Array:
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

    return implicit(jax.grad(function), (low + high) / 2)
