"""Rules with a memory on exact paths: their law, and what a path depends on."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxlb as lb
from jaxlb.stochastic import marks, philox
from jaxlb.stochastic.delay_times import delay_times
from tests import oracles
from tests.stochastic import dispatcher
from tests.stochastic.by_marks import first_server, imbalance, paths

pytestmark = pytest.mark.usefixtures("quick_compilation")

TIMES = jnp.array([0.0, 0.5, 1.0, 2.0, 4.0])


class Fading(eqx.Module):
    """A job counts less the longer it is on its way."""

    rate: jax.Array

    def __call__(self, age):
        return jnp.exp(-self.rate * age)


class Until(eqx.Module):
    """A job counts the same up to some age, s; nobody knows what beyond."""

    weight: jax.Array
    last: jax.Array

    def __call__(self, age):
        return jnp.where(age > self.last, jnp.nan, self.weight)


class Averaging(lb.AbstractMemory):
    """A rule of a user's own: it compares averages of the queues, whose weights fade at `rate`."""

    sensitivity: Any
    rate: Any
    traces: list = eqx.field(static=True, default_factory=list)

    def start(self, servers, places, unit):
        return jnp.zeros(servers, unit.dtype)

    def wait(self, state, queue, duration):
        fade = jnp.where(duration >= 0, jnp.exp(-self.rate * duration), jnp.nan)
        return fade * state + (1 - fade) * queue

    def shares(self, state, queue):
        self.traces.append(None)
        return jax.nn.softmax(-self.sensitivity * state)

    def sent(self, state, server, place, shares):
        return state

    def arrived(self, state, server, place):
        return state


def aged(weight, last=np.inf):
    return lb.AgeLogit(2.0, Until(jnp.array(weight), jnp.array(last)))


def filtered(weight):
    """Uniform weights, and gains that keep the sum of the estimate at what is in transit."""
    return lb.FilteredLogit(2.0, [weight, weight], [-0.3, -0.7], lb.Erlang(1.0, 2))


def simulate(rule, replicas: Any = 50, **options: Any):
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), rule)
    ensemble = lb.stochastic.simulate(system, jr.key(1), TIMES, 2.0, replicas, **options)
    assert ensemble.valid.all()
    return np.asarray(ensemble.jobs)


OF_ONE_PHASE = lb.FilteredLogit(2.0, [0.8], [-1.0], lb.Erlang(1.0, 1))


@pytest.fixture(scope="module")
def without_memory():
    return simulate(lb.Logit(2.0), method="marks")


@pytest.mark.parametrize(
    "rule",
    [aged(0.0), filtered(0.0), lb.LateLogit(2.0, 0.0)],
    ids=["age", "filter", "late"],
)
def test_rule_that_forgets_has_the_paths_of_the_paper_s_rule(rule, without_memory):
    """To the last job: the same random numbers, and shares that differ by rounding at most."""
    np.testing.assert_array_equal(simulate(rule), without_memory)


def test_without_a_delay_no_job_is_in_transit_when_the_next_is_sent():
    """The last job of a block begins service when the block ends, in each of 17 blocks."""
    sizes = marks.Sizes(16, 64, 2)
    wanted, found = (
        paths(lb.System(4.0, 1.0, lb.NoDelay(), rule), 8, [8.0, 16.0], 2.0, [[0], [2]], 20, sizes)
        for rule in (lb.Logit(2.0), aged(0.8))
    )
    np.testing.assert_array_equal(found, wanted)


def test_estimate_by_a_log_sums_to_what_is_in_transit():
    """Counting all of the estimate is then counting every job, by its age: the same paths."""
    np.testing.assert_array_equal(simulate(filtered(0.8)), simulate(aged(0.8)))


