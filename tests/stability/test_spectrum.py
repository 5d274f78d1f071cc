from functools import cache, partial

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

# lambda, theta, mu, D, L, abscissa, omega: rightmost root, made with 60 digits outside this
# project; L = infinity is the deterministic delay.
REFERENCE = [
    (15, 1, 1, 1, 1, -1.0, 3.872983346207417),
    (15, 1, 1, 1, 2, 0.30415780665979303, 3.364389094717527),
    (10, 1, 1, 4, 1, -0.625, 1.5360257159305635),
    (10, 1, 1, 4, 2, 0.02299454723532991, 1.1591222698874322),
    (10, 0.01, 1, 4, 1, -0.28496323728161393, 0.0),
    (1, 0.25, 0.5, 1, 5, -1.1323349698810847, 0.5750186065731991),
    (2, 0.05, 1, 1, 8, -1.5849539089248084, 0.0),
    (1, 0.1, 1, 1, 100, -1.4164364299286305, 0.0),
    (1, 0.135, 1, 1, np.inf, -1.9312094949001204, 0.0),
    (1, 3, 1, 1, np.inf, 0.21400352638554887, 2.095818884724434),
    (10, 2, 0.25, 1, 32, 1.8098878302237256, 2.410775522518155),
    (3, 0.5, 6, 2, 4, -0.914130753130944, 0.9865280333527693),
    (1, 2, 2, 2, 4, -0.38196601125010515, 1.1755705045849463),
    (1, 1e-06, 0.001, 1, 3, -0.0010010010016693754, 0.0),
    (1, 50, 100, 10, 1000, -0.06971365686072935, 0.3136276565537242),
    (2, 0.001, 50, 1, 7, -5.489149901164864, 0.7232717034051059),
    (10, 10, 0.0001, 1, 128, 3.211823030191376, 2.5356878844405117),
    (1, 1000000.0, 1, 0.01, 2, 1576.9442649225377, 2960.6365775765394),
]


def system(parameters, stages):
    """`parameters`: lambda, theta, mu, D."""
    arrival_rate, sensitivity, service_rate, mean = parameters
    delay = lb.Deterministic(mean) if np.isinf(stages) else lb.Erlang(mean, int(stages))
    return lb.System(arrival_rate, service_rate, delay, lb.Logit(sensitivity))


@cache
def root_and_slopes(stages):
    """Real and imaginary part of the rightmost root, and their slopes in `parameters`: a program
    for each number of stages."""

    def parts(parameters):
        root = lb.stability.rightmost_root(system(parameters, stages))
        both = jnp.stack([root.real, root.imag])
        return both, both

    return jax.jit(jax.jacrev(parts, has_aux=True))


def transform(mean, stages):
    if np.isinf(stages):
        return partial(closed_forms.deterministic_transform, mean)
    return partial(closed_forms.erlang_transform, mean, stages)


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: "-".join(f"{v:g}" for v in row[:5]))
def test_rightmost_root_is_the_reference_value(row):
    *parameters, abscissa, omega = row
    service_rate, mean, stages = parameters[2:]
    whole = system(parameters[:4], stages)
    # Rounding of the largest entry of A_L, mu or gamma; next to a double root (the hundred stages,
    # the fixed delay at .135) the distance of the two, 1e-2 of it, divides that.
    scale = service_rate + 1 / mean if np.isinf(stages) else service_rate + stages / mean
    root = lb.stability.rightmost_root(whole)
    np.testing.assert_allclose(root, abscissa + 1j * omega, rtol=0, atol=2e-14 * scale)
    assert lb.stability.spectral_abscissa(whole) == root.real


@pytest.mark.parametrize("stages", [1, 3, 8])
def test_rightmost_root_is_the_rightmost_root_of_the_polynomial(stages):
    rng = np.random.default_rng(stages)
    gain, service_rate, mean = 10 ** rng.uniform([-3, -1, -1], [3, 1, 1], (20, 3)).T
    for g, mu, d in zip(gain, service_rate, mean, strict=True):
        r = lb.stability.rightmost_root(system((1.0, g, mu, d), stages))
        wanted = complex(closed_forms.rightmost_erlang_root(mu, g, d, stages))
        # 1e-14 is the worst of 300 at each number of stages, in units of the largest entry.
        assert abs(complex(r) - wanted) < 2e-14 * (mu + stages / d)


