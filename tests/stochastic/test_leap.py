"""Trapezoidal exact leaps: exact without feedback, of second order with it, never negative."""

import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.integrate import quad_vec
from scipy.linalg import expm

import jaxlb as lb
from jaxlb.stochastic import frozen
from tests import oracles
from tests.rules import Fixed

pytestmark = pytest.mark.usefixtures("quick_compilation")

COXIAN = (np.array([0.8, 0.2]), np.array([[-3.0, 2.0], [0.5, -1.5]]))
DELAYS = {
    "no-delay": (lb.NoDelay(), oracles.no_delay()),
    "erlang": (lb.Erlang(1.0, 3), oracles.erlang(1.0, 3)),
    "mixed": (lb.MixedErlang(1.0, [0.4, 0.6]), oracles.mixed_erlang(1.0, np.array([0.4, 0.6]))),
    "phase-type": (lb.PhaseType(*COXIAN), COXIAN),
}


frozen_laws = eqx.filter_jit(frozen.frozen)


def leaps(system, times, step_size, replicas, **options):
    """A program serves one kind of system, number of times, and number of replicas below 512."""
    options = {"scale": 1.0, "key": jr.key(1)} | options
    return lb.stochastic.simulate(
        system, times=times, step_size=step_size, replicas=replicas, method="leap", **options
    )


def job_generator(delay, service_rate):
    """Rates of one job among phases and service; what rows lack to zero leads out."""
    initial, inner = delay
    size = len(initial) + 1
    rates = np.zeros((size, size))
    rates[:-1, :-1], rates[:-1, -1] = inner, -inner.sum(axis=1)
    rates[-1, -1] = -service_rate
    return rates, np.append(initial, 0.0) if len(initial) else np.ones(1)


@pytest.mark.parametrize("step_size", [1e-3, 0.3, 20.0])
@pytest.mark.parametrize("name", DELAYS)
def test_laws_of_one_step_are_those_of_the_exponential_and_its_integrals(name, step_size):
    delay, theirs = DELAYS[name]
    rates = np.array([0.5, 2.0])
    system = lb.System(1.0, rates, delay, lb.Logit(1.0))
    found = frozen_laws(system, jnp.asarray(step_size))
    places = frozen.destinations(delay)
    for server, rate in enumerate(rates):
        generator, start = job_generator(theirs, rate)
        stay = expm(step_size * generator)
        for c, row in enumerate(places):
            rest = 1.0
            for rank, place in enumerate(row):
                # Given that it is in none before: by the chances themselves.
                chance = rest * found.conditional[server, rank, c]
                np.testing.assert_allclose(chance, stay[c, place], rtol=1e-11, atol=1e-14)
                rest -= stay[c, place]

        def integrands(u, generator=generator, start=start):
            return np.outer([1 - u / step_size, 1], start @ expm(u * generator))

        late, both = quad_vec(integrands, 0, step_size)[0]
        # quad_vec asks for 1e-8 of the largest.
        np.testing.assert_allclose(found.late[server], late, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(found.early[server], both - late, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", DELAYS)
def test_without_feedback_one_leap_of_any_length_is_exact(name):
    """Poisson plus binomial, from a start with jobs everywhere, unequal servers.

    Up to 8 chi-square p-values a case, each below 1e-5 once in 1e5 new seeds.
    """
    delay, theirs = DELAYS[name]
    rates = np.array([0.5, 2.0])
    compartments = len(theirs[0]) + 1
    start = np.stack([np.arange(compartments) + 2, np.arange(compartments)[::-1] + 1])
    system = lb.System(1.5, rates, delay, lb.Logit(0.0))
    found = leaps(system, [1.2], 5.0, 40_000, scale=2.0, initial=jnp.array(start))
    assert found.valid.all()
    np.testing.assert_array_equal(found.step_size, [1.2])
    jobs = np.asarray(found.jobs[:, -1])
    for server, rate in enumerate(rates):
        laws = oracles.uncoupled_law(theirs, start[server], rate, 3.0, 1.2, most=60)
        for compartment, law in enumerate(laws):
            p_value = oracles.fit_p_value(jobs[:, server, compartment], np.arange(61), law)
            assert p_value > 1e-5


@pytest.mark.parametrize(
    ("system", "scale", "start", "mean", "variance"),
    [
        pytest.param(
            lb.System(5.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0)),
            1,
            [0, 1],
            0.12204836935886293,
            4.089701087889993,
            id="scale-1",
        ),
        pytest.param(
            lb.System(2.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0)),
            4,
            [0, 4],
            0.5060877050033827,
            7.23072100361101,
            id="scale-4",
        ),
        pytest.param(
            lb.System(1.2, 1.0, lb.Erlang(1.0, 2), lb.Logit(2.0)),
            1,
            [0, 2],
            0.3213190288666271,
            1.359231194333268,
            id="two-stages",
        ),
    ],
)
def test_imbalance_has_the_moments_of_the_truncated_generator(system, scale, start, mean, variance):
    """At time 2 by steps of 1/8: 1 % of the variance and 5 standard errors, 1e-6 false alarms each.

    The moments are those of the generator cut at 15 to 26 jobs, which loses 1e-5 of the mass.
    """
    replicas = 100_000
    options = {"scale": scale, "initial": jnp.array(start)}
    jobs = leaps(system, [0.5, 1.0, 2.0], 0.125, replicas, **options).queue
    imbalance = np.asarray(jobs[:, -1, 0] - jobs[:, -1, 1])
    bias = abs(imbalance.mean() - mean)
    assert bias < 0.01 * np.sqrt(variance) + 5 * np.sqrt(variance / replicas)
    assert abs(imbalance.var() / variance - 1) < 0.01 + 5 * np.sqrt(2 / replicas)