@pytest.mark.parametrize(
    ("rule", "start", "most_jobs", "arrival_rate", "dtype"),
    [
        (OF_ONE_PHASE, [[0, 0], [3, 1]], 28, 1.5, np.float32),
        (aged(0.8), [[1, 0, 0], [0, 2, 1]], 16, 0.5, float),
    ],
    ids=["filter-of-one-phase-in-single-precision", "age"],
)
def test_counting_every_job_in_transit_has_the_law_of_the_truncated_generator(
    rule, start, most_jobs, arrival_rate, dtype
):
    """With jobs in transit at the start. 4 chi-square p-values in all, below 1e-5 by chance."""
    phases = len(start[0]) - 1
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
    times = np.array([0.6, 1.5], dtype)
    jobs = paths(system, 3, times, 2.0, start, 20_000, marks.Sizes(16, 32, 32))[:, -1]
    for statistic in (imbalance, first_server):
        assert oracles.fit_p_value(statistic(jobs), statistic(states), law) > 1e-5


def test_dispatcher_who_sees_nothing_but_the_start_sends_poisson_streams():
    """Counts are Poisson plus binomial as long as the lag lasts. 4 chi-square p-values."""
    system = lb.System(1.5, 0.8, lb.Erlang(1.0, 2), lb.LateLogit(0.5, 1.3))
    start = np.array([[2, 0, 1], [1, 1, 5]])
    jobs = paths(system, 4, [0.3, 1.2], 2.0, start, 20_000, marks.Sizes(16, 64))[:, -1]
    share = dispatcher.first_share(0.5, [0.5, 2.5])
    count = np.arange(61)
    for server, part in enumerate((share, 1 - share)):
        law = oracles.uncoupled_law(oracles.erlang(1.0, 2), start[server], 0.8, 6 * part, 1.2, 60)
        assert oracles.fit_p_value(jobs[:, server, 1], count, law[-1]) > 1e-5
        assert oracles.fit_p_value(jobs[:, server, 0], count, np.convolve(*law[:2])[:61]) > 1e-5


COXIAN = np.array([0.8, 0.2]), np.array([[-3.0, 2.0], [0.5, -1.5]])
OBSERVER = [1.5, -0.5], [-0.5, -0.2]


@pytest.mark.parametrize(
    ("delay", "rule", "plain"),
    [
        (lb.Erlang(1.0, 2), lb.LateLogit(2.0, 0.4), dispatcher.Late(2.0, 0.4)),
        (
            lb.QuantileDelay(lambda chance: 0.2 - jnp.log1p(-chance)),
            lb.AgeLogit(2.0, Fading(jnp.array(2.0))),
            dispatcher.Aged(2.0, lambda age: np.exp(-2.0 * age), 0.25),
        ),
        (
            lb.PhaseType(*COXIAN),
            lb.FilteredLogit(2.0, *OBSERVER, lb.PhaseType(*COXIAN), log=False),
            dispatcher.Filter(2.0, *OBSERVER, *COXIAN, False, 0.25),
        ),
        (lb.Deterministic(0.5), Averaging(2.0, 3.0), dispatcher.Averaging(2.0, 3.0)),
    ],
    ids=["late", "age", "filter", "own"],
)
def test_every_job_has_the_server_that_a_plain_dispatcher_gives_it(delay, rule, plain):
    """The same times and chances for about 1300 jobs in 11 blocks.

    Shares differ by rounding, so that a job goes elsewhere with a chance of 1e-12.
    """
    system, count, scale = lb.System(4.0, 1.0, delay, rule), 1500, 4.0
    times = jnp.arange(0.5, 40.5, 0.5)
    wanted = dispatcher.path(plain, times.tolist(), scale, *drawn(system, scale, count))
    given = (
        system,
        jr.key(7),
        jnp.array([3]),
        times,
        jnp.asarray(scale),
        jnp.zeros((2, 2), jnp.int32),
    )
    jobs, valid = marks.paths(*given, jnp.asarray(True), marks.Sizes(128, 256, 128))
    assert valid
    np.testing.assert_array_equal(jobs[0], wanted)