@pytest.mark.parametrize("stages", [1, 2, 10**6, np.inf])
def test_characteristic_residual_agrees_with_forty_digits(stages):
    rng = np.random.default_rng(5)
    gain, service_rate, mean = 10 ** rng.uniform([-4, -2, -2], [4, 2, 2], (20, 3)).T
    turns = 10 ** rng.uniform(-6, 1.5, 20) * np.exp(1j * rng.uniform(-np.pi, np.pi, 20))
    # One by one: the transforms of the times in a million phases would fill the memory.
    residual = jax.jit(
        lambda g, mu, d, r: lb.stability.characteristic_residual(system((1.0, g, mu, d), stages), r)
    )
    for g, mu, d, r in zip(gain, service_rate, mean, turns / mean, strict=True):
        found = complex(residual(g, mu, d, r))
        f = transform(d, stages)
        wanted = complex(closed_forms.characteristic(f, mu, g, r))
        # Two roundings of each term, and those of r D amplified by the transform's condition.
        condition = abs(r * d) if np.isinf(stages) else abs(r * d / (1 + r * d / stages))
        terms = abs(r) + mu + g * float(abs(f(r))) * (1 + condition)
        assert abs(found - wanted) < 6e-16 * terms


@pytest.mark.parametrize(
    ("arrival_rate", "sensitivity", "service_rate", "mean", "stages"),
    [(15, 1, 1, 1, 2), (2, 0.05, 1, 1, 8), (10, 0.01, 1, 4, 1), (1, 3, 1, 1, 8),
     (1, 3, 1, 1, np.inf), (1, 0.1, 1, 1, np.inf)],
)  # fmt: skip
def test_gradient_is_that_of_the_implicit_root(
    arrival_rate, sensitivity, service_rate, mean, stages
):
    parameters = jnp.array([arrival_rate, sensitivity, service_rate, mean], float)
    slopes, parts = root_and_slopes(stages)(parameters)
    guess = parts @ np.array([1, 1j])

    def root(*parameters):
        a, theta, mu, d = map(closed_forms.exact, parameters)
        return closed_forms.root_near(transform(d, stages), mu, a * theta, guess)

    for i in range(4):
        order = tuple(int(i == j) for j in range(4))
        wanted = complex(mp.diff(root, tuple(parameters.tolist()), order))
        # The root's error, 1e-14, is amplified by the second derivative: at most 1e2 here.
        np.testing.assert_allclose(slopes[:, i], [wanted.real, wanted.imag], rtol=1e-12, atol=1e-12)


