"""Independent truths for the tests: nothing here imports jaxlb.

A delay law is a pair `initial`, `generator` of NumPy arrays: the chance of each first phase, and
the rates among phases. Jobs are counts of shape (..., servers, compartments), phases then service.
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import simpy
from scipy import sparse, stats
from scipy.linalg import expm
from scipy.sparse.linalg import expm_multiply
from scipy.special import softmax

Delay = tuple[np.ndarray, np.ndarray]


def no_delay() -> Delay:
    return np.zeros(0), np.zeros((0, 0))


def erlang(mean: float, stages: int) -> Delay:
    return mixed_erlang(mean, np.eye(stages)[-1])


def mixed_erlang(mean: float, weights: np.ndarray) -> Delay:
    """`weights[k]` is the chance of k + 1 stages: such a job skips all but the last k + 1."""
    stages = len(weights)
    rate = np.arange(1, stages + 1) @ weights / mean
    return np.asarray(weights)[::-1], rate * (np.eye(stages, k=1) - np.eye(stages))


def logit(sensitivity: float, weights: np.ndarray | float = 0.0) -> Callable:
    """Shares, shape (states, servers), of the rule (1) on service plus weighted transit."""
    return lambda queue, in_transit: softmax(
        -sensitivity * (queue + (in_transit * weights).sum(axis=-1)), axis=-1
    )


def simpy_paths(
    rng: np.random.Generator,
    times: np.ndarray,
    *,
    replicas: int,
    scale: int,
    arrival_rate: float,
    service_rate: float,
    action_delay: float,
    stages: int,
    sensitivity: float,
) -> np.ndarray:
    """The paper's discrete-event simulation (section 5) of two servers, job by job.

    Returns counts, shape (replicas, times, servers, compartments), from the paper's start.
    """
    means = [action_delay / stages] * stages + [1 / service_rate]

    def path():
        env = simpy.Environment()
        jobs = np.zeros((2, stages + 1), int)
        record = []

        def job(server, first=0):
            for compartment in range(first, stages + 1):
                jobs[server, compartment] += 1
                yield env.timeout(rng.exponential(means[compartment]))
                jobs[server, compartment] -= 1

        def dispatcher():
            while True:
                yield env.timeout(rng.exponential(1 / (2 * scale * arrival_rate)))
                seen = jobs[:, -1] / scale
                share = 1 / (1 + np.exp(sensitivity * (seen[0] - seen[1])))
                env.process(job(int(rng.uniform() >= share)))

        def recorder():
            for time in times:
                yield env.timeout(time - env.now)
                record.append(jobs.copy())

        for _ in range(scale):
            env.process(job(1, first=stages))
        env.process(dispatcher())
        env.run(env.process(recorder()))
        return record

    return np.array([path() for _ in range(replicas)])


def truncated_law(
    delay: Delay,
    start: np.ndarray,
    time: float,
    most_jobs: int,
    *,
    arrival_rate: float,
    service_rates: np.ndarray,
    shares: Callable,
    scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Law of the Markov chain at `time`, from its generator on states of at most `most_jobs` jobs.

    Returns the states, shape (states, servers, compartments), their probabilities, and the mass
    lost: the chance to have had more jobs than that.
    """
    servers, compartments = np.shape(start)
    states = _states(servers * compartments, most_jobs)
    code = _code(states, most_jobs)
    jobs = states.reshape(-1, servers, compartments)
    share = shares(jobs[..., -1] / scale, jobs[..., :-1] / scale)
    inflow = scale * servers * arrival_rate * share
    rates, rows, columns = [], [], []
    for server in range(servers):
        for source, target, per_unit in _moves(delay, service_rates[server]):
            step = np.zeros((servers, compartments), int)
            if target is not None:
                step[server, target] += 1
            if source is not None:
                step[server, source] -= 1
            supply = inflow[:, server] if source is None else jobs[:, server, source]
            here = np.flatnonzero(supply)
            rates.append(per_unit * supply[here])
            columns.append(here)
            rows.append(_code(states[here] + step.ravel(), most_jobs))
    rate, row, column = (np.concatenate(parts) for parts in (rates, rows, columns))
    leave = np.bincount(column, rate, len(code))
    place = np.minimum(np.searchsorted(code, row), len(code) - 1)
    kept = code[place] == row
    arrive = (rate[kept], (place[kept], column[kept]))
    flow = sparse.coo_array(arrive, (len(code), len(code))).tocsr() - sparse.diags_array(leave)
    first = code == _code(np.ravel(start), most_jobs)
    law = expm_multiply(time * flow, first.astype(float), traceA=-time * leave.sum())
    return jobs, law, 1 - law.sum()


