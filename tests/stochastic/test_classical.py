"""Methods of comparison: they do wrong what they are said to, and no more; and Gaussian leaps.

The truth is the generator, cut at 21 jobs in each of four compartments: lambda 5, scale 1, time 2.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxlb as lb
from tests.rules import Fixed

pytestmark = pytest.mark.usefixtures("quick_compilation")

SYSTEM = lb.System(5.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
MEAN, VARIANCE = 0.12204836935886293, 4.089701087889993
KEPT = "mean", "covariance"
# Up to 2 s: one program serves the variance at the end and what happens on the way.
TIMES = np.arange(1, 17) / 8
# A job may go back from the second phase to the first, and may leave from either.
COXIAN = lb.PhaseType([0.8, 0.2], [[-3.0, 2.0], [0.5, -1.5]])


def paths(method, step_size, replicas=30_000, system=SYSTEM, times=(2.0,), **options):
    options = {"scale": 1.0, "initial": jnp.array([0, 1])} | options
    return lb.stochastic.simulate(
        system,
        jr.key(2),
        jnp.array(times),
        replicas=replicas,
        method=method,
        step_size=step_size,
        **options,
    )


def imbalance_variance(method, step_size):
    statistics = paths(method, step_size, times=TIMES, keep="variance").statistics
    return statistics.imbalance_variance[-1] / VARIANCE - 1


ERRORS = [("poisson_leap", 0.37), ("binomial_leap", 0.21), ("langevin", 0.37)]


@pytest.mark.parametrize(("method", "error"), ERRORS)
def test_the_variance_is_too_large_by_what_is_said(method, error):
    """Steps of 1/8; 5 standard errors of 0.8 %, and a little more for a law with wider tails."""
    assert abs(imbalance_variance(method, 0.125) - error) < 0.05


@pytest.mark.parametrize(("method", "error"), ERRORS)
def test_the_error_vanishes_with_the_step(method, error):
    """Of first order: a quarter for 1/32, and the noise of above."""
    assert abs(imbalance_variance(method, 1 / 32) - error / 4) < 0.05


def test_poisson_leaps_make_counts_negative_and_binomial_ones_do_not():
    negative = {
        method: np.mean(np.asarray(paths(method, 0.125, times=TIMES).jobs) < 0)
        for method in ("poisson_leap", "binomial_leap")
    }
    assert negative["poisson_leap"] > 0.001
    assert negative["binomial_leap"] == 0


@pytest.mark.parametrize(
    ("method", "delay"),
    [
        ("poisson_leap", COXIAN),
        ("binomial_leap", COXIAN),
        ("langevin", COXIAN),
        ("gaussian_leap", COXIAN),
        ("binomial_leap", lb.NoDelay()),
        ("langevin", lb.NoDelay()),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_at_rest_without_feedback_means_are_those_of_poisson_counts(method, delay):
    """Steps of 1/100 from the stationary means: 5 standard errors and 2 % for the step."""
    system = lb.System(6.0, [1.0, 2.0], delay, lb.Logit(0.0))
    rest = np.outer([6.0, 6.0], np.append(delay.occupancy(), 1.0))
    rest[:, -1] /= [1.0, 2.0]
    found = paths(
        method,
        0.01,
        4000,
        system,
        times=(1.0,),
        scale=5.0,
        initial=jnp.round(5 * rest),
        keep="mean",
    ).statistics
    # Rounding the start moves the mean by half a job at most.
    slack = 5 * np.sqrt(5 * rest / 4000) + 0.02 * 5 * rest + 0.5
    assert np.all(np.abs(found.mean[0] - 5 * rest) < slack)


def test_gaussian_leaps_have_means_and_variances_of_counts_without_feedback():
    """A multinomial part from the start and Poisson arrivals; one leap is exact in both moments."""
    system = lb.System(3.0, [0.5, 2.0], COXIAN, lb.Logit(0.0))
    start = jnp.array([[20, 5, 11], [4, 30, 9]])
    both = [
        paths(method, 2.0, 40_000, system, (0.7,), scale=2.0, initial=start, keep=KEPT)
        for method in ("gaussian_leap", "phase_leap")
    ]
    one, other = (found.statistics for found in both)
    error = np.sqrt(2 * np.diagonal(np.reshape(one.covariance, (6, 6))) / 40_000)
    assert np.all(np.abs(one.mean - other.mean).ravel() < 5 * error)
    apart = np.abs(one.covariance - other.covariance).reshape(6, 6)
    spread = np.sqrt(np.diagonal(one.covariance.reshape(6, 6)))
    # The error of a covariance is at most sqrt(2) of its two spreads over sqrt(n), for each.
    assert np.all(apart < 5 * 2 * np.outer(spread, spread) / np.sqrt(40_000))


@pytest.mark.parametrize(("scale", "bound"), [(1.0, 0.08), (4.0, 0.04)])
def test_gaussian_leaps_are_close_where_counts_are_not_few(scale, bound):
    """Variance of the imbalance at time 2 against the generator; scale 4 has lambda 2."""
    system, variance = SYSTEM, VARIANCE
    if scale == 4:
        system, variance = lb.System(2.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0)), 7.23072100361101
    found = paths(
        "gaussian_leap",
        0.125,
        system=system,
        scale=scale,
        initial=jnp.array([0, int(scale)]),
        keep="variance",
    ).statistics
    assert abs(found.imbalance_variance[0] / variance - 1) < bound


def test_gaussian_leaps_have_finite_gradients_from_an_empty_start():
    def mean_square(theta, rate, mean):
        system = lb.System(rate, 1.0, lb.Erlang(mean, 2), lb.Logit(theta))
        queue = paths("gaussian_leap", 0.25, 50, system, initial=jnp.zeros(2)).queue
        return jnp.mean((queue[..., 0] - queue[..., 1]) ** 2)

    # Forward, for a loop of steps has no other end than their number.
    slopes = jnp.array(jax.jit(jax.jacfwd(mean_square, (0, 1, 2)))(1.0, 5.0, 1.0))
    assert jnp.isfinite(slopes).all()
    assert slopes.all()


@pytest.mark.parametrize("method", ["gaussian_leap", "poisson_leap", "binomial_leap", "langevin"])
@pytest.mark.parametrize("shares", [[np.nan, 1.0], [0.5, 0.4]])
def test_a_path_stays_where_the_rule_gives_no_probabilities(method, shares):
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), Fixed(jnp.array(shares)))
    found = paths(method, 0.5, 3, system, (1.0, 2.0), scale=5.0, initial=None)
    assert not found.valid.any()
    np.testing.assert_array_equal(found.jobs, np.broadcast_to([[0, 0, 0], [0, 0, 5]], (3, 2, 2, 3)))
