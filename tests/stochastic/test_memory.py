"""Rules with a memory on exact paths: their law, and what a path depends on."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import jaxlb as lb
from jaxlb.stochastic import marks
from tests import oracles
from tests.stochastic import dispatcher
from tests.stochastic.by_marks import first_server, imbalance, paths
from tests.stochastic.test_marks_law import two_sample_p_value

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZES = marks.Sizes(64, 64, 64)
TIMES = jnp.array([0.0, 0.5, 1.0, 2.0, 4.0])


class Fading(eqx.Module):
    """A job counts less the longer it is on its way."""

    rate: jax.Array

    def __call__(self, age):
        return jnp.exp(-self.rate * age)


def kalman_like(phases, **options):
    """Uniform weights of .8, and gains that keep the sum of the estimate at what is in transit."""
    gains = -np.arange(1.0, phases + 1) / (phases * (phases + 1) / 2)
    delay = lb.Erlang(1.0, phases)
    return lb.FilteredLogit(2.0, np.full(phases, 0.8), gains, delay, **options)


def simulate(rule, phases=2, replicas=50, **options):
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, phases), rule)
    ensemble = lb.stochastic.simulate(system, jr.key(1), TIMES, 2.0, replicas, **options)
    assert ensemble.valid.all()
    return np.asarray(ensemble.jobs)


@pytest.fixture(scope="module")
def without_memory():
    return simulate(lb.Logit(2.0), method="marks")


@pytest.mark.parametrize(
    "rule",
    [
        lb.AgeLogit(2.0, lambda age: 0.0),
        lb.FilteredLogit(2.0, [0.0, 0.0], [3.0, -1.0], lb.Erlang(2.0, 2), log=False),
        lb.LateLogit(2.0, 0.0),
    ],
    ids=["age", "filter", "late"],
)
def test_rule_that_forgets_has_the_paths_of_the_paper_s_rule(rule, without_memory):
    """To the last job: the same random numbers, and shares that differ by rounding at most."""
    np.testing.assert_array_equal(simulate(rule), without_memory)


def test_estimate_by_a_log_sums_to_what_is_in_transit():
    """Counting all of the estimate is then counting every job, by its age: the same paths."""
    wanted = simulate(lb.AgeLogit(2.0, lambda age: 0.8))
    np.testing.assert_array_equal(simulate(kalman_like(2)), wanted)


@pytest.mark.parametrize(
    ("rule", "phases", "start", "most_jobs", "arrival_rate"),
    [
        (lb.FilteredLogit(2.0, [0.8], [-1.0], lb.Erlang(1.0, 1)), 1, [[0, 0], [3, 1]], 28, 1.5),
        (lb.AgeLogit(2.0, lambda age: 0.8), 2, [[1, 0, 0], [0, 2, 1]], 16, 0.5),
        (kalman_like(2), 2, [[1, 0, 0], [0, 2, 1]], 16, 0.5),
    ],
    ids=["filter-of-one-phase", "age", "filter"],
)
def test_counting_every_job_in_transit_has_the_law_of_the_truncated_generator(
    rule, phases, start, most_jobs, arrival_rate
):
    """With jobs in transit at the start. 6 chi-square p-values in all, below 1e-5 by chance."""
    states, law, lost = oracles.truncated_law(
        oracles.erlang(1.0, phases),
        np.array(start),
        1.5,
        most_jobs,
        arrival_rate=arrival_rate,
        service_rates=np.ones(2),
        shares=oracles.logit(2.0, 0.8),
        scale=2,
    )
    # 20 000 paths do not resolve a probability to better than 1e-3.
    assert lost < 1e-4
    system = lb.System(arrival_rate, 1.0, lb.Erlang(1.0, phases), rule)
    jobs = paths(system, 3, [0.6, 1.5], 2.0, start, 20_000, SIZES)[:, -1]
    for statistic in (imbalance, first_server):
        assert oracles.fit_p_value(statistic(jobs), statistic(states), law) > 1e-5


def test_dispatcher_who_sees_nothing_but_the_start_sends_poisson_streams():
    """Counts are Poisson plus binomial as long as the lag lasts. 4 chi-square p-values."""
    system = lb.System(1.5, 0.8, lb.Erlang(1.0, 2), lb.LateLogit(0.5, 1.3))
    start = np.array([[2, 0, 1], [1, 1, 5]])
    jobs = paths(system, 4, [0.3, 1.2], 2.0, start, 20_000, SIZES)[:, -1]
    share = dispatcher.first_share(0.5, [0.5, 2.5])
    count = np.arange(61)
    for server, part in enumerate((share, 1 - share)):
        law = oracles.uncoupled_law(oracles.erlang(1.0, 2), start[server], 0.8, 6 * part, 1.2, 60)
        assert oracles.fit_p_value(jobs[:, server, 1], count, law[-1]) > 1e-5
        assert oracles.fit_p_value(jobs[:, server, 0], count, np.convolve(*law[:2])[:61]) > 1e-5


ERLANG = oracles.erlang(1.0, 2)
FILTER = [1.5, 0.5], [-0.4, -0.6]


def filtered(log):
    return (
        lb.FilteredLogit(2.0, *FILTER, lb.Erlang(1.0, 2), log=log),
        lambda: dispatcher.Filter(2.0, *FILTER, *ERLANG, log, 0.5),
    )


@pytest.mark.parametrize(
    ("rule", "slow"),
    [
        (lb.LateLogit(2.0, 0.4), lambda: dispatcher.Late(2.0, 0.4)),
        (lb.AgeLogit(2.0, Fading(jnp.array(2.0))), lambda: dispatcher.Aged(2.0, fading, 0.5)),
        filtered(True),
        filtered(False),
    ],
    ids=["late", "age", "filter-with-log", "filter-without-log"],
)
def test_law_is_that_of_a_slow_simulation(rule, slow):
    """Chi-square of two samples of imbalances, at two times; 8 p-values below 1e-5 by chance."""
    rng, times, start = np.random.default_rng(5), [1.0, 2.5], [[0, 0, 0], [0, 0, 8]]
    wanted = np.array(
        [dispatcher.path(rng, slow(), times, 2, 4.0, gamma, [0, 8]) for _ in range(2000)]
    )
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), rule)
    jobs = paths(system, 6, times, 2.0, start, 20_000, marks.Sizes(128, 128, 64))
    for number in range(2):
        samples = imbalance(jobs)[:, number], imbalance(wanted)[:, number]
        assert two_sample_p_value(*samples) > 1e-5


def fading(age):
    return np.exp(-2.0 * age)


def gamma(rng):
    return rng.gamma(2, 0.5)
