from functools import partial

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOOP = np.array([[-2.0, 0.5, 0.7], [0.25, -3.0, 0.0], [1.0, 0.0, -1.5]])
COXIAN = np.array([[-3.0, 2.7, 0.0], [0.0, -4.0, 3.2], [0.0, 0.0, -2.0]])
COXIAN_MEAN = np.linalg.solve(-COXIAN.T, [1.0, 0.0, 0.0]).sum()


def system(gain, service_rate, mean, stages):
    delay = lb.Deterministic(mean) if np.isinf(stages) else lb.Erlang(mean, stages)
    return lb.System(2.0, service_rate, delay, lb.Logit(gain / 2.0))


def transform(mean, stages):
    if np.isinf(stages):
        return partial(closed_forms.deterministic_transform, mean)
    return partial(closed_forms.erlang_transform, mean, stages)


def coxian(gain, growth=1.0):
    """The system, and its A_L written apart."""
    generator = COXIAN / growth
    whole = lb.System(1.0, 1.0, lb.PhaseType([1.0, 0.0, 0.0], generator), lb.Logit(gain))
    return whole, matrix(1.0, generator, [-gain, 0.0, 0.0, 0.0])


def weighted(sensitivity, growth=1.0, weights=(0.3, -0.2, 0.4)):
    """Three stages of mean 1.3, as `coxian`."""
    mean = 1.3 * growth
    rule = lb.WeightedLogit(sensitivity, jnp.array(weights))
    generator = 3 / mean * (np.eye(3, k=1) - np.eye(3))
    feedback = -2 * sensitivity * np.array([1.0, *weights])
    return lb.System(2.0, 0.7, lb.Erlang(mean, 3), rule), matrix(0.7, generator, feedback)


def matrix(service_rate, generator, feedback):
    """Equation (12) for phases that start in the first one."""
    whole = np.zeros((4, 4))
    whole[0, 0], whole[0, 1:] = -service_rate, -generator.sum(axis=1)
    whole[1:, 1:] = generator.T
    whole[1] += feedback
    return whole


