"""The two rightmost roots as a pair, against 40-digit arithmetic and closed forms."""

import re
from itertools import product

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

pytestmark = pytest.mark.usefixtures("quick_compilation")

STAGES = [1.0, 1.5, 2.0, 5.0, 20.0, 1000.0, np.inf]


# One size of batch, so that one program does for all.
SIZE = 224


@pytest.fixture(scope="module")
def pair_and_traces():
    traces = []

    @jax.jit
    def batched(*given):
        traces.append(None)
        return jax.vmap(lb.stability.erlang_pair)(*given)

    def pair(*given):
        count = np.broadcast(*given).size
        middle, squared, _ = batched(*(np.resize(values, SIZE) for values in given))
        return middle[:count], squared[:count]

    return pair, traces


@pytest.fixture(scope="module")
def pair(pair_and_traces):
    return pair_and_traces[0]


def log_best_gain(m, stages):
    """log kappa*, kappa* = ((L - m) / (L + 1))^(L + 1)."""
    m = mp.mpf(m)
    if np.isinf(stages):
        return -(1 + m)
    return (stages + 1) * mp.log((stages - m) / (mp.mpf(stages) + 1))


def exact_pair(m, stages, kappa):
    """X and Y for lambda = D = 1 and gamma > mu, by bisection or Newton in the form in eta."""
    mp.mp.dps = 40
    s = mp.mpf(0) if np.isinf(stages) else 1 / mp.mpf(stages)
    m, delta = mp.mpf(m), mp.log(mp.mpf(kappa)) - log_best_gain(m, stages)

    def gap(eta):
        return (mp.log(1 + s * eta) / s if s else eta) + mp.log(1 - eta) - delta

    def between(low, high):
        """Root where `gap` changes from negative at `low` to positive at `high`."""
        for _ in range(140):
            middle = (low + high) / 2
            low, high = (middle, high) if gap(middle) < 0 else (low, middle)
        return low

    if delta > 0:
        eta = mp.sqrt(mp.mpc(-2 * delta / (1 + s)))
        eta += (s - 1) / 3 * eta**2
        for _ in range(40):
            eta += gap(eta) * (1 + s * eta) * (1 - eta) / ((1 + s) * eta)
        roots = [eta, mp.conj(eta)]
    else:
        roots = [between(mp.mpf(1), mp.mpf(0)), between(-1 / s if s else 2 * delta - 5, mp.mpf(0))]
    c = 1 - s * m
    first, second = [(c * eta - 1 - m) / (1 + s) for eta in roots]
    return mp.re(first + second) / 2, mp.re(((first - second) / 2) ** 2)


def test_pair_is_exact_to_rounding_on_both_sides_of_the_double_root_and_on_it(pair):
    """At relative distances from the best gain of 1e-16 to 1e43, also where methods change."""
    near = np.array([0, 1e-16, 1e-15, 1e-12, 1e-8, 1e-5, 1e-3, 0.01])
    far = np.array([0.0999, 0.1001, 0.7, 2.4, 2.6, 5, 20, 100])
    deltas = np.concatenate([near, far, -near, -far])
    given = [
        (1.0, m, 1.0, stages, float(mp.exp(log_best_gain(m, stages) + delta)))
        for stages, delta in product(STAGES, deltas)
        for m in [0.3 * min(stages, 3.0)]
    ]
    found = pair(*np.array(given).T)
    for (_, m, _, stages, kappa), middle, squared in zip(given, *found, strict=True):
        x, y = exact_pair(m, stages, kappa)
        size = abs(x) + mp.sqrt(abs(y))
        # Some roundings; delta itself is a difference of logarithms, of up to 100 here.
        slack = 2e-15 * (1 + float(abs(mp.log(kappa))) / 10)
        assert abs(x - float(middle)) < slack * size, (m, stages, kappa)
        assert abs(y - float(squared)) < slack * size**2, (m, stages, kappa)


def test_pair_of_one_stage_is_that_of_the_quadratic(pair):
    rng = np.random.default_rng(3)
    gain, service, mean = 10 ** rng.uniform(-2, 2, (3, SIZE))
    middle, squared = pair(gain, service, mean, np.ones(SIZE), np.ones(SIZE))
    size = service + 1 / mean + np.sqrt(gain / mean)
    # A root's rounding, and its square's.
    assert np.all(abs(middle + (service + 1 / mean) / 2) < 1e-14 * size)
    wanted = (service - 1 / mean) ** 2 / 4 - gain / mean
    assert np.all(abs(squared - wanted) < 1e-13 * size**2)


