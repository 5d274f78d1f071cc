"""Linear noise in time: exact laws without feedback, simulation, and one figure from another."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy import linalg

import jaxlb as lb
from jaxlb.stochastic import (
    noise_autocorrelation,
    noise_spectrum,
    stationary_covariance,
    transient_covariance,
)

from .. import closed_forms, oracles

pytestmark = pytest.mark.usefixtures("quick_compilation")

HYPER = lb.PhaseType([0.3, 0.7], [[-4.0, 1.0], [0.5, -0.9]])


def system(gain, stages=2, weight=None):
    rule = lb.Logit(gain / 15.0)
    if weight is not None:
        rule = lb.WeightedLogit(gain / 15.0, jnp.full(stages, weight))
    return lb.System(15.0, 1.0, lb.Erlang(1.0, stages), rule)


@pytest.mark.parametrize("delay", [HYPER, lb.NoDelay()])
def test_covariance_is_exact_without_feedback(delay):
    """A job present at the start is in one compartment or gone; arrivals are Poisson."""
    whole = lb.System(4.0, 0.8, delay, lb.Logit(0.0))
    law = np.asarray(delay.initial), np.asarray(delay.generator)
    start = np.random.default_rng(0).integers(0, 9, (2, delay.num_phases + 1)).astype(float)
    times = jnp.array([0.3, 1.0, 4.0])
    found = transient_covariance(whole, times, start)
    assert found.valid
    for number, time in enumerate(times):
        chances = oracles.uncoupled_chances(law, 0.8, float(time))
        arrived = oracles.uncoupled_means(law, 0.8, 4.0, float(time))
        for server in range(2):
            mean = start[server] @ chances + arrived
            wanted = np.diag(mean) - (chances.T * start[server]) @ chances
            # Tolerances of 1e-8 a step.
            np.testing.assert_allclose(found.jobs[number, server], mean, rtol=1e-6)
            block = found.covariance[number, server, :, server]
            np.testing.assert_allclose(block, wanted, atol=1e-6)
        np.testing.assert_allclose(found.covariance[number, 0, :, 1], 0.0, atol=1e-12)


@pytest.mark.parametrize("stages", [1, 5])
def test_covariance_settles_to_the_stationary_one(stages):
    whole = system(2.0, stages)
    found = transient_covariance(whole, jnp.array([80.0]))
    wanted = stationary_covariance(whole)
    np.testing.assert_allclose(found.covariance[-1], wanted.covariance, atol=1e-5)
    np.testing.assert_allclose(found.jobs[-1], lb.model.equilibrium(whole), atol=1e-6)


# Exact simulation at eta = 100, theta = 1, from the paper's start, by 12 000 and 4000 paths: the
# variance of Q_1 - Q_2 at 1, 2, ... s, and its relative standard error.
SIMULATED = {
    2: ([513.5726604930551, 2066.86336041667], 0.0129),
    1: ([476.91317243750024, 964.7256240000003, 1304.6471109374982, 1441.5358677500028], 0.0224),
}


@pytest.mark.parametrize("stages", SIMULATED)
def test_variance_of_the_imbalance_is_that_of_simulation(stages):
    """Within 4 standard errors and one over the scale: 4e-4 false alarms in all, were it random."""
    values, error = SIMULATED[stages]
    times = jnp.arange(1.0, len(values) + 1)
    found = transient_covariance(system(15.0, stages), times)
    np.testing.assert_allclose(100 * found.imbalance, values, rtol=4 * error + 0.01)


def test_solver_keeps_its_accuracy():
    times, start = jnp.array([1.0, 5.0, 20.0]), jnp.array([0.0, 1.0])
    whole = system(15.0, 4)
    exact = transient_covariance(whole, times, start, rtol=1e-11, atol=1e-11).covariance
    for dtype, most in ((jnp.float64, 1e-7), (jnp.float32, 1e-5)):
        given = jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), (whole, times, start))
        found = transient_covariance(*given)
        assert found.valid
        assert abs(found.covariance - exact).max() < most * abs(exact).max()


def test_error_is_of_the_order_of_one_over_the_scale():
    """Against the law of the chain itself, two servers without delay at one second."""
    errors = []
    for scale, most in ((4, 40), (16, 110)):
        jobs, law, lost = oracles.truncated_law(
            oracles.no_delay(),
            np.array([[0], [2 * scale]]),
            1.0,
            most,
            arrival_rate=2.0,
            service_rates=np.ones(2),
            shares=oracles.logit(1.0),
            scale=scale,
        )
        assert lost < 1e-7
        x = jobs[:, 0, 0] - jobs[:, 1, 0]
        exact = (law @ x**2 - (law @ x) ** 2) / scale
        whole = lb.System(2.0, 1.0, lb.NoDelay(), lb.Logit(1.0))
        found = transient_covariance(whole, jnp.array([1.0]), jnp.array([0.0, 2.0]))
        errors.append(abs(float(found.imbalance[0]) / exact - 1))
    assert errors[0] < 0.1
    assert 3 < errors[0] / errors[1] < 5


def test_a_batch_keeps_its_good_members():
    def member(theta, time):
        whole = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(theta))
        found = transient_covariance(whole, jnp.stack([time, jnp.asarray(2.0)]))
        return found.imbalance, found.valid

    values, valid = jax.vmap(member)(jnp.array([0.5, -1.0, 0.5]), jnp.array([1.0, 1.0, 3.0]))
    assert valid.tolist() == [True, False, False]
    assert np.isfinite(values[0]).all()
    assert np.isnan(values[1:]).all()
    np.testing.assert_allclose(values[0], member(0.5, jnp.asarray(1.0))[0], rtol=1e-6)


def test_covariance_is_differentiable():
    @jax.jit
    def variance(theta):
        whole = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(theta))
        return transient_covariance(whole, jnp.array([1.5]), rtol=1e-10, atol=1e-10).imbalance[0]

    step = 1e-4
    wanted = (variance(0.5 + step) - variance(0.5 - step)) / 2 / step
    np.testing.assert_allclose(jax.grad(variance)(0.5), wanted, rtol=1e-5)


def integral(curve):
    """Over all frequencies, over 2 pi: w = tan(angle), in angles of the middle of equal steps."""
    count = 4000
    angle = (np.arange(count) + 0.5) * np.pi / count - np.pi / 2
    w = jnp.tan(jnp.asarray(angle))
    return float(jnp.mean(jax.jit(jax.vmap(curve))(w) * (1 + w**2)) / 2)


@pytest.mark.parametrize("weight", [None, 0.3])
@pytest.mark.parametrize("stages", [1, 5])
def test_spectrum_integrates_to_the_variance(stages, weight):
    whole = system(2.0, stages, weight)
    queue = stationary_covariance(whole).queue
    wanted = queue[0, 0] + queue[1, 1] - 2 * queue[0, 1]
    found = integral(lambda w: noise_spectrum(whole, w))
    # The sum is of second order in its step at the ends only.
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_spectrum_of_a_fixed_delay_integrates_to_its_variance():
    """P / P_0 of infinitely many stages at the best gain, from an independent computation."""
    whole = lb.System(15.0, 1.0, lb.Deterministic(1.0), lb.Logit(0.48781555546156163 / 15))
    found = integral(lambda w: noise_spectrum(whole, w))
    np.testing.assert_allclose(found / 30, 0.9207409104113523, rtol=1e-4)


@pytest.mark.parametrize("weight", [None, 0.3])
def test_autocorrelation_is_the_transform_of_the_spectrum(weight):
    whole = system(2.0, 3, weight)
    lags = jnp.array([0.0, 0.5, -2.0])
    variance = integral(lambda w: noise_spectrum(whole, w))
    found = noise_autocorrelation(whole, lags)
    for lag, value in zip(lags, found, strict=True):
        wanted = integral(
            lambda w, lag=lag: jnp.where(
                abs(w) < 300, noise_spectrum(whole, w) * jnp.cos(w * lag), 0.0
            )
        )
        # What is left out beyond 300 rad/s is 4 lambda / (300 pi) = 0.06 of 30.
        np.testing.assert_allclose(value, wanted / variance, atol=3e-3)


@pytest.mark.parametrize("stages", [2, 20])
def test_autocorrelation_is_that_of_scipy(stages):
    matrix = closed_forms.difference_matrix(2.0, 1.0, 1.0, stages)
    noise = closed_forms.imbalance_noise(15.0, stages)
    covariance = linalg.solve_continuous_lyapunov(matrix, -noise)
    lags = [0.0, 0.7, 3.0, 20.0]
    wanted = [(linalg.expm(lag * matrix) @ covariance)[0, 0] / covariance[0, 0] for lag in lags]
    found = noise_autocorrelation(system(2.0, stages), jnp.array(lags))
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_without_a_stationary_state_the_autocorrelation_is_flagged():
    def member(gain):
        return noise_autocorrelation(system(gain), jnp.array([0.0, 1.0]))

    gains = jnp.array([5.0, 20.0])
    found = jax.vmap(member)(gains)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
    slopes = jax.vmap(jax.grad(lambda gain: member(gain)[1]))(gains)
    assert slopes[0] != 0
    assert slopes[1] == 0


def test_single_precision_is_kept():
    whole = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), system(2.0, 3, 0.3))
    w, lags = jnp.float32(1.3), jnp.array([0.5], jnp.float32)
    double = system(2.0, 3, 0.3)
    start = jnp.ones(2, jnp.float32)
    for found, wanted in (
        (noise_spectrum(whole, w), noise_spectrum(double, 1.3)),
        (noise_autocorrelation(whole, lags), noise_autocorrelation(double, jnp.array([0.5]))),
        (
            transient_covariance(whole, lags, start).imbalance,
            transient_covariance(double, lags, start).imbalance,
        ),
    ):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_bad_arguments_are_refused(monkeypatch):
    # Users run without the type checks of the test suite.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    fixed = lb.System(1.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0))
    unlike = lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 2), lb.Logit(1.0))
    for function, argument in (
        (transient_covariance, [1.0]),
        (noise_autocorrelation, [1.0]),
    ):
        with pytest.raises(ValueError, match=r"^`delay` must have phases"):
            function(fixed, argument)

    def half(queue):
        return 0.5 + 0 * queue

    own = lb.System(1.0, 1.0, lb.Deterministic(1.0), half)
    with pytest.raises(ValueError, match=r"^`delay` must have phases"):
        noise_spectrum(own, 1.0)
    for function, argument in ((noise_spectrum, 1.0), (noise_autocorrelation, [1.0])):
        with pytest.raises(ValueError, match=r"^`service_rate` must be the same"):
            function(unlike, argument)
    with pytest.raises(ValueError, match=r"^`times` must be increasing"):
        transient_covariance(unlike, [2.0, 1.0])
    with pytest.raises(ValueError, match=r"^`rtol` must be positive"):
        transient_covariance(unlike, [1.0], rtol=0.0)
    with pytest.raises(ValueError, match=r"^`frequency` must be finite"):
        noise_spectrum(fixed, np.inf)
    with pytest.raises(ValueError, match=r"^`lags` must be finite"):
        noise_autocorrelation(system(2.0), [np.nan])
