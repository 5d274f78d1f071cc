import re
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")

POSITIVE = "must be positive and finite"
GAIN = "`gain` must be non-negative and finite, got {} 1/s."

# lambda, mu, D, L, critical theta, frequency: made with 60 digits outside this project; L =
# infinity is the deterministic delay.
REFERENCE = [
    (15, 1, 1, 1, np.inf, np.inf),
    (15, 1, 1, 2, 0.6, 2.8284271247461903),
    (10, 1, 4, 1, np.inf, np.inf),
    (10, 1, 4, 2, 0.9, 1.118033988749895),
    (1, 0.5, 1, 5, 2.7807409295801224, 1.9123620934491845),
    (2, 1, 1, 8, 1.4856157901439364, 2.065786037988606),
    (1, 1, 1, 100, 2.309069701122852, 2.028990689750827),
    (1, 1, 1, 1000000.0, 2.261830988799949, 2.0287578381127624),
    (1, 1, 1, np.inf, 2.2618263341146516, 2.028757838110434),
    (10, 0.25, 1, 32, 0.1816809136050658, 1.7170259070421734),
    (3, 6, 2, 4, 6.4039800856489295, 1.7364201666240564),
    (1, 2, 2, 4, 5.770876399966351, 1.4530850560107218),
    (1, 0.001, 1, 3, 2.6687411357878355, 1.7328203514511504),
    (1, 100, 10, 1000, 100.49420522755514, 0.3138464503912195),
    (2, 50, 1, 7, 50.38841481765099, 3.290430484313701),
    (10, 0.0001, 1, 128, 0.1586154836089365, 1.5709388503737562),
    (1, 1, 0.01, 2, 404.01, 200.9975124224178),
]


def test_two_stages_lose_stability_at_the_critical_gain():
    """Equality in (22) puts the rightmost pair on the imaginary axis."""
    rng = np.random.default_rng(8)
    rates, means = 10 ** rng.uniform(-1, 1, (2, 200))

    @jax.jit
    @jax.vmap
    def around_the_boundary(service_rate, mean):
        def system(gain):
            return lb.System(4.0, service_rate, lb.Erlang(mean, 2), lb.Logit(gain / 4.0))

        critical = lb.stability.two_stage_critical_gain(system(1.0))
        gains = critical * jnp.array([1.0, 0.999, 1.001])
        return jax.vmap(lambda gain: lb.stability.rightmost_root(system(gain)))(gains)

    on, below, above = around_the_boundary(rates, means).T
    # Rounding of the largest entry of A_L, which is mu, gamma or the gain.
    stage = 2 / means
    scale = 2 * rates**2 / stage + 4 * rates + 2 * stage
    assert np.all(abs(on.real) < 1e-14 * scale)
    assert np.all(below.real < 0)
    assert np.all(above.real > 0)
    # The frequency squared is a_2 = 2 mu gamma + gamma^2; relative to it, twice that rounding.
    np.testing.assert_allclose(on.imag**2, 2 * rates * stage + stage**2, rtol=1e-12)


def test_critical_gain_of_the_paper_is_nine():
    for mean in [1.0, 4.0]:
        system = lb.System(15.0, 1.0, lb.Erlang(mean, 2), lb.Logit(1.0))
        assert lb.stability.two_stage_critical_gain(system) == 9


def test_critical_gain_is_differentiable_in_rate_and_mean():
    def gain(rate, mean):
        return lb.stability.two_stage_critical_gain(
            lb.System(1.0, rate, lb.Erlang(mean, 2), lb.Logit(1.0))
        )

    slopes = jax.grad(gain, (0, 1))(3.0, 0.5)
    # mu^2 D + 4 mu + 4 / D, so 2 mu D + 4 and mu^2 - 4 / D^2; a few roundings.
    np.testing.assert_allclose(slopes, [7.0, -7.0], rtol=2e-15)


@pytest.mark.parametrize("delay", [lb.Erlang(1.0, 3), lb.Deterministic(1.0)], ids=repr)
def test_critical_gain_is_that_of_two_stages_only(delay):
    system = lb.System(1.0, 1.0, delay, lb.Logit(1.0))
    with pytest.raises(ValueError, match=r"^`delay` must be Erlang\(mean, 2\), got "):
        lb.stability.two_stage_critical_gain(system)


@pytest.fixture(scope="module")
def point():
    return jax.jit(jax.vmap(lb.stability.erlang_boundary))


@pytest.fixture(scope="module")
def window():
    return jax.jit(jax.vmap(lb.stability.erlang_delay_window))


