"""Random delays against the distribution functions of SciPy."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import expm

import jaxlb as lb
from jaxlb.stochastic import philox
from jaxlb.stochastic.delay_times import delay_times, times_left

COUNT = 1 << 16
COXIAN = [0.8, 0.2], [[-3.0, 2.0], [0.5, -1.5]]
WEIGHTS = np.array([0.1, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0, 0.6])


def drawn(delay, jobs=None, replica=0, dtype=jnp.float64):
    """Delays of these jobs of one path."""
    jobs = jnp.arange(COUNT, dtype=jnp.uint32) if jobs is None else jobs
    stream = philox.stream(jr.key(1), jnp.full((1,) * jobs.ndim, replica), 5)
    return jax.jit(lambda jobs: delay_times(delay, stream, jobs, dtype))(jobs)


def left(delay, phase):
    """Times until service of jobs that are in this phase."""
    jobs = jnp.arange(COUNT, dtype=jnp.uint32)
    stream = philox.stream(jr.key(2), jnp.zeros(1, int), 5)
    phases = jnp.full(COUNT, phase, jnp.int32)
    return np.asarray(jax.jit(lambda p: times_left(delay, stream, jobs, p, jnp.float64))(phases))


def erlang(mean, stages):
    return stats.gamma(stages, scale=mean / stages).cdf


def mixed_erlang(mean, weights):
    stages = np.arange(1, len(weights) + 1)
    scale = mean / (stages @ weights)
    return lambda t: weights @ stats.gamma(stages[:, None], scale=scale).cdf(t)


def phase_type(initial, generator):
    """Through a grid, for a matrix exponential is slow; right to 1e-6."""
    grid = np.linspace(0.0, 20.0, 20_001)
    step, alive = expm(grid[1] * np.array(generator)), np.array(initial)
    chance = []
    for _ in grid:
        chance.append(1 - alive.sum())
        alive = alive @ step
    return lambda t: np.interp(t, grid, chance)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize(
    ("delay", "law"),
    [
        (lb.Erlang(1.3, 1), erlang(1.3, 1)),
        (lb.Erlang(0.7, 5), erlang(0.7, 5)),
        (lb.Erlang(0.7, 6), erlang(0.7, 6)),
        (lb.Erlang(2.0, 50), erlang(2.0, 50)),
        (lb.Erlang(2.0, 10**6), erlang(2.0, 10**6)),
        (lb.MixedErlang(2.0, WEIGHTS), mixed_erlang(2.0, WEIGHTS)),
        (lb.PhaseType(*COXIAN), phase_type(*COXIAN)),
        (lb.QuantileDelay(lambda u: (1 - u) ** -0.5 - 1), stats.lomax(2.0).cdf),
    ],
    ids=["1", "5", "6", "50", "10^6", "mixed", "phase-type", "pareto"],
)
def test_delays_have_their_law(delay, law, dtype):
    """Kolmogorov-Smirnov, 16 p-values in all, each below 1e-6 in 1e6 new seeds."""
    times = np.asarray(drawn(delay, dtype=dtype))
    assert times.dtype == dtype
    assert stats.kstest(times.astype(float), law).pvalue > 1e-6


def test_fixed_delays_are_fixed():
    np.testing.assert_array_equal(drawn(lb.Deterministic(0.3)), np.full(COUNT, 0.3))
    np.testing.assert_array_equal(drawn(lb.NoDelay()), np.zeros(COUNT))


@pytest.mark.parametrize(
    ("delay", "phase", "law"),
    [
        (lb.Erlang(3.0, 3), 1, erlang(2.0, 2)),
        (lb.Erlang(3.0, 30), 0, erlang(3.0, 30)),
        (lb.Erlang(3.0, 30), 29, erlang(0.1, 1)),
        (lb.MixedErlang(4.5, [0.0, 0.5, 0.0, 0.5]), 2, erlang(3.0, 2)),
        (lb.PhaseType(*COXIAN), 1, phase_type([0.0, 1.0], COXIAN[1])),
    ],
    ids=["few", "many", "last", "mixed", "phase-type"],
)
def test_jobs_in_a_phase_have_only_the_rest_before_them(delay, phase, law):
    """Kolmogorov-Smirnov, 5 p-values in all, each below 1e-6 in 1e6 new seeds."""
    assert stats.kstest(left(delay, phase), law).pvalue > 1e-6


@pytest.mark.parametrize("delay", [lb.Erlang(1.0, 3), lb.Erlang(1.0, 30), lb.PhaseType(*COXIAN)])
def test_jobs_in_service_wait_no_more(delay):
    assert not left(delay, delay.num_phases).any()


@pytest.mark.parametrize(
    "delay",
    [lb.Erlang(1.0, 2), lb.Erlang(1.0, 6), lb.MixedErlang(2.0, WEIGHTS), lb.PhaseType(*COXIAN)],
    ids=["2", "6", "mixed", "phase-type"],
)
def test_delay_of_a_job_does_not_depend_on_those_beside_it(delay):
    """To the last bit, however often these are tried again. No two are alike."""
    every = drawn(delay)
    other = jr.permutation(jr.key(3), jnp.arange(COUNT, dtype=jnp.uint32))
    for jobs in other, other[:6].reshape(2, 3):
        np.testing.assert_array_equal(drawn(delay, jobs), every[jobs])
    assert len(np.unique(every)) == COUNT
    assert len(np.intersect1d(every, drawn(delay, replica=1))) == 0


def test_law_without_times_raises():
    with pytest.raises(ValueError, match=r"`delay` must have phases .* got TransformDelay"):
        drawn(lb.TransformDelay(lambda r: 1 / (1 + r)))
