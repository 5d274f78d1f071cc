"""Delays with phases: eigenvalues of A_L against 40 digits."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")

exact = closed_forms.exact


def difference_matrix(gain, service_rate, initial, generator, weights):
    """A_L entry by entry in 40 digits; x first, then the phases."""
    phases = len(initial)
    matrix = mp.zeros(phases + 1)
    matrix[0, 0] = -exact(service_rate)
    for j in range(phases):
        matrix[0, j + 1] = -sum(generator[j, k] for k in range(phases))
        matrix[j + 1, 0] = -exact(gain) * exact(initial[j])
        for k in range(phases):
            fed = exact(gain) * exact(initial[j]) * exact(weights[k])
            matrix[j + 1, k + 1] = generator[k, j] - fed
    return matrix


def chain(mean, counts):
    """First phases and generator of a mixed Erlang law in 40 digits."""
    stages = len(counts)
    rate = sum(k * exact(w) for k, w in enumerate(counts, 1)) / exact(mean)
    generator = mp.zeros(stages)
    for j in range(stages):
        generator[j, j] = -rate
        if j:
            generator[j - 1, j] = rate
    return counts[::-1], generator


def all_eigenvalues(matrix):
    return mp.eig(matrix, left=False, right=False)


def rightmost(matrix):
    root = max(all_eigenvalues(matrix), key=lambda r: r.real)
    return complex(root.real, abs(root.imag))


def with_slopes(function):
    """Second derivative, then value and first, in one program."""

    def slopes(p):
        slope, value = jax.jacrev(lambda p: 2 * (function(p),), has_aux=True)(p)
        return slope, (value, slope)

    return jax.jit(jax.jacfwd(slopes, has_aux=True))


def assert_certified(found, wanted):
    assert np.all(found.complete)
    for r, w in zip(found.root, wanted, strict=True):
        # 1.2e-14 is the worst of 400, with four phases of any shape.
        assert abs(complex(r) - w) < 2e-14 * abs(w)


def test_weights_on_jobs_in_transit_keep_the_root_to_full_precision():
    stages, rng = 6, np.random.default_rng(21)
    gain, service_rate, mean = 10 ** rng.uniform([-6, -3, -3], [6, 3, 3], (12, 3)).T
    weights = rng.uniform(-1, 2, (12, stages))

    @jax.jit
    @jax.vmap
    def root(gain, service_rate, mean, weights):
        rule = lb.WeightedLogit(gain, weights)
        return lb.stability.certified_root(
            lb.System(1.0, service_rate, lb.Erlang(mean, stages), rule)
        )

    last = np.eye(stages)[-1]
    wanted = [
        rightmost(difference_matrix(g, mu, *chain(d, last), w))
        for g, mu, d, w in zip(gain, service_rate, mean, weights, strict=True)
    ]
    assert_certified(root(gain, service_rate, mean, weights), wanted)


def test_mixtures_of_stages_keep_the_root_to_full_precision():
    stages, rng = 6, np.random.default_rng(22)
    gain, service_rate, mean = 10 ** rng.uniform([-6, -3, -3], [6, 3, 3], (12, 3)).T
    counts = rng.dirichlet(np.full(stages, 0.5), 12)

    @jax.jit
    @jax.vmap
    def root(gain, service_rate, mean, counts):
        delay = lb.MixedErlang(mean, counts)
        return lb.stability.certified_root(lb.System(1.0, service_rate, delay, lb.Logit(gain)))

    wanted = [
        rightmost(difference_matrix(g, mu, *chain(d, c), np.zeros(stages)))
        for g, mu, d, c in zip(gain, service_rate, mean, counts, strict=True)
    ]
    assert_certified(root(gain, service_rate, mean, counts), wanted)


def test_phases_of_any_shape_keep_the_root_to_full_precision():
    phases, rng = 4, np.random.default_rng(23)
    gain, service_rate = 10 ** rng.uniform([-6, -3], [6, 3], (12, 2)).T
    initial = rng.dirichlet(np.ones(phases), 12)
    moves = 10 ** rng.uniform(-2, 2, (12, phases, phases))
    moves *= (rng.uniform(size=moves.shape) < 0.5) & ~np.eye(phases, dtype=bool)
    leave = 10 ** rng.uniform(-2, 2, (12, phases))
    generator = moves - (moves.sum(2) + leave)[:, :, None] * np.eye(phases)
    weights = rng.uniform(-1, 2, (12, phases))

    @jax.jit
    @jax.vmap
    def root(gain, service_rate, initial, generator, weights):
        delay, rule = lb.PhaseType(initial, generator), lb.WeightedLogit(gain, weights)
        return lb.stability.certified_root(lb.System(1.0, service_rate, delay, rule))

    wanted = [
        rightmost(difference_matrix(g, mu, p, mp.matrix(t.tolist()), w))
        for g, mu, p, t, w in zip(gain, service_rate, initial, generator, weights, strict=True)
    ]
    found = root(gain, service_rate, initial, generator, weights)
    assert_certified(found, wanted)


@pytest.mark.parametrize(
    ("stages", "service_rate", "gain"), [(32, 1e3, 1e-6), (32, 1.0, 1e-16), (24, 0.1, 1e-16)]
)
def test_all_eigenvalues_are_right_at_a_tiny_gain(stages, service_rate, gain):
    """As it stands LAPACK is 2e-9 off in the first case and 28 % in the others."""
    whole = lb.System(1.0, service_rate, lb.Erlang(1.0, stages), lb.Logit(gain))
    found = np.asarray(jax.jit(lambda: lb.stability.eigenvalues(whole))())
    away = abs(found[:, None] - found)
    np.fill_diagonal(away, np.inf)
    for r, nearest in zip(found, away.min(0), strict=True):
        u = 1 + exact(r) / stages
        for _ in range(4):
            left = stages * (u - 1) + exact(service_rate)
            slope = (stages * u + stages * left) * u ** (stages - 1)
            u -= (left * u**stages + exact(gain)) / slope
        wanted = complex(stages * (u - 1))
        # 5e-14 is measured; the coupling, a third of the largest entry, divides a rounding or two.
        assert abs(r - wanted) < 2e-13 * abs(wanted)
        # As many as there are, so each is found once.
        assert nearest > 1e-2 * abs(wanted)


def test_an_eigenvalue_that_lapack_loses_is_reported(monkeypatch):
    whole = lb.System(1.0, 1.0, lb.Erlang(1.0, 7), lb.WeightedLogit(9.0, np.full(7, 0.1)))
    values = jax.jit(lambda: lb.stability.eigenvalues(whole))()
    first = values[jnp.argsort(-values.real)]
    # The rightmost pair is there twice as the next one.
    lost = first.at[:2].set(first[2:4])
    monkeypatch.setattr(jnp.linalg, "eigvals", lambda matrix: lost + 0 * matrix[0, 0])
    found = lb.stability.certified_root(whole)
    assert not found.complete
    assert np.isnan(found.root)


def test_a_phase_that_no_job_enters_has_its_own_mode_and_gradient():
    """The rightmost eigenvalue is minus its rate, which the characteristic equation lacks."""

    def abscissa(rates):
        generator = jnp.diag(-rates).at[1, 2].set(1.0)
        delay = lb.PhaseType(jnp.array([1.0, 0.0, 0.0]), generator)
        return lb.stability.spectral_abscissa(lb.System(1.0, 1.0, delay, lb.Logit(1.0)))

    rates = jnp.array([2.0, 3.0, 0.1])
    value, gradient = jax.jit(jax.value_and_grad(abscissa))(rates)
    # Rates of order one.
    np.testing.assert_allclose(value, -0.1, rtol=1e-15)
    np.testing.assert_allclose(gradient, [0, 0, -1], atol=1e-14)


def test_without_feedback_gradients_are_those_of_the_mode_that_is_first():
    """Service: -1 and -lambda f(-mu). The stages' own mode is defective: zero, by convention."""

    @jax.jit
    @jax.value_and_grad
    def abscissa(p):
        delay = lb.MixedErlang(p[1], [0.3, 0.3, 0.4])
        return lb.stability.spectral_abscissa(lb.System(1.0, p[0], delay, lb.Logit(p[2])))

    f = float(closed_forms.mixed_erlang_transform(1.0, [0.3, 0.3, 0.4], -0.5))
    for service_rate, wanted in [(0.5, [-1, 0, -f]), (30.0, [0, 0, 0])]:
        value, gradient = abscissa(jnp.array([service_rate, 1.0, 0.0]))
        # A_L is triangular; a dozen roundings in the gradient.
        np.testing.assert_allclose(value, -min(service_rate, 2.1), rtol=1e-15)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-14, atol=1e-14)


