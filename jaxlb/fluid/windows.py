"""Windows of the method of steps (`jaxlb.fluid.method_of_steps`), and how their values change.

`values` hold the inflow, the jobs under way and q at the Chebyshev nodes of each window. Each
window follows from the end of the last one and the inflow of one delay ago.
"""

import math
import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox.internal import unvmap_max
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int
from numpy.polynomial import chebyshev

# Of the polynomials: with 12 a third more windows are needed, with 24 a fifth fewer.
DEGREE = 16
# Powers kept of mu times a window's length, which is at most one.
POWERS = 20


class Windows(eqx.Module):
    """What one window needs, beside the inflow of a delay ago and the end of the last window."""

    inflow: Callable[..., Any]
    kernel: Float[Array, "servers nodes nodes"]
    decay: Float[Array, "servers nodes"]
    length: Float[Array, ""]
    start: Float[Array, "2 servers"]
    before: Float[Array, " servers"]


def window(windows: Windows, ends: Array, delayed: Array) -> Float[Array, "3 servers nodes"]:
    """Values on a window from the inflow of a delay ago; `ends`: of the last window."""
    under_way, queue = ends[..., None]
    queue = queue * windows.decay + product(delayed, windows.kernel)
    inflow = windows.inflow(jax.lax.optimization_barrier(queue))
    # Else they are made again for each of their uses.
    queue, inflow = jax.lax.optimization_barrier((queue, inflow))
    gained = product(inflow - delayed, KERNELS[0])
    return jnp.stack([inflow, under_way + windows.length * gained, queue])


def product(values: Array, matrix: Any) -> Array:
    """Of the last axis with a small matrix, written out: a library's costs several times more."""
    matrix = matrix.astype(values.dtype)
    terms = [values[..., k, None] * matrix[..., k, :] for k in range(DEGREE + 1)]
    return reduce(operator.add, terms)


def inputs_of(windows: Windows, values: Array, number: Array, offset: Array) -> tuple[Array, Array]:
    """What `window` needs for the window of this number; linear in the first two."""
    last = values[jnp.maximum(number - 1, 0), 1:, :, -1]
    delayed = values[jnp.maximum(number - offset, 0), 0]
    delayed = jnp.where(number < offset, windows.before[:, None], delayed)
    return jnp.where(number == 0, windows.start, last), delayed


def offset_of(per_lag: Array, values: Array) -> Int[Array, ""]:
    """Windows a delay as an integer, or as many as there is room for."""
    return jnp.minimum(per_lag, len(values)).astype(jnp.int32)