def test_the_variance_is_right_from_the_first_step_on():
    """Lambda theta h of 1.25: 1 % of the variance and 5 standard errors, 1e-6 false alarms each.

    All variance comes from the step or two before. If the prediction does not know the early
    arrivals of its own step, it is 2.6, 3.2 and 1.7 % off.
    """
    replicas = 200_000
    exact = np.array([0.4128041463216633, 0.971265420995296, 2.0837348583039743])  # as above
    system = lb.System(5.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
    jobs = leaps(system, [0.25, 0.5, 1.0], 0.25, replicas, initial=jnp.array([0, 1])).queue
    variance = np.asarray(jnp.var(jobs[..., 0] - jobs[..., 1], axis=0))
    assert np.all(np.abs(variance / exact - 1) < 0.01 + 5 * np.sqrt(2 / replicas))


def test_the_error_of_the_variance_falls_threefold_with_half_the_step():
    """Lambda theta h of 3 and 1.5: 5.1 and 0.85 % were measured, with standard errors of 0.2 %."""
    system = lb.System(3.0, 1.0, lb.Erlang(0.25, 1), lb.Logit(2.0))
    exact = 4.5472036045213855  # at time 3, as above
    errors = []
    for step_size in (0.5, 0.25):
        options = {"scale": 2.0, "initial": jnp.array([0, 10])}
        jobs = leaps(system, [1.0, 2.0, 3.0], step_size, 400_000, **options).queue
        errors.append(float(jnp.var(jobs[:, -1, 0] - jobs[:, -1, 1])) / exact - 1)
    assert errors[0] < 0.065
    assert abs(errors[1]) < errors[0] / 3


def test_leaps_in_single_precision_have_the_same_law():
    """Jobs in service are Poisson(2 eta lambda / mu) in total: mean and variance, 5 errors each."""
    with jax.enable_x64(False):
        system = lb.System(3.0, 1.0, lb.Erlang(0.5, 2), lb.Logit(1.0))
        found = leaps(system, [20.0], 0.2, 20_000, scale=2.0, initial=jnp.zeros(2))
        total = np.asarray(found.queue[:, 0].sum(axis=1))
    assert found.valid.all()
    assert abs(total.mean() - 12) < 5 * np.sqrt(12 / 20_000)
    # A Poisson variance has standard error sqrt((m + 2 m^2) / n).
    assert abs(total.var() - 12) < 5 * np.sqrt((12 + 2 * 12**2) / 20_000)


@pytest.mark.parametrize("name", ["erlang", "phase-type"])
def test_jobs_are_never_negative_and_all_are_kept_where_none_arrive_or_leave(name):
    rare = 1e-25
    delay, _ = DELAYS[name]
    start = np.random.default_rng(3).integers(0, 40, (2, delay.num_phases + 1))
    system = lb.System(rare, [rare, rare], delay, lb.Logit(1.0))
    totals = np.broadcast_to(start.sum(axis=1), (600, 2))
    for time in (0.1, 1.0, 50.0):
        jobs = leaps(system, [time], 7.0, 600, initial=jnp.array(start)).jobs[:, 0]
        assert jobs.min() >= 0
        np.testing.assert_array_equal(jobs.sum(axis=-1), totals)
    np.testing.assert_array_equal(jobs[..., -1], totals)


def test_a_path_is_the_same_bits_whatever_is_beside_it():
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    few, many = (leaps(system, [1.0, 2.0, 2.5], 0.3, n, scale=50.0).jobs for n in (3, 600))
    np.testing.assert_array_equal(few, many[:3])
    assert len(np.unique(np.asarray(many)[:, -1].reshape(600, -1), axis=0)) > 500


def test_each_interval_is_cut_into_equal_steps_not_longer_than_asked():
    system = lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    for times, steps in (
        ([0.0, 1.0, 1.25], [0.1, 0.25 / 3]),
        ([0.0, 1.25, 2.0], [1.25 / 13, 0.75 / 8]),
    ):
        found = leaps(system, times, 0.1, 3)
        np.testing.assert_allclose(np.asarray(found.step_size)[1:], steps, rtol=1e-12)
        np.testing.assert_array_equal(found.jobs[:, 0, 1, -1], 1)


@pytest.mark.parametrize("shares", [[np.nan, 1.0], [1.2, -0.2], [0.5, 0.4], [np.inf, 0.0]])
def test_a_path_stays_where_the_rule_gives_no_probabilities(shares):
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), Fixed(jnp.array(shares)))
    found = leaps(system, [1.0, 2.0], 0.5, 3, scale=5.0)
    assert not found.valid.any()
    np.testing.assert_array_equal(found.jobs, np.broadcast_to([[0, 0, 0], [0, 0, 5]], (3, 2, 2, 3)))