def test_second_derivatives_are_those_of_the_implicit_root():
    parameters = 15.0, 1.0, 1.0, 1.0

    def abscissa(parameters):
        return lb.stability.spectral_abscissa(system(parameters, 2))

    def root(*parameters):
        a, theta, mu, d = map(closed_forms.exact, parameters)
        return closed_forms.root_near(transform(d, 2), mu, a * theta, 0.3 + 3.36j).real

    hessian = jax.jit(jax.hessian(abscissa))(jnp.array(parameters))
    for i in range(4):
        for j in range(i + 1):
            order = tuple(int(i == k) + int(j == k) for k in range(4))
            wanted = float(mp.diff(root, parameters, order))
            # As above, with third derivatives.
            np.testing.assert_allclose(hessian[i, j], wanted, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(hessian[j, i], wanted, rtol=1e-12, atol=1e-12)


def test_gradient_is_that_of_finite_differences():
    parameters, step = jnp.array([15.0, 1.0, 1.0, 1.0]), 1e-5
    shifted = parameters + step * jnp.concatenate([jnp.eye(4), -jnp.eye(4)])
    values = np.array([root_and_slopes(8)(numbers)[1] for numbers in shifted])
    slopes = (values[:4] - values[4:]).T / (2 * step)
    # Square of the step times third derivatives below 1e2; rounding 1e-14 over the step.
    np.testing.assert_allclose(root_and_slopes(8)(parameters)[0], slopes, atol=2e-8)


def test_exponential_delay_never_destabilises():
    """The paper's section 4.3, over 2000 random parameters of many magnitudes."""
    rng = np.random.default_rng(6)
    parameters = 10 ** rng.uniform(-3, 3, (2000, 4))
    abscissa = jax.jit(jax.vmap(lambda p: lb.stability.spectral_abscissa(system(p, 1))))
    assert np.all(abscissa(parameters) < 0)


@pytest.mark.parametrize("stages", [1, 2, 8, np.inf])
@pytest.mark.parametrize(("service_rate", "mean"), [(1.0, 0.3), (1.0, 4.0), (1.0, 1.0)])
def test_gradient_is_finite_without_sensitivity(stages, service_rate, mean):
    slopes, parts = root_and_slopes(stages)(jnp.array([2.0, 0.0, service_rate, mean]))
    value, gradient = parts[0], slopes[0]
    # A_L is triangular, so its eigenvalues are its diagonal.
    assert value == -min(service_rate, stages / mean)
    assert np.all(np.isfinite(gradient))
    if stages / mean > service_rate:
        # -lambda (1 - mu / gamma)^-L, to a few dozen roundings of the power's condition.
        f = float(transform(mean, stages)(-service_rate).real)
        np.testing.assert_allclose(gradient, [0, -2 * f, -1, 0], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("gain", "mean", "stages"),
    [(0.5625, 4.0, 1), (1 / 27, 1.0, 2), (np.exp(-2), 1.0, np.inf), (0.0, 1.0, 1)],
)
def test_gradient_is_that_from_above_where_two_roots_meet(gain, mean, stages):
    """The series of eta about the double root, by hand: Re eta = 2 (1 - s) delta / (3 (1 + s))."""

    def abscissa(gain):
        slopes, parts = root_and_slopes(stages)(jnp.array([1.0, gain, 1.0, mean]))
        return parts[0], slopes[0, 1]

    s = 1 / stages
    rise = 2 * abs(1 - s * mean) * (1 - s) / (3 * (1 + s) ** 2) / mean / (gain or 1)
    # The root is -(1 + m) / ((1 + s) D) there; a few roundings in each.
    value, slope = abscissa(gain)
    np.testing.assert_allclose(value, -(1 / mean + 1) / (1 + s), rtol=2e-8)
    np.testing.assert_allclose(slope, rise, rtol=1e-12)
    step = 1e-6 * (gain or 1)
    # Second-order term of the one-sided difference.
    slope = (abscissa(gain + step)[0] - value) / step
    np.testing.assert_allclose(slope, rise, rtol=1e-4, atol=1e-9)


def test_fixed_delay_is_lamberts_w_function():
    rng = np.random.default_rng(7)
    gain, service_rate, mean = 10 ** rng.uniform([-6, -2, -2], [6, 2, 2], (200, 3)).T
    found = jax.jit(jax.vmap(lambda *p: lb.stability.rightmost_root(system((1.0, *p), np.inf))))(
        gain, service_rate, mean
    )
    for g, mu, d, r in zip(gain, service_rate, mean, found, strict=True):
        wanted = complex(closed_forms.rightmost_fixed_delay_root(mu, g, d))
        # 2.6e-15 is the worst of 3000, in units of mu + 1 / D.
        assert abs(complex(r) - wanted) < 4e-15 * (mu + 1 / d)


def test_long_erlang_chain_approaches_the_fixed_delay():
    """The two differ by O(1 / L): ten times the stages, a tenth of the distance."""
    limit = lb.stability.rightmost_root(system((1.0, 3.0, 1.0, 1.0), np.inf))
    away = [
        abs(lb.stability.rightmost_root(system((1.0, 3.0, 1.0, 1.0), stages)) - limit)
        for stages in [20, 200]
    ]
    # The next term of the series is 1/20 of the first.
    np.testing.assert_allclose(away[0] / away[1], 10, rtol=0.1)


LOGIT, WEIGHTED = lb.Logit(2.0), lb.WeightedLogit(2.0, [1.0, 0.5, -0.2])


@pytest.mark.parametrize(
    ("delay", "rule"),
    [
        (lb.Erlang(1.0, 3), LOGIT),
        (lb.Erlang(1.0, 3), WEIGHTED),
        (lb.MixedErlang(2.0, [0.25, 0.5, 0.25]), WEIGHTED),
        (lb.PhaseType([0.5, 0.25, 0.25], LOOP), LOGIT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_all_eigenvalues_solve_the_characteristic_equation(delay, rule):
    whole = lb.System(1.7, 0.6, delay, rule)
    roots = lb.stability.eigenvalues(whole)
    assert roots.shape == (4,)
    residual = jax.jit(lambda r: lb.stability.characteristic_residual(whole, r))
    residuals = [residual(root) for root in roots]
    # The root's error, 1e-15, times the slope, at most 1e3 next to a pole of the transform.
    np.testing.assert_allclose(residuals, 0, atol=1e-12)
    rightmost = lb.stability.rightmost_root(whole)
    # The same root by another way, or by LAPACK again.
    np.testing.assert_allclose(rightmost.real, roots.real.max(), rtol=1e-13)
    assert rightmost.imag >= 0


def test_weights_move_the_rightmost_root_with_the_right_gradient():
    """By implicit differentiation here, by a difference of dense eigenvalues there."""

    def abscissa(weights):
        whole = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.WeightedLogit(1.0, weights))
        return lb.stability.spectral_abscissa(whole)

    weights, step = jnp.array([0.3, -0.1]), 1e-5
    shifted = weights + step * jnp.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    value_and_slope = jax.jit(jax.value_and_grad(abscissa))
    values = np.array([value_and_slope(near)[0] for near in shifted])
    # As in the test of finite differences above.
    np.testing.assert_allclose(
        value_and_slope(weights)[1], (values[::2] - values[1::2]) / (2 * step), atol=2e-8
    )


@pytest.mark.parametrize(
    ("initial", "generator", "gain", "omega"),
    [
        # Gain and frequency of the first crossing, made outside this project to 10 digits.
        ([1.0, 0.0, 0.0], COXIAN, 9.7152251613, 2.9744292165),
        # With .4 two stages of rate 4, with .6 six of rate 3.
        (
            [0.4, 0.0, 0.6, 0.0, 0.0, 0.0, 0.0, 0.0],
            np.diag([-4.0] * 2 + [-3.0] * 6) + np.diag([4.0, 0.0] + [3.0] * 5, 1),
            35.6899229143,
            5.1699740776,
        ),
    ],
    ids=["Coxian", "two Erlang branches"],
)
def test_phase_type_delay_oscillates_at_its_critical_gain(initial, generator, gain, omega):
    delay = lb.PhaseType(initial, generator)

    def rightmost(gain):
        return lb.stability.rightmost_root(lb.System(1.0, 1.0, delay, lb.Logit(gain)))

    # Ten digits were given.
    np.testing.assert_allclose(rightmost(gain), 1j * omega, atol=1e-9)
    assert rightmost(0.99 * gain).real < 0 < rightmost(1.01 * gain).real


def test_hyperexponential_delay_never_destabilises():
    """More variable than exponential: stable up to a gain of a million."""
    delay = lb.PhaseType([0.5, 0.3, 0.2], np.diag([-5.0, -1.0, -0.2]))
    gains = np.geomspace(1e-3, 1e6, 100)
    abscissa = jax.vmap(
        lambda gain: lb.stability.spectral_abscissa(lb.System(1.0, 1.0, delay, lb.Logit(gain)))
    )(gains)
    assert np.all(abscissa < 0)


def test_another_number_of_stages_compiles_nothing():
    spent = []

    def listen(event: str, duration_secs: float, **_: str | int):
        spent.append(duration_secs if "backend_compile" in event else 0)

    jax.monitoring.register_event_duration_secs_listener(listen)

    def compiled(stages):
        before = np.count_nonzero(spent)
        lb.stability.rightmost_root(system((15.0, 1.0, 1.0, 1.0), stages))
        return np.count_nonzero(spent) - before

    # What is new in the first is seen.
    jax.clear_caches()
    assert compiled(6) > 0
    assert [compiled(stages) for stages in (7, 60)] == [0, 0]


def test_number_of_servers_does_not_matter():
    two, nine = [
        lb.stability.rightmost_root(
            lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0), num_servers)
        )
        for num_servers in [2, 9]
    ]
    assert two == nine


def test_unequal_servers_have_no_difference_mode():
    unequal = lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 2), lb.Logit(1.0))
    single = lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 1), lb.Logit(1.0))
    message = r"^`service_rate` must be the same for every server, got \[1\. 2\.\] 1/s\."
    for use, system in [
        (lb.stability.eigenvalues, unequal),
        (lambda system: lb.stability.characteristic_residual(system, jnp.array(1j)), unequal),
        (lb.stability.two_stage_critical_gain, unequal),
        (lb.stability.exponential_roots, single),
        (lambda system: lb.stability.exponential_imbalance(system, [1.0], 1.0), single),
    ]:
        with pytest.raises(ValueError, match=message):
            use(system)
