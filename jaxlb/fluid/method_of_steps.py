"""The method of steps: one delay equation by polynomials on windows that divide the delay.

    q_i'(t) = u_i(t - D) - mu_i q_i(t),    u(t) = inflow(q(t)), and `before` before time zero.

A delay is cut into windows of one length, so that the kinks of q, at multiples of D, are ends of
windows. On each, the inflow of one delay ago is known, as a polynomial through its Chebyshev nodes,
and q is the exact answer to it by variation of constants: a product with a matrix that all windows
share. Nothing is solved. What is under way, z_i' = u_i(t) - u_i(t - D), is integrated beside.

A window whose last Chebyshev coefficients are too large ends the try, and a next one begins with
more windows a delay. Their number is data, not shape: nothing recompiles.

Derivatives are those of all windows' equations, linearised about the solution and solved in one
sweep forward, or for reverse mode in one sweep back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox.internal import unvmap_any
from jaxtyping import Array, Bool, Float

from .windows import (
    COEFFICIENTS,
    DEGREE,
    KERNELS,
    NODES,
    POWERS,
    Windows,
    at_its_own_pace,
    inputs_of,
    offset_of,
    product,
    window,
    with_derivatives,
)

# Of the tolerance, for the last coefficients: the error is up to 0.8 times as large as they are.
SAFETY = 0.25


class Equation(eqx.Module):
    """`inflow`: from the queues at many times at once. `lag`: D, s. `rates`: mu, 1/s. `start`: q at
    time zero. `before`: inflow before time zero."""

    inflow: Callable[..., Any]
    lag: Float[Array, ""]
    rates: Float[Array, " servers"]
    start: Float[Array, " servers"]
    before: Float[Array, " servers"]


def solve(
    equation: Equation,
    times: Float[Array, " times"],
    possible: Bool[Array, ""],
    capacity: int,
    tolerances: tuple[Float[Array, ""], Float[Array, ""]],
) -> tuple[Float[Array, "times servers 3"], dfx.RESULTS]:
    """Jobs under way, q, and q one delay ago (there q at time zero if that is earlier).

    `possible`: without it nothing is tried. `capacity`: windows there is room for; static.
    `tolerances`: relative and absolute, of the last coefficients of a window. Infinite after a
    failure. Differentiable in `times` and in the numbers of `equation`, in both modes, and twice.
    """
    found, count = _trajectory(equation, times, possible, tolerances, capacity=capacity)
    fine = count > 0
    failure = dfx.RESULTS.where(possible, dfx.RESULTS.max_steps_reached, dfx.RESULTS.internal_error)
    result = dfx.RESULTS.where(fine, dfx.RESULTS.successful, failure)
    return jnp.where(fine, found, jnp.inf), result


@eqx.filter_custom_jvp
def _trajectory(equation, times, possible, tolerances, *, capacity: int):
    numbers, rest = eqx.partition(equation, eqx.is_array)

    def trajectory(numbers, times, possible, tolerances):
        equation = eqx.combine(numbers, rest)
        values, per_lag, count = _search(equation, times[-1], possible, capacity, tolerances)
        return _at(times, values, equation.lag, per_lag, count), count

    # Of a batch on a CPU the values of one member after another are in the same place.
    return at_its_own_pace(trajectory, numbers, times, possible, tolerances)


@_trajectory.def_jvp
def _trajectory_jvp(primals, tangents, *, capacity: int):
    return eqx.filter_jvp(partial(_by_values, capacity=capacity), primals, tangents)


def _by_values(equation, times, possible, tolerances, *, capacity: int):
    """As `_trajectory`, by differentiable values of all windows."""
    values, per_lag, count = _values(equation, times[-1], possible, tolerances, capacity=capacity)
    windows, offset = _windows(equation, per_lag), offset_of(per_lag, values)
    values = with_derivatives(windows, values, offset, count)
    return _at(times, values, equation.lag, per_lag, count), count


@eqx.filter_custom_jvp
def _values(equation, end, possible, tolerances, *, capacity: int):
    """What `_search` finds, without derivatives."""
    numbers, rest = eqx.partition(equation, eqx.is_array)

    def search(numbers, end, possible, tolerances):
        return _search(eqx.combine(numbers, rest), end, possible, capacity, tolerances)

    return at_its_own_pace(search, numbers, end, possible, tolerances)


@_values.def_jvp
def _values_jvp(primals, _, *, capacity: int):
    return _values(*primals, capacity=capacity), (None, None, None)


def _at(times, values, lag, per_lag, count):
    """What `solve` returns, from the values of windows."""
    position = times * per_lag / lag
    number = jnp.floor(jax.lax.stop_gradient(position))
    number = jnp.clip(number, 0, jnp.maximum(count - 1, 0))
    x = 2 * (position - number) - 1
    # Not by the barycentric formula, whose derivative at a node is wrong.
    series = [jnp.ones_like(x), x]
    for _ in range(DEGREE - 1):
        series.append(2 * x * series[-1] - series[-2])
    weights = jnp.stack(series, axis=1) @ COEFFICIENTS.astype(x.dtype)
    here = number.astype(jnp.int32)
    past = here - offset_of(per_lag, values)
    earlier = jnp.where((past < 0)[:, None, None], values[0, 2, :, :1], values[past, 2])
    seen = jnp.concatenate([values[here, 1:], earlier[:, None]], axis=1)
    return jnp.einsum("tk,tcsk->tsc", weights, seen)


def _windows(equation: Equation, per_lag: Array) -> Windows:
    length = equation.lag / per_lag
    scaled = (equation.rates * length)[:, None]
    terms = (-scaled) ** np.arange(POWERS)
    kernel = length * jnp.tensordot(terms, KERNELS.astype(terms.dtype), 1)
    decay = jnp.exp(-scaled * NODES.astype(terms.dtype))
    start = jnp.stack([jnp.zeros_like(equation.start), equation.start])
    return Windows(equation.inflow, kernel, decay, length, start, equation.before)


def _search(equation: Equation, end: Array, possible: Array, capacity: int, tolerances: Any) -> Any:
    """Values, windows a delay, and windows in use: none if there was no room."""

    def next_one(state):
        values, per_lag, count, trying = state
        wanted = jnp.maximum(jnp.ceil(end * per_lag / equation.lag), 1)
        fits = trying & (wanted <= capacity)
        wanted = jnp.where(fits, wanted, 0).astype(jnp.int32)
        values, excess = _sweep(_windows(equation, per_lag), values, per_lag, wanted, tolerances)
        fine = fits & (excess <= 1)
        # Before a series converges its tail falls more slowly than with the power of its degree.
        factor = jnp.clip(1.1 * excess ** (2 / DEGREE), 1.5, 6)
        more = jnp.ceil(per_lag * jnp.where(jnp.isfinite(excess), factor, 6))
        again = fits & ~fine
        return values, jnp.where(again, more, per_lag), jnp.where(fine, wanted, count), again

    # So many that mu times a window's length is at most one.
    least = jnp.maximum(jnp.ceil(equation.lag * equation.rates.max()), 1)
    values = jnp.zeros((capacity, 3, *equation.start.shape, DEGREE + 1), equation.lag.dtype)
    start = values, jnp.where(possible, least, 1), jnp.zeros((), jnp.int32), possible
    return jax.lax.while_loop(lambda state: unvmap_any(state[3]), next_one, start)[:3]


def _sweep(windows: Windows, values: Array, per_lag: Array, count: Array, tolerances: Any) -> Any:
    """Values of the first `count` windows, up to one whose tail is too large, and by what factor
    it is; none are touched if `count` is zero."""
    rtol, atol = tolerances
    offset = offset_of(per_lag, values)

    def going(number, excess):
        return (number < count) & (excess <= 1)

    def step(state):
        number, values, excess = state
        # All is read, once, before any is written: so it is written in place.
        read = *inputs_of(windows, values, number, offset), values[number]
        ends, delayed, old = jax.lax.optimization_barrier(read)
        new = window(windows, ends, delayed)
        tail = jnp.abs(product(new[1:], COEFFICIENTS[-2:].T)).max(axis=(1, 2))
        size = jnp.abs(new[1:]).max(axis=(1, 2))
        found = (tail / (SAFETY * (atol + rtol * size))).max()
        alive = going(number, excess)
        values = values.at[number].set(jnp.where(alive, new, old))
        return number + 1, values, jnp.where(alive, found, excess)

    start = jnp.zeros((), jnp.int32), values, jnp.zeros_like(rtol)
    # A condition for the whole batch: one for each member would copy all values at each step.
    _, values, excess = jax.lax.while_loop(
        lambda state: unvmap_any(going(state[0], state[2])), step, start
    )
    return values, excess