def test_pair_is_complex_where_stages_are_slower_than_service(pair):
    """gamma = mu: V = (kappa / L)^(1 / (L + 1)) exp(i pi / (L + 1)) exactly."""
    stages, kappa = np.array([2.0, 3.0, 8.0]), np.array([1e-3, 1.0, 50.0])
    middle, squared = pair(np.ones(3), stages, np.ones(3), stages, kappa)
    turned = (kappa / stages) ** (1 / (stages + 1)) * np.exp(1j * np.pi / (stages + 1))
    root = stages * (turned - 1)
    # Roundings of values about ten.
    np.testing.assert_allclose(middle, root.real, rtol=2e-14)
    np.testing.assert_allclose(squared, -(root.imag**2), rtol=2e-14)


@pytest.fixture(scope="module")
def derivatives():
    """Pair, first and second derivative along a direction."""

    def parts(p):
        return jnp.stack(lb.stability.erlang_pair(*p)[:2])

    @jax.jit
    def derivatives(p, v):
        def first(p):
            return jax.jvp(parts, (p,), (v,))

        (value, slope), (_, bend) = jax.jvp(first, (p,), (v,))
        return value, slope, bend

    return lambda p, v: derivatives(jnp.array(p, float), jnp.array(v, float))


@pytest.mark.parametrize(
    ("service", "stages", "middle", "squared"),
    [(1.0, 5.0, -3.0, 4.0), (3.0, 2.0, -2.0, 0.0), (3.0, 1.0, -2.0, 1.0), (2.0, 2.0, -2.0, 0.0)],
)
def test_without_feedback_the_pair_is_that_of_service_and_stages(
    derivatives, service, stages, middle, squared
):
    value, slope, _ = derivatives([1.0, service, 1.0, stages, 0.0], [0, 0, 0, 0, 1])
    # Sums of a few numbers about one.
    np.testing.assert_allclose(value, [middle, squared], atol=1e-14)
    assert np.isfinite(slope).all()
    if stages == 5:
        # The abscissa -1 moves by -(4 / 5)^-5 for each unit of gain.
        np.testing.assert_allclose(slope[0] + slope[1] / 4, -((5 / 4) ** 5), rtol=1e-13)


def test_deterministic_delay_without_feedback_has_a_finite_pair(pair):
    (middle,), (squared,) = pair(1.0, 1.0, 1.0, np.inf, 0.0)
    # The abscissa is -mu; the partner is near -700, whose rounding is 1e-13.
    np.testing.assert_allclose(middle + jnp.sqrt(squared), -1.0, atol=1e-12)


@pytest.mark.parametrize("stages", [2.0, 5.0, np.inf])
def test_slopes_at_the_double_root_are_those_of_the_series(derivatives, stages):
    """For a unit of log theta 2 c (1 - s) / (3 (1 + s)^2) and -2 c^2 / (1 + s)^3, with D = 1."""
    m, s = 0.4, 1 / stages
    theta = float(mp.exp(log_best_gain(m, stages)))
    value, slope, _ = derivatives([1.0, m, 1.0, stages, theta], [0, 0, 0, 0, theta])
    c = 1 - s * m
    wanted = [2 * c * (1 - s) / (3 * (1 + s) ** 2), -2 * c**2 / (1 + s) ** 3]
    # The double root is met to rounding; a few roundings.
    np.testing.assert_allclose(value, [-(1 + m) / (1 + s), 0], atol=1e-15)
    np.testing.assert_allclose(slope, wanted, rtol=1e-14)


@pytest.mark.parametrize("ratio", [1e-3, 0.7, 0.92, 1.0, 1.08, 1.4, 1e3])
def test_slopes_and_bends_are_those_of_finite_differences(derivatives, ratio):
    p = np.array([1.0, 1.0, 1.0, 5.0, ratio * (4 / 6) ** 6])
    step = 1e-5
    for v in np.diag(p):
        _, slope, bend = derivatives(p, v)
        high, low = derivatives(p + step * v, v), derivatives(p - step * v, v)
        # The step squared times a third derivative of up to 100 slopes; and rounding, 1e-16 of
        # values of about 10, over the step.
        size = 1 + np.abs(slope).max() + np.abs(bend).max()
        np.testing.assert_allclose(slope, (high[0] - low[0]) / (2 * step), atol=1e-8 * size)
        np.testing.assert_allclose(bend, (high[1] - low[1]) / (2 * step), atol=1e-7 * size)


