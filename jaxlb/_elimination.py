"""Linear equations by elimination, in operations that every device fuses and batches.

The library routine, faster for a large matrix, takes those of more than `SMALL` unknowns, one at a
time: with JAX 0.10 on a machine of two cores, two batches in one program that do not wait for each
other wait for ever.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Inexact

SMALL = 32


def solve(
    matrix: Inexact[Array, "n n"], right: Inexact[Array, "n *columns"]
) -> Inexact[Array, "n *columns"]:
    """x with `matrix` x = `right`, differentiable; not finite where `matrix` is singular."""
    dtype = jnp.result_type(matrix, right)
    matrix, right = matrix.astype(dtype), right.astype(dtype)
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x,
        right,
        lambda _, b: _eliminate(matrix, b)[0],
        lambda _, b: _eliminate(matrix.T, b)[0],
    )


def log_determinant(matrix: Inexact[Array, "n n"]) -> Complex[Array, ""]:
    """Logarithm of the determinant, its imaginary part known up to 2 pi; without derivatives."""
    return _eliminate(matrix, jnp.zeros_like(matrix[0]))[1]


def _eliminate(matrix: Array, right: Array) -> tuple[Array, Array]:
    return (_by_rows if len(matrix) <= SMALL else _by_library)(matrix, right)


def _by_rows(matrix: Array, right: Array) -> tuple[Array, Array]:
    """Gauss-Jordan elimination; rows stay in place and `order` tells whose pivot each has been."""
    size = len(matrix)
    columns = right.reshape(size, right.size // size)

    def step(k, state):
        rows, order, log = state
        column = jax.lax.dynamic_index_in_dim(rows, k, 1)
        usable = jnp.where(order < 0, jnp.abs(column[:, 0]), -1.0)
        at = jnp.argmax(usable)
        here = jnp.arange(size) == at
        pivot = column[at, 0]
        row = rows[at] / pivot
        rows = jnp.where(here[:, None], row, rows - column * row)
        # An exchange changes the sign: one for each row before it that has had no pivot yet.
        turn = jnp.sum((order < 0) & (jnp.arange(size) < at)) % 2 == 1
        return rows, jnp.where(here, k, order), log + _log(jnp.where(turn, -pivot, pivot))

    table, none = jnp.concatenate([matrix, columns], axis=1), jnp.full(size, -1)
    start = table, none, jnp.zeros_like(_log(matrix[0, 0]))
    rows, order, log = jax.lax.fori_loop(0, size, step, start)
    return jnp.zeros_like(columns).at[order].set(rows[:, size:]).reshape(right.shape), log


@jax.custom_batching.sequential_vmap
def _by_library(matrix: Array, right: Array) -> tuple[Array, Array]:
    factors, exchanged = jax.scipy.linalg.lu_factor(matrix)
    turned = jnp.sum(exchanged != jnp.arange(len(matrix))) % 2
    log = jnp.sum(_log(jnp.diagonal(factors)))
    log = jax.lax.complex(log.real, log.imag + jnp.pi * turned)
    return jax.scipy.linalg.lu_solve((factors, exchanged), right), log


def _log(value: Array) -> Array:
    return jnp.log(value.astype(jnp.result_type(value, jnp.complex64)))