def stages_of_every_kind(rng, size):
    """Whole numbers few and many, infinity, and reals around one and two."""
    kinds = [
        rng.integers(1, 12, size),
        np.floor(10 ** rng.uniform(0, 6, size)),
        np.full(size, np.inf),
        1 + 10 ** rng.uniform(-6, 0, size),
        2 + 10 ** rng.uniform(-8, 0, size),
    ]
    return np.concatenate(kinds)


def exact_boundary(m, stages, guess):
    """y = w D and kappa of the two equations on the imaginary axis, by Newton from `guess`."""
    m, y = closed_forms.exact(m), closed_forms.exact(guess)
    L = None if np.isinf(stages) else closed_forms.exact(stages)
    for _ in range(6):
        angle = y if L is None else L * mp.atan(y / L)
        slope = m / (m * m + y * y) + (1 if L is None else 1 / (1 + (y / L) ** 2))
        y *= mp.exp((mp.pi - mp.atan(y / m) - angle) / slope / y)
    return y, mp.sqrt(m * m + y * y) * (1 if L is None else (1 + (y / L) ** 2) ** (L / 2))


def test_boundary_is_the_reference_value(point):
    arrival_rate, service_rate, mean, stages, theta, omega = np.array(REFERENCE, float).T
    found = point(service_rate, mean, stages)
    # A few roundings.
    np.testing.assert_allclose(found.gain / arrival_rate, theta, rtol=2e-15)
    np.testing.assert_allclose(found.frequency, omega, rtol=2e-15)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 4e-15), (np.float32, 2e-6)])
def test_boundary_is_exact_to_rounding_for_any_real_number_of_stages(point, dtype, tolerance):
    rng = np.random.default_rng(1)
    stages = stages_of_every_kind(rng, 40).astype(dtype)
    m = (10 ** rng.uniform(-4, 4, len(stages))).astype(dtype)
    found = point(m, np.ones_like(m), stages)
    assert found.gain.dtype == found.frequency.dtype == dtype
    for at, L, gain, frequency in zip(m, stages, *found, strict=True):
        if L == 1:
            assert gain == frequency == np.inf
            continue
        y, kappa = exact_boundary(at, L, frequency)
        # Measured at most 3.6e-15 and 1.7e-6, over 3000 draws.
        assert abs(float(float(frequency) / y - 1)) < tolerance
        assert abs(float(float(gain) / kappa - 1)) < tolerance


def test_a_system_has_the_boundary_of_its_numbers():
    for delay, theta, omega in [
        (lb.Erlang(4.0, 2), 0.9, 1.118033988749895),
        (lb.Deterministic(1.0), 0.22618263341146516, 2.028757838110434),
        (lb.Erlang(1.0, 1), np.inf, np.inf),
        (lb.NoDelay(), np.inf, np.inf),
    ]:
        system = lb.System(10.0, 1.0, delay, lb.Logit(1.0))
        np.testing.assert_allclose(lb.stability.critical_sensitivity(system), theta, rtol=2e-15)
        np.testing.assert_allclose(lb.stability.hopf_frequency(system), omega, rtol=2e-15)


def exact_mean(ratio, stages, upper):
    """m = mu D where sin(u) sin(c)^L = 1 / ratio on one side of the maximum u = c, by bisection."""
    ratio, L = closed_forms.exact(ratio), closed_forms.exact(stages)
    room = mp.pi / 2 * (L - 1)
    fold = room / (L + 1)
    end = min(mp.pi / 2, room) if upper else mp.mpf(0)

    def depth(u):
        return mp.log(mp.sin(u)) + L * mp.log(mp.sin((room - u) / L)) + mp.log(ratio)

    if depth(fold) < 0 or (stages > 2 and upper and depth(end) > 0):
        return mp.inf
    near, far = mp.mpf(10) ** -35, abs(fold - end)
    for _ in range(150):
        middle = mp.sqrt(near * far)
        inside = depth(end - middle if upper else end + middle) > 0
        near, far = (near, middle) if inside else (middle, far)
    u = end - far if upper else end + far
    return L / mp.tan((room - u) / L) * mp.tan(u)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 2e-14), (np.float32, 6e-6)])