def dense_abscissa(matrix):
    return np.real(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize("rule", [lb.Logit(2.0), lb.WeightedLogit(2.0, [1.0, 0.5, -0.2])])
def test_one_plus_the_open_loop_is_a_ratio_of_determinants(rule):
    """Of r I - A_L with the feedback and without."""
    whole = lb.System(1.7, 0.6, lb.PhaseType([0.5, 0.25, 0.25], LOOP), rule)
    closed = np.asarray(lb.model.imbalance.matrix(whole))
    opened = closed.copy()
    # Arrivals enter the phases in the shares `initial`: that row is the feedback.
    feedback = np.asarray(lb.model.imbalance.feedback(whole))
    opened[1:] -= np.outer([0.5, 0.25, 0.25], feedback)
    loop = jax.jit(lambda r: lb.stability.open_loop(whole, r))
    for r in [0.3 + 2j, 1j, -0.2 + 0.1j]:
        wanted = np.linalg.det(r * np.eye(4) - closed) / np.linalg.det(r * np.eye(4) - opened)
        # A few roundings of either.
        np.testing.assert_allclose(1 + loop(r), wanted, rtol=2e-14)


@pytest.mark.parametrize("stages", [8, 10**6])
def test_margins_are_where_a_root_reaches_the_imaginary_axis(stages):
    rng = np.random.default_rng(3)
    service_rate, mean = 10 ** rng.uniform(-1, 1, (2, 40))
    gain = service_rate * 10 ** rng.uniform(-1, 1.5, 40)

    @jax.jit
    @jax.vmap
    def solve(gain, service_rate, mean):
        found = lb.stability.margins(system(gain, service_rate, mean, stages))
        growth, stretch = [
            jnp.where(jnp.isfinite(x), x, 1.0) for x in (found.gain, found.mean_delay)
        ]
        gains, means = gain * jnp.stack([growth, 1.0, 1.0]), mean * jnp.stack([1.0, stretch, 1.0])
        root = jax.vmap(
            lambda gain, mean: lb.stability.rightmost_root(system(gain, service_rate, mean, stages))
        )
        return found, root(gains, means)

    found, roots = solve(gain, service_rate, mean)
    np.testing.assert_array_equal(found.stable, roots[:, 2].real < 0)
    for k, factor in enumerate([found.gain, found.mean_delay]):
        moved = np.isfinite(factor)
        assert np.all((factor > 1)[moved] == found.stable[moved])
        # Rounding of the factor moves the root by as much of the rates, times 10 for large gains.
        scale = service_rate + 1 / mean + gain
        assert np.all(abs(roots[:, k].real)[moved] < 2e-14 * scale[moved])
    assert np.all(np.isfinite(found.gain))
    crosses = gain > service_rate
    np.testing.assert_array_equal(np.isfinite(found.delay), crosses)
    np.testing.assert_array_equal(np.isfinite(found.phase), crosses)
    for i in np.flatnonzero(crosses):
        r = closed_forms.exact(1j * float(found.crossover[i]))
        f = transform(mean[i], stages)(r) * mp.exp(-r * float(found.delay[i]))
        residual = r + service_rate[i] + gain[i] * f
        # Rounding of the crossover and of the lag, which may be many turns.
        turns = 1 + gain[i] * mean[i]
        assert abs(residual) < 4e-15 * turns * (service_rate[i] + gain[i])
        # One crossover, and the size of G falls: less than a whole turn away is the first loss.
        assert (found.phase[i] > 0) == found.stable[i]
        assert found.phase[i] < np.pi
        np.testing.assert_allclose(found.phase[i], found.delay[i] * found.crossover[i], rtol=1e-14)


def test_margins_of_the_fixed_delay_are_the_published_critical_delay():
    """Pender, Rand and Wesson (2017): 0.3617394710 and frequency 4.8989795 at gain 5."""
    critical, omega = 0.3617394710, 4.8989795
    for mean in [0.2, 1.0]:
        found = lb.stability.margins(system(5.0, 1.0, mean, np.inf))
        # As many digits as were given.
        np.testing.assert_allclose(found.delay, critical - mean, rtol=2e-10)
        np.testing.assert_allclose(found.mean_delay, critical / mean, rtol=2e-10)
        np.testing.assert_allclose(found.crossover, omega, rtol=2e-8)
        np.testing.assert_allclose(found.phase, omega * (critical - mean), rtol=2e-8)
        assert found.stable == (mean < critical)


@pytest.mark.parametrize(("mean", "factor"), [(0.5, 1.527864), (1.0, 0.763932), (8.0, np.inf)])
def test_margin_of_the_mean_delay_knows_the_window_of_two_stages(mean, factor):
    """At gain 10 balance is unstable from 0.763932 to 5.236068, from 5.236068 on stable."""
    found = lb.stability.margins(system(10.0, 1.0, mean, 2))
    np.testing.assert_allclose(found.mean_delay, factor, rtol=1e-6)  # six digits were given
    # Nine is critical at one second.
    if mean == 1:
        np.testing.assert_allclose(found.gain, 0.9, rtol=1e-15)


@pytest.mark.parametrize("gain", [0.4, 3.0, 50.0])
def test_search_finds_the_margins_of_the_closed_form(gain):
    """The paper's rule written as one with weights."""
    closed, wanted = [
        (lb.stability.margins(whole), lb.stability.sensitivity_peak(whole).value)
        for whole in [system(gain, 0.7, 1.3, 3), weighted(gain / 2, weights=(0.0, 0.0, 0.0))[0]]
    ]
    for value, other in zip(jax.tree.leaves(closed), jax.tree.leaves(wanted), strict=True):
        # Both are right to a dozen roundings.
        np.testing.assert_allclose(value, other, rtol=1e-13)


@pytest.mark.parametrize(
    ("make", "gain"), [(coxian, 5.0), (coxian, 30.0), (weighted, 0.8), (weighted, 8.0)]
)
def test_margins_of_other_laws_and_rules_put_a_dense_eigenvalue_on_the_axis(make, gain):
    whole, dense = make(gain)
    found = lb.stability.margins(whole)
    assert found.stable == (dense_abscissa(dense) < 0)
    for factor, moved in [
        (float(found.gain), lambda factor: make(gain * factor)[1]),
        (float(found.mean_delay), lambda factor: make(gain, factor)[1]),
    ]:
        if np.isinf(factor):
            # Then it never is lost.
            assert found.stable
            assert max(dense_abscissa(moved(x)) for x in np.geomspace(1, 1e4, 200)) < 0
            continue
        assert (factor > 1) == found.stable
        # Rounding of entries of some tens.
        assert abs(dense_abscissa(moved(factor))) < 1e-12
        # Stable for every smaller one, and not for the next.
        assert max(dense_abscissa(moved(x * factor)) for x in np.linspace(0.01, 0.999, 100)) < 0
        assert dense_abscissa(moved(1.001 * factor)) > 0
    r = 1j * float(found.crossover)
    eye = np.eye(4)
    opened = make(0.0)[1]
    loop = np.linalg.det(r * eye - dense) / np.linalg.det(r * eye - opened) - 1
    # Some roundings of the determinants.
    np.testing.assert_allclose(loop * np.exp(-r * float(found.delay)), -1, atol=1e-13)
    assert (found.delay > 0) == found.stable == (found.phase > 0)


def test_critical_gain_of_a_coxian_delay_is_the_known_one():
    """9.7152251613, made outside this project to 10 digits."""
    gain = lb.stability.margins(coxian(5.0)[0]).gain
    np.testing.assert_allclose(5 * gain, 9.7152251613, rtol=2e-11)


def test_gain_margin_is_to_the_next_loss_where_stability_returns_between():
    """Stable up to a sensitivity of 3.6, from 7.2 to 10.6, and nowhere else."""
    weights = (-0.3, 1.0, -0.8)

    def edge(sensitivity):
        return abs(dense_abscissa(weighted(sensitivity, weights=weights)[1]))

    for sensitivity, stable, low, high in [
        (2.0, True, 3.5, 3.8),
        (5.0, False, 3.5, 3.8),
        (8.0, True, 10.5, 11.3),
    ]:
        whole, dense = weighted(sensitivity, weights=weights)
        assert (dense_abscissa(dense) < 0) == stable
        found = lb.stability.margins(whole)
        assert found.stable == stable
        assert low < sensitivity * found.gain < high
        # Rounding of entries of some tens.
        assert edge(sensitivity * float(found.gain)) < 1e-12


def test_gain_margin_sees_a_real_root_reach_zero():
    """Weights far below zero let an imbalance grow without oscillating: G(0) = -1 there."""
    weights = (-10.0, -10.0, -10.0)
    # G(0) = lambda theta (1 / mu + mean of the weights times D).
    at_zero = 0.02 * (1 / 0.7 - 13.0)
    found = lb.stability.margins(weighted(0.01, weights=weights)[0])
    np.testing.assert_allclose(found.gain, -1 / at_zero, rtol=1e-14)
    # The part of jobs in transit grows with the mean, and 1 + 0.02 / 0.7 is what it must outweigh.
    np.testing.assert_allclose(found.mean_delay, (1 + 0.02 / 0.7) / 0.26, rtol=1e-14)
    grown, dense = weighted(0.01 * 2 / -at_zero, weights=weights)
    found = lb.stability.margins(grown)
    assert dense_abscissa(dense) > 0
    assert not found.stable
    np.testing.assert_allclose(found.gain, 0.5, rtol=1e-14)


def test_no_delay_or_no_feedback_leaves_margins_infinite():
    none = lb.System(2.0, 0.5, lb.NoDelay(), lb.Logit(1.0))
    found = lb.stability.margins(none)
    assert found.stable
    assert np.isinf(found.gain)
    assert np.isinf(found.mean_delay)
    # 2 / |i w + 1/2| = 1.
    np.testing.assert_allclose(found.crossover, np.sqrt(3.75), rtol=1e-14)
    np.testing.assert_allclose(found.phase, np.pi - np.arctan(np.sqrt(15)), rtol=1e-14)
    assert lb.stability.sensitivity_peak(none) == (1.0, np.inf)
    idle = system(0.0, 1.0, 1.0, 3)
    assert lb.stability.margins(idle) == (np.inf,) * 5 + (True,)
    assert lb.stability.sensitivity_peak(idle) == (1.0, np.inf)


def brute_peak(gain, service_rate, mean, stages):
    """On ever finer grids, in extended precision."""
    gain, service_rate, mean = [np.longdouble(float(x)) for x in (gain, service_rate, mean)]
    y = np.geomspace(1e-4, 1e6, 20001).astype(np.longdouble)
    size = y
    for _ in range(8):
        if np.isinf(stages):
            f = np.exp(-1j * y)
        else:
            f = np.exp(-stages * (np.log1p((y / stages) ** 2) / 2 + 1j * np.arctan(y / stages)))
        size = abs(1 / (1 + gain * f / (1j * y / mean + service_rate)))
        best = int(size.argmax())
        y = np.linspace(y[max(best - 1, 0)], y[min(best + 1, len(y) - 1)], 41)
    return float(size.max()), float(y[20] / mean)


@pytest.mark.parametrize(
    ("stages", "dtype"),
    [(2, jnp.float64), (np.inf, jnp.float64), (3, jnp.float32)],
)
def test_sensitivity_peak_is_that_of_a_fine_grid(stages, dtype):
    rng = np.random.default_rng(5)
    service_rate, mean = 10 ** rng.uniform(-2, 2, (2, 12))
    critical = 1e3 * service_rate
    if stages > 1:
        critical = jax.vmap(lambda m, d: lb.stability.erlang_boundary(m, d, stages).gain)(
            service_rate, mean
        )
    gain = critical * (1 - 10 ** rng.uniform(-3, 0, 12))
    gain, service_rate, mean = [jnp.asarray(x, dtype) for x in (gain, service_rate, mean)]

    @jax.jit
    @jax.vmap
    def peak(gain, service_rate, mean):
        delay = lb.Deterministic(mean) if np.isinf(stages) else lb.Erlang(mean, stages)
        whole = lb.System(jnp.ones((), dtype), service_rate, delay, lb.Logit(gain))
        return lb.stability.sensitivity_peak(whole)

    found = peak(gain, service_rate, mean)
    assert found.value.dtype == found.frequency.dtype == dtype
    for i in range(12):
        value, frequency = brute_peak(gain[i], service_rate[i], mean[i], stages)
        # 1 + G is right to rounding of G, about one: 3.5e-16 times the peak is the worst of 700,
        # 1.7e-7 in float32.
        assert abs(found.value[i] - value) < 10 * float(jnp.finfo(dtype).eps) * value**2
        if value > 1.01:
            # To the root of rounding over the curvature.
            np.testing.assert_allclose(
                found.frequency[i], frequency, rtol=20 * float(jnp.finfo(dtype).eps) ** 0.5
            )


def test_sensitivity_peak_grows_without_bound_towards_the_boundary():
    """As one over the distance: halved, the peak is doubled."""
    critical = 5.12  # of three stages at unit rate and mean

    def value(gain):
        return lb.stability.sensitivity_peak(system(gain, 1.0, 1.0, 3)).value

    # The next term is as large as the distance relative to the critical gain.
    near = value(critical * (1 - 2e-6)), value(critical * (1 - 1e-6))
    np.testing.assert_allclose(near[1] / near[0], 2, rtol=1e-5)
    assert np.isinf(value(critical * (1 + 1e-6)))


@pytest.mark.parametrize("weights", [None, (-0.05, 0.02, 0.0)], ids=["closed", "search"])
def test_gradients_are_those_of_finite_differences(weights):
    def numbers(parameters):
        gain, service_rate, mean = parameters
        rule = lb.Logit(gain) if weights is None else lb.WeightedLogit(gain, jnp.array(weights))
        whole = lb.System(1.0, service_rate, lb.Erlang(mean, 3), rule)
        return jnp.stack([*lb.stability.margins(whole)[:5], *lb.stability.sensitivity_peak(whole)])

    at = jnp.array([4.5, 1.0, 0.8] if weights is None else [2.0, 0.7, 1.3])
    # One by one, by the programs of the tests above.
    step = 1e-4
    values = jnp.stack([numbers(row) for row in at + step * jnp.eye(3)])
    before = jnp.stack([numbers(row) for row in at - step * jnp.eye(3)])
    assert np.all(np.isfinite(values))
    wanted = (values - before) / (2 * step)
    # Square of the step times third derivatives of up to 1e3; and 1e-8, of the place of the peak,
    # over the step.
    tolerance = 2e-4
    if weights is None:
        # In reverse is forward, transposed.
        found = jax.jit(jax.jacrev(numbers))(at)
        np.testing.assert_allclose(found, wanted.T, rtol=tolerance, atol=tolerance)
        return
    way = jnp.array([0.3, -0.5, 0.9])
    found = jax.jit(lambda at: jax.jvp(numbers, (at,), (way,))[1])(at)
    np.testing.assert_allclose(found, way @ wanted, rtol=tolerance, atol=tolerance)


@jax.jit
@jax.jacrev
def slopes_of_one_stage(parameters):
    """Of gain, phase, delay, mean delay and crossover in lambda, theta, mu and D."""
    arrival_rate, theta, service_rate, mean = parameters
    whole = lb.System(arrival_rate, service_rate, lb.Erlang(mean, 1), lb.Logit(theta))
    return jnp.stack(lb.stability.margins(whole)[:5])


def test_gradients_are_zero_where_a_margin_is_infinite():
    for parameters in [[0.5, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0], [2.0, 0.5, 1.0, 1.0]]:
        np.testing.assert_array_equal(slopes_of_one_stage(jnp.array(parameters)), 0)


def test_an_infinite_margin_spares_the_gradients_of_the_others():
    """G = -2 / ((1 + i w) (1 + i w)) has modulus 1 at w = 1, with phase margin pi / 2."""
    names = lb.stability.margins(system(2.0, 1.0, 1.0, 1))._fields[:5]
    slopes = slopes_of_one_stage(jnp.array([2.0, 1.0, 1.0, 1.0]))[:, 0]
    found = dict(zip(names, slopes, strict=True))
    # w^2 = K - 1 and the phase margin pi - 2 arctan w.
    for name, slope in {"gain": 0, "phase": -0.5, "crossover": 0.5}.items():
        np.testing.assert_allclose(found[name], slope, rtol=1e-12)


def test_new_numbers_do_not_compile_again():
    count = 0

    @jax.jit
    def both(gain, mean):
        nonlocal count
        count += 1
        whole = system(gain, 1.0, mean, 2)
        return lb.stability.margins(whole), lb.stability.sensitivity_peak(whole)

    for gain, mean in [(1.0, 1.0), (30.0, 0.1), (0.0, 9.0)]:
        both(gain, mean)
    assert count == 1


def test_errors_name_the_argument():
    lonely = lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0), num_servers=1)
    unequal = lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 2), lb.Logit(1.0))
    for use in [lb.stability.margins, lb.stability.sensitivity_peak]:
        with pytest.raises(ValueError, match=r"^`num_servers` must be at least 2 here, got 1\."):
            use(lonely)
        with pytest.raises(ValueError, match=r"^`service_rate` must be the same for every server"):
            use(unequal)
