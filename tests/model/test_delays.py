from functools import partial

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms
from ..laws import window

COXIAN = [[-3.0, 2.7, 0.0], [0.0, -4.0, 3.2], [0.0, 0.0, -2.0]]
LOOP = [[-2.0, 0.5, 0.7], [0.25, -3.0, 0.0], [1.0, 0.0, -1.5]]
HYPEREXPONENTIAL = np.diag([-5.0, -1.0, -0.2])

LAWS = {
    "none": (lb.NoDelay(), lambda r: mp.exp(0 * closed_forms.exact(r))),
    "exponential": (lb.Erlang(1.3, 1), partial(closed_forms.erlang_transform, 1.3, 1)),
    "Erlang": (lb.Erlang(0.7, 5), partial(closed_forms.erlang_transform, 0.7, 5)),
    "mixed Erlang": (
        lb.MixedErlang(2.0, [0.25, 0.5, 0.0, 0.25]),
        partial(closed_forms.mixed_erlang_transform, 2.0, [0.25, 0.5, 0.0, 0.25]),
    ),
    "Coxian": (
        lb.PhaseType([1.0, 0.0, 0.0], COXIAN),
        partial(closed_forms.phase_type_transform, [1, 0, 0], COXIAN),
    ),
    "hyperexponential": (
        lb.PhaseType([0.5, 0.3, 0.2], HYPEREXPONENTIAL),
        partial(closed_forms.phase_type_transform, [0.5, 0.3, 0.2], HYPEREXPONENTIAL),
    ),
    "loop": (
        lb.PhaseType([0.5, 0.25, 0.25], LOOP),
        partial(closed_forms.phase_type_transform, [0.5, 0.25, 0.25], LOOP),
    ),
    "deterministic": (lb.Deterministic(0.9), partial(closed_forms.deterministic_transform, 0.9)),
}
PHASES = {name: law for name, law in LAWS.items() if name != "deterministic"}
# Real, imaginary and general, tiny and large, on both sides of zero but right of every pole.
POINTS = np.array(
    [0, 1e-12, 1e-9j, 0.4, -0.1, 2j, -0.1 + 0.8j, 0.7 - 3j, 3 + 20j, 40 - 5j, 700], complex
)

laws = pytest.mark.parametrize("name", LAWS)
phase_laws = pytest.mark.parametrize("name", PHASES)


def relative_errors(found, wanted):
    found = np.asarray(found)
    return np.array(
        [
            float(abs(closed_forms.exact(f) / w - 1))
            for f, w in zip(found.ravel(), wanted, strict=True)
        ]
    )


@laws
def test_transform_agrees_with_forty_digits_at_complex_arguments(name):
    delay, transform = LAWS[name]
    found = jax.vmap(delay.transform)(POINTS)
    wanted = [transform(r) for r in POINTS]
    # A rounding error of r is amplified by r f'/f, at most |r| times the mean; four such errors.
    bound = 9e-16 * (1 + abs(POINTS) * float(delay.mean))
    assert np.all(relative_errors(found, wanted) <= bound)


@pytest.mark.parametrize("stages", [1, 2, 50, 10**6])
@pytest.mark.parametrize(
    ("dtype", "unit"), [(np.float64, 9e-16), (np.float32, 4.8e-7)], ids=["float64", "float32"]
)
def test_erlang_transform_keeps_its_digits_up_to_a_million_stages(stages, dtype, unit):
    """Four units of rounding on the condition number; a naive power is 1e-10 off at 10^6."""
    rng = np.random.default_rng(3)
    mean = np.exp(rng.uniform(-3, 3, 100)).astype(dtype)
    turns = 10 ** rng.uniform(-8, 1.4, 100) * np.exp(1j * rng.uniform(-np.pi, np.pi, 100))
    r = (turns / mean).astype(np.result_type(dtype, np.complex64))
    found = jax.vmap(lambda mean, r: lb.Erlang(mean, stages).transform(r))(mean, r)
    assert found.dtype == r.dtype
    wanted = [closed_forms.erlang_transform(d, stages, s) for d, s in zip(mean, r, strict=True)]
    turns = r.astype(complex) * mean
    # r f'/f is -r D / (1 + r D / L).
    condition = abs(turns / (1 + turns / stages))
    assert np.all(relative_errors(found, wanted) <= unit * (1 + condition))