def test_window_is_exact_to_the_rounding_of_the_gain(window, dtype, tolerance):
    rng = np.random.default_rng(2)
    stages = stages_of_every_kind(rng, 15)
    stages = stages[np.isfinite(stages) & (stages > 1.0001)].astype(dtype)
    wide = stages.astype(float)
    safe = np.cos(np.pi / (wide + 1)) ** -(wide + 1)
    # Beyond sec(pi / L)^L stability does not return; half of the ratios lie before.
    last = np.where(wide > 2, np.cos(np.pi / np.maximum(wide, 2)) ** -wide, 1e8)
    share = rng.uniform(0.1, 0.9, len(wide))
    inside = safe ** (1 - share) * np.minimum(last, 1e8) ** share
    beyond = safe * (1 + 10 ** rng.uniform(-2, 6, len(wide)))
    ratio = np.where(rng.random(len(wide)) < 0.5, inside, beyond).astype(dtype)
    found = window(ratio, np.ones_like(ratio), stages)
    for number, upper in ((0, False), (1, True)):
        part = jax.jit(
            jax.vmap(
                jax.grad(lambda r, L, n=number: lb.stability.erlang_delay_window(r, 1.0, L)[n])
            )
        )
        slope = part(ratio.astype(float), wide)
        for at, L, mean, steep in zip(ratio, stages, found[number], slope, strict=True):
            exact = exact_mean(at, L, upper)
            if mp.isinf(exact) or np.isinf(mean):
                # Only where the last digits of the ratio decide.
                assert (
                    mp.isinf(exact) == np.isinf(mean) or abs(at / safe.max() - 1) < 1e-3 or L > 1e3
                )
                continue
            condition = max(1.0, abs(float(steep) * float(at) / float(exact)))
            assert abs(float(float(mean) / exact - 1)) < tolerance * condition
    assert found.lower.dtype == dtype


@pytest.mark.parametrize("stages", [2.0, 3.0, 20.0, 1e6, np.inf])
def test_window_opens_in_proportion_to_the_mean_far_beyond_the_safe_gain(stages):
    """As K / mu grows the first crossing is where L arctan(K D / L) is pi / 2: K D is that."""
    with mp.workdps(40):
        right = mp.pi / (2 * stages)
        # And 1 / |F| at that frequency.
        limit = mp.pi / 2 if np.isinf(stages) else stages * mp.tan(right) * mp.sec(right) ** stages
    limit = float(limit)
    for gain in (1e20, 1e33, 1e50, 1e101, 1e140):
        lower = lb.stability.erlang_delay_window(gain, 1.0, stages).lower
        np.testing.assert_allclose(lower * gain, limit, rtol=1e-12)


@pytest.mark.parametrize(
    "delay",
    [lb.Erlang(1.0, 1), lb.NoDelay(), lb.from_mean_cv(1.0, 1.7)],
    ids=["exponential", "none", "hyperexponential"],
)
def test_derivatives_of_an_infinite_critical_sensitivity_are_zero(delay):
    def critical(rates):
        arrival_rate, service_rate = rates
        return lb.stability.critical_sensitivity(
            lb.System(arrival_rate, service_rate, delay, lb.Logit(2.0))
        )

    rates = jnp.array([5.0, 1.0])
    assert critical(rates) == np.inf
    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        np.testing.assert_array_equal(derivative(critical)(rates), 0)


def test_windows_of_the_literature():
    two = lb.System(2.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(5.0))
    # Gain 10: 2 m^2 + 8 m + 8 = 20 m, so 3 -+ sqrt(5).
    np.testing.assert_allclose(
        lb.stability.critical_delay(two)[:2], [3 - 5**0.5, 3 + 5**0.5], rtol=4e-15
    )
    # Pender, Rand and Wesson (2017): critical delay .3617394710, frequency 4.8989795.
    fixed = lb.System(1.0, 1.0, lb.Deterministic(9.0), lb.Logit(5.0))
    found = lb.stability.critical_delay(fixed)
    np.testing.assert_allclose(found.lower, 0.3617394710, rtol=2e-10)
    assert found.upper == np.inf
    at = lb.System(1.0, 1.0, lb.Deterministic(found.lower), lb.Logit(1.0))
    np.testing.assert_allclose(lb.stability.hopf_frequency(at), 24**0.5, rtol=4e-15)


def test_balance_is_unstable_in_the_window_and_only_there(window):
    """The rightmost root agrees, for each number of stages on both sides of each end."""
    stages = np.array([1.0, 2, 3, 4, 8, 8, 30, np.inf, np.inf])
    gain = np.array([50.0, 9, 4.5, 3.2, 1.8, 40, 1.2, 1.01, 0.99])
    lower, upper, single = window(gain, np.ones(9), stages)
    assert single.all()
    root = jax.jit(jax.vmap(lambda d, L, g: lb.stability.erlang_root(1.0, 1.0, d, L, g).root.real))
    for scale in np.geomspace(1e-3, 1e3, 61):
        abscissa = root(np.full(9, scale), stages, gain)
        np.testing.assert_array_equal(abscissa > 0, (lower < scale) & (scale < upper))
    for end, side in ((lower, 1), (upper, -1)):
        there = np.isfinite(end)
        assert there.sum() >= 4
        inside, outside = (
            root(np.where(there, end * (1 + side * h), 1.0), stages, gain) for h in (1e-6, -1e-6)
        )
        assert np.all(inside[there] > 0)
        assert np.all(outside[there] < 0)