def at_its_own_pace(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`; of a batch on a CPU one member after another, each in so many steps
    as it needs, which is there twelve times as fast as in step with the slowest."""
    return jax.lax.platform_dependent(
        *arguments, cpu=jax.custom_batching.sequential_vmap(function), default=function
    )


@eqx.filter_custom_jvp
def with_derivatives(_windows: Windows, values: Array, *_: Array) -> Array:
    """`values`, as a differentiable function of the windows; then offset and count of windows."""
    return values


@with_derivatives.def_jvp
def _with_derivatives_jvp(primals, tangents):
    windows, values, offset, count = primals
    # Called once more, so that the tangent has derivatives of its own.
    values = with_derivatives(windows, values, offset, count)
    numbers, rest = eqx.partition(windows, eqx.is_inexact_array)
    moved = jax.tree.map(
        lambda number, move: jnp.zeros_like(number) if move is None else move,
        numbers,
        tangents[0],
    )
    return values, _moves(numbers, rest, (values, offset, count), moved)


def _moves(numbers: Windows, rest: Windows, found: tuple, moved: Windows) -> Array:
    """Change of the values when the numbers of the windows change by `moved`.

    Unknown are the changes of values and numbers together, so that the numbers' part in each window
    is met, or in reverse mode summed, within the sweep. They are one array: of several, JAX could
    not transpose those that happen to be constant.
    """
    right, unpacked = ravel_pytree((jnp.zeros_like(found[0]), moved))

    def equations(unknowns):
        values, _, count = found
        move, moved = unpacked(unknowns)
        number = jnp.arange(len(values))
        moves = jax.vmap(lambda n: _change(numbers, rest, found, (move, moved), n))(number)
        known = jnp.where((number < count)[:, None, None, None], moves, 0)
        return ravel_pytree((move - known, moved))[0]

    def sweep(by, _, right):
        def swept(numbers, found, right):
            return ravel_pytree(by(rest, numbers, found, unpacked(right)))[0]

        return at_its_own_pace(swept, numbers, found, right)

    forward, back = partial(sweep, _forward), partial(sweep, _back)
    return unpacked(jax.lax.custom_linear_solve(equations, right, forward, back))[0]


def _change(numbers: Windows, rest: Windows, found: tuple, moves: tuple, number: Array) -> Array:
    """Of one window's values, by those of earlier ones and by the numbers."""
    values, offset, _ = found
    move, moved = moves
    at = inputs_of(numbers, values, number, offset)
    by = jax.lax.optimization_barrier(inputs_of(moved, move, number, offset))
    return jax.jvp(partial(_window_of, rest), (numbers, *at), (moved, *by))[1]


def _window_of(rest: Windows, numbers: Windows, ends: Array, delayed: Array) -> Array:
    return window(eqx.combine(numbers, rest), ends, delayed)


def _forward(rest: Windows, numbers: Windows, found: tuple, right: tuple) -> tuple:
    """Solution of the linear equations of `_moves`, window by window."""
    _, _, count = found

    def step(number, move):
        old = jax.lax.optimization_barrier(move[number])
        new = old + _change(numbers, rest, found, (move, right[1]), number)
        return move.at[number].set(jnp.where(number < count, new, old))

    return jax.lax.fori_loop(0, unvmap_max(count), step, right[0]), right[1]


def _back(rest: Windows, numbers: Windows, found: tuple, right: tuple) -> tuple:
    """Solution of the transposed equations, from the last window to the first."""
    values, offset, count = found
    last = unvmap_max(count) - 1

    def step(i, carry):
        number = last - i
        move, moved, ends = carry
        past = jnp.maximum(number - offset, 0)
        earlier, whole = jax.lax.optimization_barrier((move[past, 0], move[number]))
        whole = whole.at[1:, :, -1].add(ends)
        pull = jnp.where(number < count, whole, 0)
        at = numbers, *inputs_of(numbers, values, number, offset)
        by_numbers, ends, delayed = jax.vjp(partial(_window_of, rest), *at)[1](pull)
        first = number < offset
        begun = jnp.where(first, delayed.sum(axis=1), 0)
        # Of the first delay there is no earlier window: what is written there is what was.
        earlier = jnp.where(first, jnp.where(number == 0, whole[0], earlier), earlier + delayed)
        move = move.at[number].set(whole).at[past, 0].set(earlier)
        moved = jax.tree.map(jnp.add, moved, by_numbers)
        return move, eqx.tree_at(lambda w: w.before, moved, moved.before + begun), ends

    carry = *right, jnp.zeros_like(right[1].start)
    move, moved, ends = jax.lax.fori_loop(0, last + 1, step, carry)
    return move, eqx.tree_at(lambda w: w.start, moved, moved.start + ends)


def _static() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes c_i on [0, 1]; the matrix from values to Chebyshev coefficients; and the integrals

        kernels[n, k, i] = integral from 0 to c_i of (c_i - s)^n / n! l_k(s) ds,

    where the polynomial l_k is one at its node and zero at the others."""
    nodes = (1 - np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)) / 2
    coefficients = np.linalg.inv(chebyshev.chebvander(2 * nodes - 1, DEGREE))
    points, weights = np.polynomial.legendre.leggauss(DEGREE + POWERS)
    at = nodes[:, None] * (1 + points) / 2
    basis = chebyshev.chebvander(2 * at - 1, DEGREE) @ coefficients
    powers = np.stack([(nodes[:, None] - at) ** n / math.factorial(n) for n in range(POWERS)])
    kernels = np.einsum("nij,j,i,ijk->nki", powers, weights / 2, nodes, basis)
    return nodes, coefficients, kernels


NODES, COEFFICIENTS, KERNELS = _static()