@pytest.fixture(scope="module")
def both_ways():
    """Value and slopes of the pair at a fixed cost, and from eigenvalues."""

    def parts(p, rule):
        delay = lb.Erlang(p[2], 5)
        pair = lb.stability.rightmost_pair(lb.System(p[0], p[1], delay, rule(p[3])))
        return jnp.stack(pair[:2])

    rules = lb.Logit, lambda theta: lb.WeightedLogit(theta, jnp.zeros(5))
    return jax.jit(lambda p: [(parts(p, rule), jax.jacrev(parts)(p, rule)) for rule in rules])


@pytest.mark.parametrize("ratio", [0.1, 0.9, 1 - 1e-9, 1.0, 1 + 1e-9, 1.2, 100.0])
def test_pair_from_eigenvalues_is_the_same_with_the_same_slopes(both_ways, ratio):
    (value, slopes), (dense, dense_slopes) = both_ways(
        jnp.array([1.0, 0.7, 1.0, ratio * (4.3 / 6) ** 6])
    )
    # LAPACK on a matrix of norm 7, whose eigenvalues near -gamma, at the smallest gain, are badly
    # conditioned; the pair's own sum and product are not, even where its roots meet.
    np.testing.assert_allclose(dense, value, atol=1e-12)
    np.testing.assert_allclose(dense_slopes, slopes, atol=1e-10, rtol=1e-11)


def test_a_real_root_with_no_real_partner_stands_alone():
    def pair(gain):
        rule = lb.WeightedLogit(gain, [0.0, 3.0])
        return lb.stability.rightmost_pair(lb.System(1.0, 1.0, lb.Erlang(1.0, 2), rule))

    roots = np.linalg.eigvals([[-1.0, 0, 2], [-2.0, -2, -6], [0, 2, -2]])
    assert pair(2.0).single
    first = roots[np.argmax(roots.real)]
    assert first.imag == 0
    # Rounding of LAPACK.
    np.testing.assert_allclose(pair(2.0)[:2], [first.real, 0], atol=1e-13)
    slope = jax.grad(lambda gain: pair(gain).middle)(2.0)
    # The step squared.
    step = 1e-5
    difference = (pair(2.0 + step).middle - pair(2.0 - step).middle) / (2 * step)
    np.testing.assert_allclose(slope, difference, atol=1e-8)


def test_single_precision_stays_single_and_close(pair):
    rng = np.random.default_rng(4)
    given = [
        np.ones(SIZE),
        10 ** rng.uniform(-2, 0, SIZE),
        np.ones(SIZE),
        rng.choice([1, 2, 8, 100, np.inf], SIZE),
        10 ** rng.uniform(-3, 3, SIZE),
    ]
    single = [values.astype(np.float32) for values in given]
    middle, squared = pair(*single)
    exact_middle, exact_squared = pair(*(values.astype(float) for values in single))
    assert middle.dtype == squared.dtype == np.float32
    scale = np.abs(exact_middle) + np.sqrt(np.abs(exact_squared))
    # delta carries the rounding of logarithms of up to 10.
    assert np.all(np.abs(middle - exact_middle) < 1e-5 * scale)
    assert np.all(np.abs(squared - exact_squared) < 1e-5 * scale**2)


def test_a_new_number_of_stages_does_not_recompile(pair_and_traces):
    pair, traces = pair_and_traces
    pair(1.0, 1.0, 1.0, 3.0, 0.1)
    programs = len(traces)
    for stages in (2.0, 7.5, 1e6, np.inf):
        pair(1.0, 1.0, 1.0, stages, 0.1)
    assert len(traces) == programs


def test_a_bad_argument_is_named():
    with pytest.raises(ValueError, match=re.escape("`stages` must be at least 1, got 0.5.")):
        lb.stability.erlang_pair(1.0, 1.0, 1.0, 0.5, 1.0)