def _moves(delay: Delay, service_rate: float):
    """Each move of a job of one server: source, target (`None` is outside), rate per unit."""
    initial, generator = delay
    service = len(initial)
    if service == 0:
        yield None, service, 1.0
    for phase, chance in enumerate(initial):
        yield None, phase, chance
        yield phase, service, -generator[phase].sum()
        for other in set(range(service)) - {phase}:
            yield phase, other, generator[phase, other]
    yield service, None, service_rate


def _states(compartments: int, most_jobs: int) -> np.ndarray:
    """All counts with a total of at most `most_jobs`, in lexicographic order (stars and bars)."""
    bars = np.array(list(combinations(range(most_jobs + compartments), compartments)))
    return np.diff(bars, axis=1, prepend=-1) - 1


def _code(states: np.ndarray, most_jobs: int) -> np.ndarray:
    """One integer a state, in lexicographic order; one job too many still fits."""
    return states @ (most_jobs + 2) ** np.arange(states.shape[-1])[::-1]


def uncoupled_chances(delay: Delay, service_rate: float, time: float) -> np.ndarray:
    """Chance that a job in one compartment (row) is in another (column) after `time`."""
    return expm(time * _job_generator(delay, service_rate))


def uncoupled_means(delay: Delay, service_rate: float, inflow: float, time: float) -> np.ndarray:
    """Means of the independent Poisson counts that a Poisson inflow from time 0 has left."""
    chain = _job_generator(delay, service_rate)
    initial = np.append(delay[0], 0.0) if len(delay[0]) else np.ones(1)
    spent = np.linalg.solve(chain, expm(time * chain) - np.eye(len(chain)))
    return inflow * initial @ spent


def _job_generator(delay: Delay, service_rate: float) -> np.ndarray:
    initial, generator = delay
    chain = np.zeros((len(initial) + 1, len(initial) + 1))
    chain[:-1, :-1], chain[:-1, -1], chain[-1, -1] = generator, -generator.sum(1), -service_rate
    return chain


def uncoupled_law(
    delay: Delay, start: np.ndarray, service_rate: float, inflow: float, time: float, most: int
) -> np.ndarray:
    """Law of each count of a server whose inflow is Poisson: shape (compartments, most + 1).

    What has arrived since is Poisson; of those present at the start a binomial number is there.
    """
    count = np.arange(most + 1)
    laws = stats.poisson.pmf(count, uncoupled_means(delay, service_rate, inflow, time)[:, None])
    chances = uncoupled_chances(delay, service_rate, time)
    for compartment, law in enumerate(laws):
        for present, chance in zip(start, chances[:, compartment], strict=True):
            law[:] = np.convolve(law, stats.binom.pmf(count, present, chance))[: most + 1]
    return laws


def immigration_death(immigration: float, death: float, times: np.ndarray) -> np.ndarray:
    """Mean, and variance, of an immigration-death process that starts empty: it is Poisson."""
    return immigration / death * -np.expm1(-death * times)


def fit_p_value(draws: np.ndarray, values: np.ndarray, law: np.ndarray) -> float:
    """Pearson's chi-square test that `draws` come from `law` over `values` (which may repeat).

    Values expected fewer than ten times, and all that `law` lacks, share one cell.
    """
    values, group = np.unique(values, return_inverse=True)
    law = np.bincount(group.ravel(), law.ravel())
    order = np.argsort(-law)
    order = order[len(draws) * law[order] >= 10]
    if len(draws) * (1 - law[order].sum()) < 10:
        order = order[:-1]
    expected = len(draws) * law[order]
    observed = (draws[:, None] == values[order]).sum(axis=0)
    observed, expected = (np.append(n, len(draws) - n.sum()) for n in (observed, expected))
    return float(stats.chisquare(observed, expected).pvalue)
