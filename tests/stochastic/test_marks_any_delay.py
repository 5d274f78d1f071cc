"""Job marks with delays and rules that have no Markov chain to compare with."""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxlb as lb
from jaxlb.stochastic import marks
from tests import oracles
from tests.rules import Perceptron
from tests.stochastic.by_marks import first_server, imbalance, paths


@pytest.mark.parametrize(
    ("delay", "law"),
    [
        (lb.Deterministic(0.7), stats.rv_discrete(values=([0.7], [1.0]))),
        (
            lb.QuantileDelay(lambda u: jnp.exp(0.6 * jax.scipy.special.ndtri(u))),
            stats.lognorm(0.6),
        ),
    ],
    ids=["deterministic", "lognormal"],
)
def test_any_delay_without_feedback_leaves_independent_poisson_counts(delay, law):
    """Means from the distribution of the delay; 4 p-values a case below 1e-5 once in 1e5 seeds.

    In transit at T is lambda times the integral of P(delay > s) over s in (0, T); in service, that
    of P(delay < s) exp(-mu (T - s)).
    """
    system = lb.System(1.5, 0.8, delay, lb.Logit(0.0))
    jobs = paths(system, 5, [1.0, 2.0], 2.0, [[0, 0], [0, 0]])[:, -1]
    # Halfway between steps, so that the one step of a distribution function is on none.
    s = (np.arange(200_000) + 0.5) * 1e-5
    below = law.cdf(s)
    means = 3.0 * 1e-5 * np.array([(1 - below).sum(), (below * np.exp(-0.8 * (2.0 - s))).sum()])
    count = np.arange(60)
    for server in range(2):
        for place, mean in enumerate(means):
            pmf = stats.poisson.pmf(count, mean)
            assert oracles.fit_p_value(jobs[:, server, place], count, pmf) > 1e-5


def event_driven(rng, times, scale, arrival_rate, delay, sensitivity, start):
    """One path of two servers with a fixed delay and service of mean one, event by event."""
    queue, transit, record = list(start), [0, 0], []
    events = [(time, 3, 0) for time in times]
    events += [(rng.exponential(), 2, server) for server in range(2) for _ in range(start[server])]
    events.append((rng.exponential(1 / (2 * scale * arrival_rate)), 0, 0))
    heapq.heapify(events)
    while len(record) < len(times):
        now, kind, server = heapq.heappop(events)
        if kind == 0:
            share = 1 / (1 + np.exp(sensitivity * (queue[0] - queue[1]) / scale))
            server = int(rng.uniform() >= share)
            transit[server] += 1
            heapq.heappush(events, (now + delay, 1, server))
            following = now + rng.exponential(1 / (2 * scale * arrival_rate))
            heapq.heappush(events, (following, 0, 0))
        elif kind == 1:
            transit[server] -= 1
            queue[server] += 1
            heapq.heappush(events, (now + rng.exponential(), 2, server))
        elif kind == 2:
            queue[server] -= 1
        else:
            record.append(np.stack([transit, queue], axis=1))
    return record


def test_fixed_delay_has_the_law_of_a_simulation_event_by_event():
    """Means, variances and covariances in time of both imbalances, at scale 2, over two records.

    5 standard errors over 28 differences: 2e-5 false alarms per new seed, by the union bound for
    normal statistics; the standard errors are those of the two samples.
    """
    times, start = [1.0, 3.2], [0, 6]
    rng = np.random.default_rng(6)
    theirs = np.array([event_driven(rng, times, 2, 4.0, 0.8, 2.0, start) for _ in range(2000)])
    system = lb.System(4.0, 1.0, lb.Deterministic(0.8), lb.Logit(2.0))
    ours = paths(system, 7, times, 2.0, [[0, 0], [0, 6]])
    for (value, error), (other, other_error) in zip(moments(ours), moments(theirs), strict=True):
        z = (value - other) / np.hypot(error, other_error)
        assert np.abs(z).max() < 5


def moments(jobs):
    """Means of counts and imbalances, and products of two of the latter, with standard errors."""
    difference = (jobs[:, :, 0] - jobs[:, :, 1]).reshape(len(jobs), -1)
    excess = difference - difference.mean(axis=0)
    products = excess[:, :, None] * excess[:, None]
    samples = jobs.reshape(len(jobs), -1), difference, products
    return [(sample.mean(axis=0), stats.sem(sample)) for sample in samples]


def test_fifty_stages_agree_with_an_independent_simulation():
    """The paper's setting with L = 50, at the times 1, 2 and 3, against 4000 paths of a simulation
    job by job in Numba: means and variances of the imbalance.

    5 standard errors over 6 differences: 4e-6 false alarms per new seed.
    """
    mean = np.array([30.61875, 376.06825, -1480.2195])
    variance = np.array([174.827398, 3007.593092, 2908.611320])
    start = np.zeros((2, 51), int)
    start[1, -1] = 100
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 50), lb.Logit(1.0))
    sizes = marks.sizes(system, np.array([3.0]), 100.0, start)
    sample = imbalance(paths(system, 8, [1.0, 2.0, 3.0], 100.0, start, 600, sizes))
    z = (sample.mean(axis=0) - mean) / np.sqrt(variance * (1 / 600 + 1 / 4000))
    assert np.abs(z).max() < 5
    # The relative variance of a variance of n normal numbers is 2 / n.
    z = (sample.var(axis=0, ddof=1) / variance - 1) / np.sqrt(2 / 600 + 2 / 4000)
    assert np.abs(z).max() < 5


def test_jobs_in_service_are_stationary_poisson_in_total_whatever_the_rule():
    """Poisson(servers * eta * lambda / mu), here 18, by a neural network from an empty start, over
    many blocks; a chi-square p-value below 1e-5 once in 1e5 new seeds."""
    system = lb.System(3.0, 1.0, lb.Erlang(0.5, 2), Perceptron(3), 3)
    jobs = paths(system, 11, [20.0], 2.0, np.zeros((3, 3), int), 8000)
    total = jobs[:, 0, :, -1].sum(axis=1)
    # The start is forgotten like exp(-20).
    law = stats.poisson.pmf(np.arange(80), 18.0)
    assert oracles.fit_p_value(total, np.arange(80), law) > 1e-5


def test_paths_in_single_precision_have_the_same_law():
    """Chi-square against the truncated generator, as in double precision; 1e-5 false alarms."""
    states, law, lost = oracles.truncated_law(
        oracles.erlang(1.0, 1),
        np.array([[0, 0], [0, 1]]),
        1.5,
        28,
        arrival_rate=3.0,
        service_rates=np.ones(2),
        shares=oracles.logit(1.0),
    )
    assert lost < 1e-4
    with jax.enable_x64(False):
        system = lb.System(3.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
        jobs = paths(system, 12, [0.6, 1.5], 1.0, [[0, 0], [0, 1]])[:, -1]
    for statistic in (imbalance, first_server):
        assert oracles.fit_p_value(statistic(jobs), statistic(states), law) > 1e-5