def drawn(system, scale, count):
    """Times of so many jobs, and the chances that their servers are drawn by."""
    stream, number = philox.stream(jr.key(7), jnp.array([3]), marks.ARRIVAL), jnp.arange(count)
    gaps, services, chances = philox.uniforms(stream, number, 3, jnp.float64)
    delays = stream._replace(use=jnp.uint32(marks.DELAY))
    arrival = np.cumsum(-np.log(gaps) / (2 * scale * system.arrival_rate))
    start = arrival + delay_times(system.delay, delays, number, jnp.float64)
    return [np.asarray(v).tolist() for v in (arrival, start, start - np.log(services), chances)]


def test_paths_are_the_same_bits_in_any_chunks_and_order():
    rule = filtered(0.8)
    whole = simulate(rule)
    np.testing.assert_array_equal(simulate(rule, chunk_size=7), whole)
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(simulate(rule, replicas=order), whole[order])
    assert len(np.unique(whole[:, 2:].reshape(50, -1), axis=0)) == 50


def test_paths_are_the_same_one_by_one_and_many_at_once(monkeypatch):
    """As on a GPU, in a batch of 8 and a rest."""
    wanted = simulate(filtered(0.8))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(marks, "DEVICE_PATHS", 8)
    np.testing.assert_array_equal(simulate(filtered(0.8), replicas=10), wanted[:10])


def assert_stays(found, wanted):
    """Whether the path is the wanted one up to some record, then stays there."""
    good = int(np.argmin((found == wanted).all(axis=(1, 2))))
    assert good > 0
    np.testing.assert_array_equal(
        found[good:], np.broadcast_to(found[good - 1], found[good:].shape)
    )


def test_path_without_a_place_or_shares_is_flagged_and_the_others_are_unharmed():
    """About 16 jobs are in transit, one of 60 for longer than 3 s."""
    wanted = simulate(aged(0.8))
    start = jnp.array([[0, 0, 0], [0, 0, 2]], jnp.int32)
    for rule, places in ((aged(0.8), 24), (aged(0.8, 3.0), 128)):
        system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), rule)
        given = jr.key(1), jnp.arange(50), TIMES, jnp.asarray(2.0), start, jnp.array(True)
        sizes = marks.sizes(system, TIMES, 2.0, start)._replace(places=places)
        jobs, valid = (np.asarray(part) for part in marks.paths(system, *given, sizes))
        assert 2 < valid.sum() < 48
        np.testing.assert_array_equal(jobs[valid], wanted[valid])
        for found, path in zip(jobs[~valid], wanted[~valid], strict=True):
            assert_stays(found, path)


def test_new_numbers_compile_nothing():
    traces, lengths = [], []
    for sensitivity, rate in ((2.0, 3.0), (1.0, 0.5)):
        simulate(Averaging(jnp.array(sensitivity), jnp.array(rate), traces))
        lengths.append(len(traces))
    assert lengths[0] == lengths[1] > 0


class Growing(Averaging):
    """The state is longer after each job."""

    def sent(self, state, server, place, shares):
        return jnp.append(state, 0.0)


class Scalar(Averaging):
    """One share for all servers."""

    def shares(self, state, queue):
        return state[0]


@pytest.mark.parametrize(
    ("rule", "words"),
    [(Growing, ["shapes of its state", "`sent`", "(2,)", "(3,)"]), (Scalar, ["shape (2,)", "()"])],
)
def test_rule_of_wrong_shapes_is_told_so(rule, words):
    with pytest.raises(ValueError, match="`routing` must") as caught:
        simulate(rule(2.0, 3.0))
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("rule", [filtered(0.8), lb.LateLogit(1.0, 0.5)])
@pytest.mark.parametrize("method", ["direct", "leap", "ring_leap", "gaussian_leap", "langevin"])
def test_other_methods_refuse_a_memory(rule, method):
    options = {} if method == "direct" else {"step_size": 0.1}
    with pytest.raises(ValueError, match=f'`routing` must look at the present .*"{method}", got'):
        simulate(rule, method=method, **options)


def test_servers_that_differ_are_refused():
    system = lb.System(4.0, [1.0, 2.0], lb.Erlang(1.0, 2), filtered(0.8))
    with pytest.raises(ValueError, match="`service_rate` must be the same for every server"):
        lb.stochastic.simulate(system, jr.key(0), TIMES)