def test_derivatives_are_finite_where_two_roots_meet():
    """Two stages at gain 1/27; the derivative is infinite below it, and zero by convention."""

    def abscissa(gain):
        delay = lb.PhaseType([1.0, 0.0], [[-2.0, 2.0], [0.0, -2.0]])
        return lb.stability.spectral_abscissa(lb.System(1.0, 1.0, delay, lb.Logit(gain)))

    # The square root of the precision.
    bend, (value, slope) = with_slopes(abscissa)(1 / 27)
    np.testing.assert_allclose(value, -4 / 3, rtol=1e-7)
    assert (slope, bend) == (0, 0)


def test_first_and_second_derivatives_by_eigenvectors_are_those_of_forty_digits():
    initial, weights = [0.7, 0.3], np.array([0.4, -0.2])

    def frequency(p):
        generator = jnp.stack([jnp.stack([-p[0], p[1]]), jnp.array([0.5, -3.0])])
        rule = lb.WeightedLogit(p[2], weights)
        whole = lb.System(1.0, 1.5, lb.PhaseType(jnp.array(initial), generator), rule)
        return lb.stability.oscillation_frequency(whole)

    def truth(a, b, gain):
        generator = mp.matrix([[-a, b], [mp.mpf(0.5), -3]])
        matrix = difference_matrix(gain, 1.5, initial, generator, weights)
        return max(r.imag for r in all_eigenvalues(matrix))

    p = 4.0, 3.0, 12.0
    hessian, (value, gradient) = with_slopes(frequency)(jnp.array(p))
    # Two dozen roundings of numbers about ten.
    np.testing.assert_allclose(value, float(truth(*map(mp.mpf, p))), rtol=3e-14)
    for i in range(3):
        wanted = float(mp.diff(truth, p, tuple(int(i == k) for k in range(3))))
        np.testing.assert_allclose(gradient[i], wanted, rtol=1e-12)
        for j in range(i + 1):
            order = tuple(int(i == k) + int(j == k) for k in range(3))
            wanted = float(mp.diff(truth, p, order))
            np.testing.assert_allclose(hessian[i, j], wanted, rtol=1e-11, atol=1e-13)