def test_safe_gain_is_where_the_window_opens(window):
    """At mu sec(pi / (L + 1))^(L + 1), at a mean delay of L / mu."""
    stages = np.array([2.0, 3.0, 4.0, 5.0, 8.0])
    safe = jax.vmap(lb.stability.erlang_safe_gain, (None, 0))(0.5, stages)
    # The digits of the published table.
    wanted = [8, 4, 2.8854382, 2.3703704, 1.7503611]
    np.testing.assert_allclose(safe, 0.5 * np.array(wanted), rtol=2e-8)
    below = window(safe * (1 - 1e-12), np.full(5, 0.5), stages)
    assert np.isinf(below.lower).all()
    above = window(safe * (1 + 1e-12), np.full(5, 0.5), stages)
    # The ends part as the square root of the excess.
    np.testing.assert_allclose(above.lower, stages / 0.5, rtol=1e-5)
    np.testing.assert_allclose(above.upper, stages / 0.5, rtol=1e-5)
    assert np.all(above.lower < above.upper)
    for delay, gain in [(lb.Deterministic(1.0), 0.5), (lb.Erlang(1.0, 1), np.inf)]:
        system = lb.System(1.0, 0.5, delay, lb.Logit(1.0))
        assert lb.stability.critical_gain_for_every_delay(system) == gain


def numbers(p):
    service_rate, mean, gain, stages = p
    point = lb.stability.erlang_boundary(service_rate, mean, stages)
    ends = lb.stability.erlang_delay_window(gain, service_rate, stages)
    safe = lb.stability.erlang_safe_gain(service_rate, stages)
    return jnp.stack([*point, ends.lower, ends.upper, safe])


def central(function, points, step=1e-6):
    """Central differences in each argument, the last axis."""
    many = jax.jit(jax.vmap(jax.vmap(function)))
    shifts = step * np.eye(points.shape[1])
    near, far = (many(points[:, None] + sign * shifts) for sign in (1, -1))
    return np.moveaxis(np.asarray(near - far), 1, -1) / (2 * step)


POINTS = np.array([[1.0, 0.7, 9.0, 2.0], [0.5, 2.0, 2.5, 3.0], [2.0, 0.3, 90.0, 1.6]])


def test_gradients_are_those_of_finite_differences_and_finite_without_a_boundary():
    # One stage, no feedback, at the fold, past the last ratio, infinitely many.
    edges = [
        [1.0, 1.0, 3.0, 1.0],
        [1.0, 1.0, 0.0, 4.0],
        [1.0, 1.0, 8.0, 2.0],
        [1.0, 1.0, 1e6, 5.0],
        [1.0, 1.0, 5.0, np.inf],
    ]
    slopes = jax.jit(jax.vmap(jax.jacrev(numbers)))(np.concatenate([POINTS, edges]))
    # The step squared times third derivatives of some hundreds; rounding over the step, 1e-9.
    np.testing.assert_allclose(slopes[:3], central(numbers, POINTS), rtol=1e-6, atol=1e-8)
    assert np.isfinite(slopes).all()
    assert not np.any(slopes[3])  # one stage: nothing but infinities


def test_second_derivatives_are_those_of_finite_differences():
    def gain_and_mean(p):
        found = numbers(p)
        return found[0] + found[2]

    bends = jax.jit(jax.vmap(jax.jacfwd(jax.grad(gain_and_mean))))(POINTS)
    # As above, with one derivative more.
    wanted = central(jax.grad(gain_and_mean), POINTS)
    np.testing.assert_allclose(bends, wanted, rtol=1e-5, atol=1e-7)


def test_a_new_number_of_stages_does_not_recompile():
    traces = []

    @jax.jit
    def of_stages(stages):
        traces.append(stages)
        return numbers((1.0, 1.0, 9.0, stages))

    for stages in (1.0, 2.0, 2.5, 1e6, np.inf):
        of_stages(stages)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("function", "arguments", "complaint"),
    [
        ("erlang_boundary", (1.0, 1.0, 0.5), "`stages` must be at least 1, got 0.5."),
        ("erlang_boundary", (1.0, 0.0, 2), f"`mean` {POSITIVE}, got 0.0 s."),
        ("erlang_safe_gain", (-1.0, 2), f"`service_rate` {POSITIVE}, got -1.0 1/s."),
        ("erlang_delay_window", (-1.0, 1.0, 2), GAIN.format("-1.0")),
        ("erlang_best_gain", (1.0, 1.0, np.nan), "`stages` must be at least 1, got nan."),
        ("erlang_best_delay", (np.inf, 1.0, 2), GAIN.format("inf")),
    ],
)
def test_a_bad_argument_is_named(function, arguments: Any, complaint):
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        getattr(lb.stability, function)(*arguments)
