"""The Lyapunov equation, its flag and its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

from jaxlb.stochastic.lyapunov import lyapunov

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")


def stable_matrix(rng, size, abscissa):
    """Random, with its rightmost root's real part at `abscissa`."""
    matrix = rng.normal(size=(size, size))
    return matrix + (abscissa - np.real(np.linalg.eigvals(matrix)).max()) * np.eye(size)


@pytest.mark.parametrize("size", [1, 2, 5, 20])
@pytest.mark.parametrize("abscissa", [-3.0, -0.1])
def test_solution_is_that_of_scipy(size, abscissa):
    rng = np.random.default_rng(size)
    matrix, noise = stable_matrix(rng, size, abscissa), rng.normal(size=(size, size))
    found, stable = jax.jit(lyapunov)(jnp.asarray(matrix), jnp.asarray(noise))
    assert stable
    wanted = linalg.solve_continuous_lyapunov(matrix, -noise)
    # Rounding times the condition: |A| / 0.1 = 100 in the worst case.
    np.testing.assert_allclose(found, wanted, atol=1e-11 * abs(wanted).max(), rtol=0)


def test_solution_is_that_of_the_discrete_equation_of_any_step():
    rng = np.random.default_rng(4)
    matrix, root = stable_matrix(rng, 6, -0.3), rng.normal(size=(6, 6))
    found, _ = lyapunov(jnp.asarray(matrix), jnp.asarray(root @ root.T))
    # X = E X E' + F, with E = exp(h A) and F the integral of exp(s A) Q exp(s A'), by van Loan.
    step = 0.7
    block = np.block([[-matrix, root @ root.T], [np.zeros((6, 6)), matrix.T]])
    power = linalg.expm(step * block)
    move = power[6:, 6:].T
    wanted = linalg.solve_discrete_lyapunov(move, move @ power[:6, 6:])
    np.testing.assert_allclose(found, wanted, rtol=1e-11)


@pytest.mark.parametrize(
    "matrix",
    [
        [[0.1, 0.0], [0.0, -1.0]],
        [[0.0, 1.0], [-1.0, 0.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[jnp.nan, 0.0], [0.0, -1.0]],
        [[-jnp.inf, 0.0], [0.0, -1.0]],
    ],
)
def test_no_stable_matrix_is_flagged_and_leaves_the_others_alone(matrix):
    good = jnp.array([[-1.0, 2.0], [0.0, -3.0]])
    batch = jnp.stack([good, jnp.array(matrix), good])
    found, stable = jax.vmap(lambda matrix: lyapunov(matrix, jnp.eye(2)))(batch)
    assert stable.tolist() == [True, False, True]
    np.testing.assert_array_equal(found[1], 0.0)
    alone, _ = lyapunov(good, jnp.eye(2))
    np.testing.assert_allclose(found[::2], jnp.stack([alone, alone]), rtol=1e-15)
    slopes = jax.grad(lambda batch: jnp.sum(jax.vmap(lambda a: lyapunov(a, jnp.eye(2))[0])(batch)))
    slopes = slopes(batch)
    np.testing.assert_array_equal(slopes[1], 0.0)
    assert np.isfinite(slopes).all()
    assert slopes[0].any()


def test_derivatives_are_those_of_scipy_in_both_modes_and_twice():
    rng = np.random.default_rng(5)
    matrix, noise = stable_matrix(rng, 5, -0.5), rng.normal(size=(5, 5))
    turn, shift, weight = rng.normal(size=(3, 5, 5))

    def by_scipy(t):
        return np.sum(
            weight * linalg.solve_continuous_lyapunov(matrix + t * turn, -noise - t * shift)
        )

    def by_doubling(t):
        found, _ = lyapunov(matrix + t * jnp.asarray(turn), noise + t * jnp.asarray(shift))
        return jnp.sum(weight * found)

    zero, step = jnp.zeros(()), 1e-3
    ahead, here, back = (by_scipy(t) for t in (step, 0.0, -step))
    # Differences of order two: 1e-6 of the third derivative.
    np.testing.assert_allclose(jax.grad(by_doubling)(zero), (ahead - back) / 2 / step, rtol=1e-4)
    second = (ahead - 2 * here + back) / step**2
    np.testing.assert_allclose(jax.grad(jax.grad(by_doubling))(zero), second, rtol=1e-4)
    forward = jax.jvp(by_doubling, (zero,), (jnp.ones(()),))[1]
    np.testing.assert_allclose(forward, jax.grad(by_doubling)(zero), rtol=1e-12)


# Largest relative errors of the imbalance's variance at this part of the critical gain.
PARTS = {0.5: (5e-14, 5e-6), 0.99: (2e-12, 2e-4), 0.9999: (2e-10, 2e-2)}
CRITICAL = {2: 9.0, 5: 3.5602625753532817, 10: 2.806002436819856, 50: 2.3577423380239764}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("stages", CRITICAL)
def test_variance_is_accurate_up_to_the_hopf_point(stages, part):
    gain = part * CRITICAL[stages]
    matrix = closed_forms.difference_matrix(gain, 1.0, 1.0, stages)
    noise = closed_forms.imbalance_noise(15.0, stages)
    wanted = float(closed_forms.queue_variance(15.0, 1.0, gain, 1.0, stages))
    for dtype, most in zip((jnp.float64, jnp.float32), PARTS[part], strict=True):
        found, stable = lyapunov(jnp.asarray(matrix, dtype), jnp.asarray(noise, dtype))
        assert stable
        assert found.dtype == dtype
        np.testing.assert_allclose(float(found[0, 0]), wanted, rtol=most)