@laws
def test_mean_and_squared_cv_are_the_moments_of_the_transform(name):
    delay, transform = LAWS[name]
    if name == "none":
        assert (delay.mean, delay.squared_cv) == (0, 0)
        return
    mean, squared_cv = closed_forms.mean_and_squared_cv(transform)
    # A dozen roundings; of a difference of numbers of order one in the second.
    np.testing.assert_allclose(delay.mean, mean, rtol=3e-15)
    np.testing.assert_allclose(delay.squared_cv, squared_cv, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("stages", [1, 7, 10**6])
def test_erlang_squared_cv_is_one_over_its_stages(stages):
    assert lb.Erlang(2.0, stages).squared_cv == 1 / stages


@laws
def test_slope_of_the_transform_at_zero_is_minus_the_mean(name):
    delay, _ = LAWS[name]
    _, slope = jax.jvp(delay.transform, (jnp.array(0j),), (jnp.array(1 + 0j),))
    # A dozen roundings.
    np.testing.assert_allclose(slope, -delay.mean, rtol=3e-15, atol=0)


@phase_laws
def test_transforms_of_the_times_in_each_phase_add_up_to_that_of_the_delay(name):
    """(1 - f(r)) / r is the transform of the time spent anywhere in the delay."""
    delay, transform = LAWS[name]
    points = POINTS[abs(POINTS) > 1e-3]
    found = jax.vmap(delay.phase_transform)(points).sum(axis=1)
    wanted = [complex((1 - transform(r)) / closed_forms.exact(r)) for r in points]
    # Terms with alternating signs add up: rounding is relative to the largest, below 1 s.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-15 * max(1, delay.mean))


@phase_laws
def test_occupancy_is_the_mean_time_in_each_phase(name):
    delay, _ = LAWS[name]
    occupancy = delay.occupancy()
    # A dozen roundings.
    np.testing.assert_allclose(occupancy, delay.phase_transform(jnp.array(0j)), rtol=3e-15)
    np.testing.assert_allclose(occupancy.sum(), delay.mean, rtol=3e-15)


@phase_laws
def test_resolvent_of_initial_and_generator_reproduces_the_transforms(name):
    delay, transform = LAWS[name]
    initial, generator = np.asarray(delay.initial), np.asarray(delay.generator)
    identity = np.eye(delay.num_phases)
    for r in POINTS:
        in_phase = np.linalg.solve(r * identity - generator.T, initial)
        whole = in_phase @ -generator.sum(axis=1) if delay.num_phases else 1.0
        # Rounding against rates below 10/s on times below 1 s; f is as small as 1e-12 here.
        np.testing.assert_allclose(whole, complex(transform(r)), rtol=0, atol=1e-14)
        np.testing.assert_allclose(delay.phase_transform(jnp.asarray(r)), in_phase, atol=3e-14)


@phase_laws
def test_moves_and_their_rates_add_up_to_initial_and_generator(name):
    delay, _ = LAWS[name]
    phases = delay.num_phases
    (source, target), rates = delay.routes(), np.asarray(delay.rates())
    flow = np.zeros((phases + 1, phases + 1))
    np.add.at(flow, (source, target), rates)
    generator = flow[1:, :phases] - np.diag(flow[1:].sum(axis=1))
    # The diagonal is a sum of a few rates: two roundings.
    np.testing.assert_allclose(generator, delay.generator, rtol=4e-16)
    if phases:
        np.testing.assert_array_equal(flow[0, :phases], delay.initial)
        assert flow[0, phases] == 0


FAMILIES = {
    lb.Deterministic: [0.0],
    lb.Erlang: [1.0, 0.5, 0.1, 0.01, 1 / np.sqrt(2), 1 / np.sqrt(3), 1 / np.sqrt(7), 0.001],
    lb.MixedErlang: [0.9999, 0.9, 0.7072, 0.6, 0.3, 0.11, 0.07],
    lb.PhaseType: [1.0001, 1.1, 1.5, 2.0, 5.0, 10.0],
}


@pytest.mark.parametrize(
    ("family", "cv"), [(family, cv) for family, cvs in FAMILIES.items() for cv in cvs]
)
def test_fit_has_the_wanted_moments_and_family(family, cv):
    delay = lb.from_mean_cv(2.5, cv)
    assert type(delay) is family
    # Two roundings. The cv squared is 1 + cv^2 less 1, after products of up to 1 / cv^2 stages.
    np.testing.assert_allclose(delay.mean, 2.5, rtol=1e-15)
    np.testing.assert_allclose(1 + delay.squared_cv, 1 + cv**2, rtol=5e-15)


@pytest.mark.parametrize(("cv", "stages"), [(0.9999, 2), (0.7072, 2), (0.7070, 3), (0.3, 12)])
def test_fit_mixes_the_two_stage_counts_next_to_one_over_cv_squared(cv, stages):
    delay = lb.from_mean_cv(1.0, cv)
    assert isinstance(delay, lb.MixedErlang)
    assert delay.num_phases == stages
    np.testing.assert_array_equal(np.nonzero(delay.weights)[0], [stages - 2, stages - 1])


def test_hyperexponential_fit_has_balanced_means():
    delay = lb.from_mean_cv(3.0, 2.0)
    assert isinstance(delay, lb.PhaseType)
    # Each branch carries half of the mean; one rounding.
    np.testing.assert_allclose(delay.occupancy(), [1.5, 1.5], rtol=3e-16)


@pytest.mark.parametrize("cv", [0.0, 0.3, 0.5, 1.0, 2.0])
def test_fit_is_differentiable_in_its_traced_mean(cv):
    @jax.jit
    def mean_and_variance(mean):
        delay = lb.from_mean_cv(mean, cv)
        return jnp.stack([delay.mean, delay.squared_cv * delay.mean**2])

    # The mean is the mean and the variance (cv mean)^2; a dozen roundings.
    slope = jax.jacfwd(mean_and_variance)(2.5)
    np.testing.assert_allclose(slope, [1.0, 2 * cv**2 * 2.5], rtol=2e-15, atol=1e-15)


TRACED = {
    "exponential": lambda scale: lb.Erlang(1.3 * scale, 1),
    "Erlang": lambda scale: lb.Erlang(0.7 * scale, 5),
    "mixed Erlang": lambda scale: lb.MixedErlang(2.0 * scale, [0.25, 0.5, 0.0, 0.25]),
    "Coxian": lambda scale: lb.PhaseType([1.0, 0.0, 0.0], jnp.array(COXIAN) / scale),
    "deterministic": lambda scale: lb.Deterministic(0.9 * scale),
}


@pytest.mark.parametrize("name", TRACED)
def test_traced_parameters_batch_and_differentiate(name):
    """Time scaled by s turns f(r) into f(s r), whose derivative in s is r f'(s r)."""
    scales, r = np.array([0.5, 1.0, 2.0]), 0.3 + 0.9j

    def parts(scale):
        value = TRACED[name](scale).transform(jnp.array(r))
        return jnp.stack([value.real, value.imag])

    values = jax.jit(jax.vmap(parts))(scales)
    # Reverse mode, because forward mode would take another path through the solve.
    slopes = jax.jit(jax.vmap(jax.jacrev(parts)))(scales)
    _, transform = LAWS[name]
    for scale, value, slope in zip(scales, values, slopes, strict=True):
        wanted = complex(transform(scale * r))
        wanted_slope = complex(r * mp.diff(transform, mp.mpc(scale * r)))
        # Two dozen roundings of numbers below one.
        np.testing.assert_allclose(value, [wanted.real, wanted.imag], atol=3e-15)
        np.testing.assert_allclose(slope, [wanted_slope.real, wanted_slope.imag], atol=6e-15)


@pytest.mark.parametrize("row", [[-0.3, 0.1, 0.2], [-2.0, 2.0, 0.0]])
def test_a_phase_that_does_not_lead_out_has_the_slope_of_one_that_might(row):
    """Of the abscissa of A_L, by differences of LAPACK's; the first row adds up to 3e-17."""
    initial = np.array([1.0, 0.0, 0.0])
    generator = np.array([row, [0.0, -1.0, 1.0], [0.0, 0.0, -1.0]])

    def matrix_abscissa(row):
        inner = np.array([row, *generator[1:]])
        matrix = np.zeros((4, 4))
        matrix[0, 0], matrix[0, 1:] = -1.0, -inner.sum(axis=1)
        matrix[1:, 0], matrix[1:, 1:] = -16 * initial, inner.T
        return np.linalg.eigvals(matrix).real.max()

    def abscissa(row):
        inner = jnp.asarray(generator).at[0].set(row)
        system = lb.System(8.0, 1.0, lb.PhaseType(initial, inner), lb.Logit(2.0))
        return lb.stability.spectral_abscissa(system)

    steps = 1e-5 * np.eye(3)
    wanted = [(matrix_abscissa(row + s) - matrix_abscissa(row - s)) / 2e-5 for s in steps]
    # The square of the step, and LAPACK's rounding over it.
    np.testing.assert_allclose(jax.grad(abscissa)(jnp.array(row)), wanted, rtol=1e-6, atol=1e-7)


def test_weights_of_a_mixture_may_be_traced():
    """The transform is a ratio of sums; compared with a central difference in the weights."""

    def value(weights):
        return lb.MixedErlang(2.0, weights).transform(jnp.array(0.5)).real

    weights, change = np.array([0.25, 0.5, 0.25]), np.array([1e-5, -3e-5, 2e-5])
    slope = jax.jit(jax.grad(value))(weights) @ change
    # The difference is accurate to the square of its step, and to rounding: 1e-16 of 1e-5.
    np.testing.assert_allclose(
        slope, (value(weights + change) - value(weights - change)) / 2, rtol=1e-8, atol=1e-15
    )


@pytest.mark.parametrize(
    "delay",
    [
        lb.Erlang(np.float32(1), 3),
        lb.MixedErlang(np.float32(1), np.array([0.5, 0.5], np.float32)),
        lb.Deterministic(np.float32(1)),
    ],
    ids=lambda delay: type(delay).__name__,
)
def test_delay_computes_in_the_precision_that_it_is_given(delay):
    assert delay.mean.dtype == delay.squared_cv.dtype == jnp.float32
    assert delay.transform(jnp.complex64(0.5j)).dtype == jnp.complex64


def test_moments_of_a_law_come_from_its_transform():
    """Uniform on 0 to W: mean W / 2, squared cv 1/3, whatever W."""
    delay = lb.TransformDelay(window(3.0))
    # A dozen roundings.
    np.testing.assert_allclose([delay.mean, delay.squared_cv], [1.5, 1 / 3], rtol=2e-15)
    np.testing.assert_allclose(
        delay.transform(jnp.array(1 + 2j)), -np.expm1(-3 - 6j) / (3 + 6j), rtol=1e-15
    )
    slopes = jax.jit(
        jax.jacfwd(
            lambda w: jnp.stack(
                [lb.TransformDelay(window(w)).mean, lb.TransformDelay(window(w)).squared_cv]
            )
        )
    )(3.0)
    np.testing.assert_allclose(slopes, [0.5, 0.0], rtol=2e-15, atol=1e-15)


def test_law_computes_in_the_precision_of_what_it_holds():
    delay = lb.TransformDelay(window(np.float32(3)))
    assert delay.mean.dtype == delay.squared_cv.dtype == jnp.float32
    assert delay.transform(jnp.complex64(0.5j)).dtype == jnp.complex64
