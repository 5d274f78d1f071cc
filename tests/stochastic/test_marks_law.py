"""The law of paths by job marks, against laws and simulations that share no code with them."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

import jaxlb as lb
from tests import oracles
from tests.stochastic.by_marks import first_server, imbalance, paths

# A job may go back from the second phase to the first, and may leave from either.
COXIAN = (np.array([0.8, 0.2]), np.array([[-3.0, 2.0], [0.5, -1.5]]))


@pytest.mark.parametrize(
    ("delay", "oracle_delay", "servers", "start", "most_jobs", "arrival_rate"),
    [
        (lb.NoDelay(), oracles.no_delay(), 3, [[0], [1], [2]], 32, 1.0),
        (lb.Erlang(1.0, 1), oracles.erlang(1.0, 1), 2, [[0, 0], [3, 1]], 28, 1.5),
        (lb.Erlang(1.0, 2), oracles.erlang(1.0, 2), 2, [[1, 0, 0], [0, 2, 1]], 16, 0.5),
        (lb.PhaseType(*COXIAN), COXIAN, 2, [[1, 0, 0], [0, 2, 1]], 16, 0.5),
    ],
    ids=["no-delay-three-servers", "one-stage", "two-stages", "phase-type-with-return"],
)
def test_law_of_counts_is_that_of_the_truncated_generator(
    delay, oracle_delay, servers, start, most_jobs, arrival_rate
):
    """Chi-square of the imbalance and of the first server, after a record on the way.

    8 p-values in all, each below 1e-5 by chance once in 1e5 new seeds.
    """
    states, law, lost = oracles.truncated_law(
        oracle_delay,
        np.array(start),
        1.5,
        most_jobs,
        arrival_rate=arrival_rate,
        service_rates=np.ones(servers),
        shares=oracles.logit(2.0),
        scale=2,
    )
    # 40 000 paths do not resolve a probability to better than 1e-3.
    assert lost < 1e-4
    system = lb.System(arrival_rate, 1.0, delay, lb.Logit(2.0), servers)
    jobs = paths(system, 3, [0.6, 1.5], 2.0, start)[:, -1]
    for statistic in (imbalance, first_server):
        assert oracles.fit_p_value(statistic(jobs), statistic(states), law) > 1e-5


@pytest.mark.parametrize("stages", [1, 2])
def test_without_feedback_counts_are_poisson_plus_binomial(stages):
    """Closed form at theta = 0, from a start with jobs in every phase.

    4 chi-square p-values a case, 8 in all, each below 1e-5 once in 1e5 new seeds.
    """
    delay = oracles.erlang(1.0, stages)
    start = np.stack([np.arange(stages + 1) + 2, np.arange(stages + 1)[::-1] + 1])
    system = lb.System(1.5, 0.8, lb.Erlang(1.0, stages), lb.Logit(0.0))
    jobs = paths(system, 4, [0.3, 1.2], 2.0, start)[:, -1]
    means = oracles.uncoupled_means(delay, 0.8, 3.0, 1.2)
    chances = oracles.uncoupled_chances(delay, 0.8, 1.2)
    count = np.arange(61)
    parts = (means[:-1].sum(), chances[:, :-1].sum(axis=1)), (means[-1], chances[:, -1])
    for server in range(2):
        for place, (mean, chance) in enumerate(parts):
            law = stats.poisson.pmf(count, mean)
            for present, stays in zip(start[server], chance, strict=True):
                law = np.convolve(law, stats.binom.pmf(count, present, stays))[:61]
            assert oracles.fit_p_value(jobs[:, server, place], count, law) > 1e-5


@pytest.mark.parametrize(
    "delay", [lb.Erlang(1.0, 2), lb.PhaseType(*COXIAN)], ids=["erlang", "phase-type"]
)
def test_law_is_that_of_the_direct_method(delay):
    """Chi-square of two samples of imbalances, at two times; 4 p-values below 1e-5 by chance."""
    times, start = jnp.array([1.0, 2.5]), jnp.array([[2, 1, 0], [0, 1, 8]])
    system = lb.System(4.0, 1.0, delay, lb.Logit(2.0))
    theirs = lb.stochastic.simulate(system, jr.key(9), times, 2.0, 20_000, start)
    ours = paths(system, 10, times, 2.0, start)
    for number in range(2):
        samples = imbalance(ours)[:, number], imbalance(np.asarray(theirs.jobs))[:, number]
        assert two_sample_p_value(*samples) > 1e-5


def two_sample_p_value(first, second):
    """Chi-square test that both samples have one law, in about twenty cells."""
    edges = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0, 1, 20)))[1:-1]
    cells = np.concatenate([[-np.inf], edges - 0.5, [np.inf]])
    table = np.array([np.histogram(sample, cells)[0] for sample in (first, second)])
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return stats.chi2.sf(((table - expected) ** 2 / expected).sum(), len(edges))