def test_a_bad_traced_step_is_flagged_and_spares_the_others():
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    times = [0.5, 1.0, 2.0]
    run = jax.jit(jax.vmap(lambda step_size: leaps(system, times, step_size, 3)))
    found = run(jnp.array([0.5, -1.0, jnp.nan, 0.0]))
    np.testing.assert_array_equal(found.valid[:, 0], [True, False, False, False])
    np.testing.assert_array_equal(found.jobs[0], leaps(system, times, 0.5, 3).jobs)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"method": "leap"},
            '`step_size` and `tolerance` must be given with method "leap", got None and None.',
        ),
        (
            {"method": "leap", "step_size": 0.1, "tolerance": 0.1},
            '`step_size` and `tolerance` must be given with method "leap", got 0.1 and 0.1.',
        ),
        (
            {"method": "poisson_leap", "tolerance": 0.1},
            '`tolerance` must be left out with method "poisson_leap", got 0.1.',
        ),
        ({"tolerance": 0.1}, '`tolerance` must be left out with method "exact", got 0.1.'),
        ({"method": "leap", "tolerance": -1.0}, "`tolerance` must be positive and finite, got -1"),
        ({"step_size": 0.1}, '`step_size` must be left out with method "exact", got 0.1.'),
        ({"method": "leap", "step_size": 0.0}, "`step_size` must be positive and finite, got 0"),
    ],
)
def test_a_bad_step_is_named(options, complaint):
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    with pytest.raises(ValueError, match=complaint):
        lb.stochastic.simulate(system, jr.key(0), [1.0], **options)


def test_counts_beyond_single_precision_are_refused():
    with jax.enable_x64(False):
        system = lb.System(1.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
        with pytest.raises(ValueError, match="`scale` must be such that the mean number of jobs"):
            leaps(system, [1.0], 0.1, 1, scale=1e7)


def test_the_program_for_a_gpu_never_calls_the_host():
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))

    def run(key_data, theta):
        key = jr.wrap_key_data(key_data)
        changed = lb.System(15.0, 1.0, system.delay, lb.Logit(theta))
        return leaps(changed, [1.0, 2.0], 0.1, 8, key=key, scale=100.0).jobs

    arguments = jr.key_data(jr.key(0)), jnp.asarray(1.0)
    program = jax.export.export(jax.jit(run), platforms=["cuda"])(*arguments).mlir_module()
    assert "callback" not in program
    assert "lapack" not in program
