"""Linear equations and determinants, against numpy and finite differences."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlb._elimination import SMALL, log_determinant, solve

pytestmark = pytest.mark.usefixtures("quick_compilation")
SIZES = [1, 5, SMALL, SMALL + 1]


def problem(size, batch=()):
    rng = np.random.default_rng(size)
    matrix = rng.normal(size=(*batch, size, size)) + 1j * rng.normal(size=(*batch, size, size))
    # A pivot of zero where the order of the rows is kept.
    matrix[..., 0, 0] = 0 if size > 1 else 2
    return jnp.asarray(matrix), jnp.asarray(rng.normal(size=(*batch, size)) + 0j)


@pytest.mark.parametrize("size", SIZES)
def test_solution_and_determinant_agree_with_numpy(size):
    matrix, right = problem(size)
    np.testing.assert_allclose(solve(matrix, right), np.linalg.solve(matrix, right), rtol=1e-11)
    both = jnp.stack([right, 1j * right], axis=1)
    np.testing.assert_allclose(solve(matrix, both), np.linalg.solve(matrix, both), rtol=1e-11)
    for part in matrix, matrix.real + np.eye(size):
        sign, log = np.linalg.slogdet(part)
        found = log_determinant(part)
        np.testing.assert_allclose(found.real, log, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(np.exp(1j * found.imag), sign, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_derivatives_are_those_of_the_inverse(size):
    matrix, right = problem(size)
    change, move = problem(size)[0][::-1], 1j * right[::-1]
    inverse = np.linalg.inv(matrix)
    value, slope = jax.jvp(solve, (matrix, right), (change, move))
    np.testing.assert_allclose(slope, inverse @ (move - change @ value), rtol=1e-9)

    def moved(t):
        return solve(matrix + t * change, right)

    _, bend = jax.jvp(lambda t: jax.jvp(moved, (t,), (1.0,))[1], (0.0,), (1.0,))
    step = inverse @ change
    np.testing.assert_allclose(bend, 2 * step @ (step @ value), rtol=1e-9)
    # Reverse mode: w . x has the slope A^-T w in the right side.
    weights = np.arange(1.0, size + 1)
    back = jax.grad(lambda b: jnp.sum(weights * solve(matrix.real + np.eye(size), b)))(right.real)
    np.testing.assert_allclose(
        back, np.linalg.solve(matrix.real.T + np.eye(size), weights), rtol=1e-10
    )


@pytest.mark.parametrize("size", SIZES)
def test_batch_is_solved_member_by_member_and_a_singular_one_spares_the_rest(size):
    matrix, right = problem(size, batch=(4,))
    matrix = matrix.at[2].set(0)
    found = jax.vmap(solve)(matrix, right)
    good = jnp.array([0, 1, 3])
    expected = np.linalg.solve(matrix[good], right[good][..., None])[..., 0]
    np.testing.assert_allclose(found[good], expected, rtol=1e-10)
    assert not np.isfinite(found[2]).any()


def test_library_routine_is_never_given_a_batch():
    """Two batches at once stop a machine of two cores for good with JAX 0.10."""

    def called(size):
        program = jax.jit(jax.vmap(solve)).lower(*problem(size, batch=(7,))).as_text()
        return re.findall(r"custom_call.*getrf.*", program)

    assert not called(SMALL)
    assert called(SMALL + 1)
    assert not any(f"7x{SMALL + 1}" in line for line in called(SMALL + 1))