def test_frequency_of_a_real_root_is_zero_with_zero_slope():
    def frequency(gain):
        return lb.stability.oscillation_frequency(lb.System(1.0, 1.0, lb.NoDelay(), lb.Logit(gain)))

    assert jax.jit(jax.value_and_grad(frequency))(3.0) == (0, 0)
    whole = lb.System(1.0, 1.0, lb.NoDelay(), lb.Logit(3.0))
    # mu + lambda theta, without rounding.
    assert lb.stability.certified_root(whole).root == -4


def test_single_precision_stays_single():
    delay = lb.MixedErlang(np.float32(1), np.array([0.5, 0.5], np.float32))

    def abscissa(gain):
        whole = lb.System(np.float32(1), np.float32(1), delay, lb.Logit(gain))
        found = lb.stability.certified_root(whole)
        return found.root.real, found

    slope, found = jax.jit(jax.grad(abscissa, has_aux=True))(np.float32(3))
    assert found.complete
    assert (found.root.dtype, slope.dtype) == (jnp.complex64, jnp.float32)
    wanted = rightmost(difference_matrix(3, 1, *chain(1.0, np.array([0.5, 0.5])), np.zeros(2)))
    # A dozen roundings of 6e-8.
    assert abs(complex(found.root) - wanted) < 1e-6 * abs(wanted)
