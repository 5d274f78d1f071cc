"""Leaps with a ring: any delay law, by the means of service starts that are to come."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import integrate, stats

import jaxlb as lb
from jaxlb.stochastic import residence
from tests import oracles

pytestmark = pytest.mark.usefixtures("quick_compilation")


def laws(system, step_size):
    slots = residence.num_slots(system, step_size)
    return residence.residence(system, jnp.asarray(step_size), slots)


def leaps(system, times, step_size, replicas, **options):
    options = {"method": "ring_leap", "key": jr.key(1), "scale": 1.0} | options
    return lb.stochastic.simulate(
        system, times=times, step_size=step_size, replicas=replicas, **options
    )


@pytest.mark.parametrize("mean", [0.07, 0.3, 1.0])
def test_residence_after_a_constant_delay_is_that_of_its_definition(mean):
    """Integrals over when in its step a job is routed; quad is asked for 1e-10."""
    rates, step = np.array([0.5, 3.0]), 0.3
    found = laws(lb.System(1.0, rates, lb.Deterministic(mean), lb.Logit(1.0)), step)
    for server, rate in enumerate(rates):
        for place in range(len(found.late)):
            # Starts at s + mean, in [place, place + 1) steps; there at the end of that step.
            end = (place + 1) * step
            low, high = (np.clip(edge - mean, 0, step) for edge in (end - step, end))
            for weight, value in (
                (lambda s: 1 - s / step, found.early[place, server]),
                (lambda s: s / step, found.late[place, server]),
            ):

                def rate_at(s, weight=weight, end=end, rate=rate):
                    return weight(s) * np.exp(-rate * (end - s - mean))

                # quad complains of what is empty but for rounding.
                wanted = integrate.quad(rate_at, low, high)[0] if high - low > 1e-9 else 0
                np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)


def test_residence_after_many_stages_is_the_same_by_matrix_and_by_mixture(monkeypatch):
    """The density of Erlang(60) at 4096 points; kinks at the steps leave 1e-7."""
    system = lb.System(1.0, [0.5, 2.0], lb.Erlang(1.0, 60), lb.Logit(1.0))
    by_matrix = laws(system, 0.11)
    monkeypatch.setattr(residence, "MOST_PHASES", 10)
    by_mixture = laws(system, 0.11)
    for one, other in zip(by_matrix, by_mixture, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


@pytest.mark.parametrize(
    "delay",
    [lb.NoDelay(), lb.Erlang(1.0, 3), lb.MixedErlang(1.0, [0.4, 0.6]), lb.Deterministic(0.8)],
)
def test_residence_of_all_steps_is_all_time_in_service(delay):
    """A unit inflow for good is in service for 1 / mu, of which what is there at ends of steps."""
    rate, step = 0.7, 0.21
    found = laws(lb.System(1.0, rate, delay, lb.Logit(1.0), num_servers=1), step)
    # Jobs there at the end of the step they begin in, and kept in each step after it.
    inside = (found.early + found.late).sum() / (1 - found.stay[0])
    np.testing.assert_allclose(inside, 1 / rate, rtol=1e-9)


@pytest.mark.parametrize(
    ("delay", "oracle"),
    [
        (lb.Erlang(1.0, 3), oracles.erlang(1.0, 3)),
        (lb.MixedErlang(1.0, [0.4, 0.6]), oracles.mixed_erlang(1.0, np.array([0.4, 0.6]))),
        (lb.NoDelay(), oracles.no_delay()),
    ],
)
def test_without_feedback_jobs_in_service_have_their_exact_law(delay, oracle):
    """Two servers at two times: 4 chi-square p-values, each below 1e-5 once in 1e5 new seeds."""
    rates, start = np.array([0.5, 2.0]), np.array([7, 3])
    system = lb.System(1.5, rates, delay, lb.Logit(0.0))
    found = leaps(system, [0.8, 2.4], 0.4, 20_000, scale=2.0, initial=jnp.array(start))
    assert found.valid.all()
    for record, time in enumerate((0.8, 2.4)):
        for server, rate in enumerate(rates):
            present = np.append(np.zeros(len(oracle[0]), int), start[server])
            law = oracles.uncoupled_law(oracle, present, rate, 3.0, time, most=60)[-1]
            queue = np.asarray(found.queue[:, record, server])
            assert oracles.fit_p_value(queue, np.arange(61), law) > 1e-5


def test_without_feedback_jobs_after_a_constant_delay_have_their_exact_law():
    system = lb.System(1.5, 0.7, lb.Deterministic(0.9), lb.Logit(0.0))
    found = leaps(system, [0.6, 2.4], 0.4, 20_000, scale=2.0, initial=jnp.array([0, 5]))
    for record, time in enumerate((0.6, 2.4)):
        mean = 3.0 * -np.expm1(-0.7 * max(time - 0.9, 0)) / 0.7
        law = stats.poisson.pmf(np.arange(41), mean)
        present = stats.binom.pmf(np.arange(41), 5, np.exp(-0.7 * time))
        for server, wanted in enumerate((law, np.convolve(law, present)[:41])):
            queue = np.asarray(found.queue[:, record, server])
            if mean or server:
                assert oracles.fit_p_value(queue, np.arange(41), wanted) > 1e-5
            else:
                assert not queue.any()


def test_imbalance_has_the_moments_of_the_truncated_generator():
    """lambda 5, scale 1, at time 2 by steps of 1/8: 1 % of the variance and 5 standard errors."""
    system = lb.System(5.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
    mean, variance, replicas = 0.12204836935886293, 4.089701087889993, 60_000
    queue = leaps(system, [2.0], 0.125, replicas, initial=jnp.array([0, 1])).queue[:, 0]
    imbalance = np.asarray(queue[:, 0] - queue[:, 1])
    error = np.sqrt(variance / replicas)
    assert abs(imbalance.mean() - mean) < 0.01 * np.sqrt(variance) + 5 * error
    assert abs(imbalance.var() / variance - 1) < 0.01 + 5 * np.sqrt(2 / replicas)


def test_fifty_stages_have_the_moments_of_exact_simulation():
    """The paper's rates, scale 100, times 1 and 2, against 4000 exact paths of another program.

    5 standard errors of both, over four numbers.
    """
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 50), lb.Logit(1.0))
    found = leaps(system, [1.0, 2.0], 0.05, 2000, scale=100.0, keep=("mean", "variance")).statistics
    for record, (mean, variance) in enumerate(((30.61875, 174.8274), (376.06825, 3007.593))):
        error = np.sqrt(variance * (1 / 2000 + 1 / 4000))
        assert abs(found.imbalance_mean[record] - mean) < 5 * error
        ratio = found.imbalance_variance[record] / variance
        assert abs(ratio - 1) < 5 * np.sqrt(2 / 2000 + 2 / 4000)


def test_gaussian_leaps_with_a_ring_have_the_same_moments():
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 50), lb.Logit(1.0))
    one, other = (
        leaps(
            system, [1.0, 2.0], 0.1, 2000, scale=100.0, method=method, keep=("mean", "variance")
        ).statistics
        for method in ("ring_leap", "gaussian_leap")
    )
    error = np.sqrt(one.imbalance_variance * 2 / 2000)
    assert np.all(np.abs(one.imbalance_mean - other.imbalance_mean) < 5 * error)
    ratio = one.imbalance_variance / other.imbalance_variance
    assert np.all(np.abs(ratio - 1) < 5 * np.sqrt(4 / 2000))


def test_times_must_be_multiples_of_one_step():
    system = lb.System(1.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0))
    found = leaps(system, [0.0, 0.3, 1.0], 0.2, 2)
    np.testing.assert_allclose(found.step_size, 0.1)
    with pytest.raises(ValueError, match="`times` must be multiples of one step"):
        leaps(system, [0.1, np.pi], 0.1, 2)


def test_what_fixes_the_ring_must_be_known():
    def run(mean):
        system = lb.System(1.0, 1.0, lb.Deterministic(mean), lb.Logit(1.0))
        return leaps(system, [1.0], 0.5, 2).queue

    with pytest.raises(ValueError, match="`times` and `step_size` must be concrete"):
        jax.jit(run)(1.0)
    with pytest.raises(ValueError, match="`step_size` must be such that the longest delay"):
        leaps(lb.System(1.0, 1.0, lb.Deterministic(1e8), lb.Logit(1.0)), [1.0], 0.5, 2)


def test_jobs_in_transit_at_the_start_are_refused():
    system = lb.System(1.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0))
    with pytest.raises(ValueError, match="`initial` must be without jobs in transit"):
        leaps(system, [1.0], 0.5, 2, initial=jnp.array([[1.0, 0.0], [0.0, 2.0]]))
    phases = lb.System(1.0, 1.0, lb.Erlang(1.0, 9), lb.Logit(1.0))
    with pytest.raises(ValueError, match="`initial` must be without jobs in transit"):
        leaps(phases, [1.0], 0.5, 2, initial=jnp.ones((2, 10)))
