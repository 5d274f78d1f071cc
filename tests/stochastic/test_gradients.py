"""Derivatives of expectations, against master equations, closed forms and each other.

Seeds are fixed; with a new one, each z-score is above 4 once in 16 000 times.
"""

import re
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import jaxlb as lb
from jaxlb.stochastic import coupled, paths
from tests import oracles

pytestmark = pytest.mark.usefixtures("quick_compilation")

COXIAN = (np.array([0.8, 0.2]), np.array([[-3.0, 2.0], [0.5, -1.5]]))
SMALL = lb.System(2.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
METHODS = pytest.mark.parametrize("method", ["score", "coupled"])
# The same for many tests, which then share compiled programs.
REPLICAS = {"score": 20_000, "coupled": 4000}


def squared_imbalance(jobs):
    return (jobs[0, -1] - jobs[1, -1]) ** 2


def first_is_empty(jobs):
    return jobs[0, -1] == 0


def gradient(system, method, observable=squared_imbalance, seed=0, time=2.0, **options):
    given = {"replicas": REPLICAS[method], "method": method} | options
    return lb.stochastic.expectation_gradient(system, observable, jr.key(seed), time, **given)


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0])


def numbers_of(module):
    return flat(eqx.filter(module, eqx.is_inexact_array))


def central_differences(function, numbers, step):
    units = step * np.eye(len(numbers))
    up, down = (np.array([function(numbers + sign * unit) for unit in units]) for sign in (1, -1))
    return (up - down) / (2 * step)


# Parameters, start, then E[x^2] / scale^2 at time 2 and its derivatives in lambda, mu, D and theta:
# central differences of the master equation, with less than 1e-4 of the value lost by truncation.
CASES = {
    "one-stage": (5, 1, 1, 1, 1, [0, 1], 4.104597, [0.711744, -1.251827, -0.851841, -0.177643]),
    "scale-4": (2, 1, 1, 1, 4, [0, 4], 0.467928, [0.188775, -0.184742, -0.092272, -0.052175]),
    "brief": (3, 0.25, 1, 2, 2, [0, 10], 1.103123, [0.241018, -0.253119, 1.452199, -0.068194]),
    "two-stages": (1.2, 1, 2, 2, 1, [0, 2], 1.462477, [1.154295, -0.760706, -0.440537, 0.028719]),
}


@METHODS
@pytest.mark.parametrize("case", CASES)
def test_estimates_are_those_of_the_master_equation(case, method):
    """40 z-scores in all. The bias of differences is below 0.5 %, a tenth of the errors or less."""
    arrival, delay, stages, sensitivity, scale, start, value, slopes = CASES[case]
    system = lb.System(arrival, 1.0, lb.Erlang(delay, stages), lb.Logit(sensitivity))
    result = gradient(system, method, scale=scale, initial=jnp.array(start))
    assert result.valid == REPLICAS[method]
    assert abs(result.value - value * scale**2) < 4 * result.value_error
    z = (flat(result.estimate) - np.array(slopes) * scale**2) / flat(result.standard_error)
    assert np.abs(z).max() < 4


def chance_of_empty(numbers, time):
    """That no job is in service at the first server, without feedback and from an empty start;
    numbers are the arrival rate, two service rates, and the phases' probabilities and rates."""
    law = numbers[3:5], numbers[5:].reshape(2, 2)
    return np.exp(-oracles.uncoupled_means(law, numbers[1], numbers[0], time)[-1])


@METHODS
def test_without_feedback_derivatives_of_a_chance_are_closed_forms(method):
    """In every number of the system, the phases' generator and probabilities too, of an observable
    without a derivative.

    Eight z-scores for each method, with errors of 1 to 8 %; the difference to 5 % is off by a tenth
    of that. The other server's rate does not matter: it is a ninth.
    """
    system = lb.System(1.5, [0.8, 2.0], lb.PhaseType(*COXIAN), lb.Logit(0.0))
    result = gradient(system, method, first_is_empty, 1, initial=jnp.zeros(2))
    # The rule's sensitivity comes last, and is no part of the closed form.
    estimate, error = flat(result.estimate)[:-1], flat(result.standard_error)[:-1]
    truth = central_differences(
        lambda numbers: chance_of_empty(numbers, 2.0), numbers_of(system)[:-1], 1e-5
    )
    assert np.all(np.abs(estimate - truth) <= 4 * error)
    assert np.all(np.delete(error, 2) > 0)


class Rule(eqx.Module):
    """A rule of a user's own, with a whole number and a function."""

    slope: jax.Array
    bias: jax.Array
    power: jax.Array
    squash: Callable = eqx.field(static=True, default=jnp.tanh)

    def __call__(self, queue, in_transit):
        drive = self.slope * self.squash(queue[1] - queue[0]) + self.bias * in_transit[0, 0]
        share = jax.nn.sigmoid(drive**self.power)
        return jnp.stack([share, 1 - share])


def their_shares(slope, bias):
    def shares(queue, in_transit):
        drive = slope * np.tanh(queue[:, 1] - queue[:, 0]) + bias * in_transit[:, 0, 0]
        share = 1 / (1 + np.exp(-drive))
        return np.stack([share, 1 - share], axis=1)

    return shares


RULES = {
    "weighted": (
        lb.WeightedLogit(1.5, [0.5]),
        lambda numbers: oracles.logit(numbers[0], numbers[1:]),
    ),
    "own": (
        Rule(jnp.array(1.5), jnp.array(-0.7), jnp.array(1)),
        lambda numbers: their_shares(*numbers),
    ),
}


@METHODS
@pytest.mark.parametrize("rule", RULES)
def test_derivatives_in_the_numbers_of_any_rule_are_those_of_the_master_equation(rule, method):
    """8 z-scores; the truths are central differences, with 1e-4 of probability lost."""
    routing, oracle = RULES[rule]
    system = lb.System(1.0, 1.0, lb.Erlang(1.0, 1), routing)

    def expectation(numbers):
        states, law, lost = oracles.truncated_law(
            oracles.erlang(1.0, 1),
            np.array([[0, 0], [0, 1]]),
            2.0,
            14,
            arrival_rate=1.0,
            service_rates=np.ones(2),
            shares=oracle(numbers),
        )
        assert lost < 1e-4
        return law @ (states[:, 0, -1] - states[:, 1, -1]) ** 2

    truth = central_differences(expectation, numbers_of(routing), 1e-3)
    result = gradient(system, method, seed=2)
    estimate, error = flat(result.estimate.routing), flat(result.standard_error.routing)
    assert np.all(np.abs(estimate - truth) < 4 * error)


def test_a_coupled_estimate_is_the_central_difference_and_has_its_bias():
    """E[x^2] without feedback is 2 E[Q1]: between service rates 1.8 and 0.2 its slope is 38 % off
    the derivative, ten standard errors."""
    system = lb.System(5.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(0.0))
    result = gradient(system, "coupled", seed=3, time=4.0, relative_step=0.8, initial=jnp.zeros(2))

    def second_moment(rate):
        return 2 * oracles.uncoupled_means(oracles.erlang(1.0, 1), rate[0], 5.0, 4.0)[-1]

    estimate, error = result.estimate.service_rate, result.standard_error.service_rate
    difference, derivative = (
        central_differences(second_moment, np.ones(1), step)[0] for step in (0.8, 1e-4)
    )
    assert abs(estimate - difference) < 4 * error
    assert abs(difference - derivative) > 8 * error


def test_the_variance_of_coupled_differences_grows_with_the_inverse_step_not_its_square():
    """By 4 for a quarter of the step, not by 16; sampling moves the ratio by a third."""
    small, large = (
        flat(gradient(SMALL, "coupled", relative_step=step).standard_error) for step in (0.05, 0.2)
    )
    ratio = (small / large) ** 2
    assert np.all((ratio > 2.5) & (ratio < 9))


def test_coupled_differences_go_one_way_at_the_end_of_a_domain():
    """A phase where no job starts, and one that all leave to the other: the differences are the
    closed form's own, between the same two points. 2 z-scores."""
    start, generator = np.array([1.0, 0.0]), np.array([[-2.0, 2.0], [0.0, -1.0]])
    system = lb.System(1.5, [0.8, 2.0], lb.PhaseType(start, generator), lb.Logit(0.0))
    result = gradient(system, "coupled", first_is_empty, 4, relative_step=0.2, initial=jnp.zeros(2))

    def chance(start, generator):
        return chance_of_empty(np.concatenate([[1.5, 0.8, 2.0], start, generator.ravel()]), 2.0)

    # A zero moves by a fifth of the root mean square of its array; any other by its own fifth.
    entering = 0.2 * np.sqrt(0.5)
    faster = np.array([[-2.4, 2.0], [0.0, -1.0]])
    present = chance(start, generator)
    truth = {
        "initial": (chance(np.array([1.0, entering]), generator) - present) / entering,
        "generator": (present - chance(start, faster)) / 0.4,
    }
    slope, error = result.estimate.delay, result.standard_error.delay
    assert abs(slope.initial[1] - truth["initial"]) < 4 * error.initial[1]
    assert abs(slope.generator[0, 0] - truth["generator"]) < 4 * error.generator[0, 0]
    # In no path of the system itself does a job begin in the second phase.
    score = gradient(system, "score", first_is_empty, 4, initial=jnp.zeros(2))
    assert np.isfinite(flat(score.estimate)).all()
    assert score.estimate.delay.initial[1] == 0


def test_each_number_moves_by_its_part_and_one_that_can_go_neither_way_stays():
    """Jobs of the first phase never move to the third, and could not without too many leaving."""
    generator = [[-2.0, 2.0, 0.0], [0.0, -1.0, 0.5], [0.5, 0.5, -1.0]]
    delay = lb.PhaseType([1.0, 0.0, 0.0], jnp.array(generator))
    systems, widths = coupled.perturbed(lb.System(2.0, 3.0, delay, lb.Logit(0.0)), jnp.array(0.1))
    # Zeros move up only, by a part of what is typical of their array; the sensitivity both ways.
    entering, moving = np.sqrt(1 / 3), np.sqrt(10.75 / 9)
    # In the first row less may stay, and less may move on, as long as some leave for service.
    expected = [
        4.0,
        6.0,
        2.0,
        entering,
        entering,
        2.0,
        2.0,
        0.0,
        moving,
        2.0,
        1.0,
        0.5,
        0.5,
        1.0,
        2.0,
    ]
    np.testing.assert_allclose(widths, 0.1 * np.array(expected), rtol=1e-12, atol=1e-15)
    assert systems.arrival_rate.shape == (1 + 2 * len(widths),)


@METHODS
def test_standard_errors_are_the_spread_over_keys(method):
    """Of 200 estimates from 100 paths: the ratio of variances has an error of 10 % for normal ones,
    and of some more for these; five z-scores for each method."""

    @jax.jit
    @jax.vmap
    def estimated(key):
        return lb.stochastic.expectation_gradient(
            SMALL, squared_imbalance, key, 1.0, replicas=100, method=method
        )

    results = estimated(jr.split(jr.key(5), 200))
    estimates = jax.tree.leaves((results.value, results.estimate))
    errors = jax.tree.leaves((results.value_error, results.standard_error))
    for estimate, error in zip(estimates, errors, strict=True):
        assert abs(np.var(estimate, ddof=1) / np.mean(error**2) - 1) < 0.5


def test_the_covariance_with_the_score_has_no_bias_for_few_replicas():
    """4000 estimates from two paths each: without the factor n / (n - 1) they would be half as
    large, four standard errors."""

    @jax.jit
    @jax.vmap
    def estimated(key):
        return lb.stochastic.expectation_gradient(
            SMALL, squared_imbalance, key, 2.0, replicas=2, initial=jnp.zeros(2), method="score"
        )

    pairs = estimated(jr.split(jr.key(6), 4000))
    slopes = pairs.estimate.arrival_rate
    many = gradient(SMALL, "score", seed=7, initial=jnp.zeros(2))
    error = np.hypot(slopes.std() / np.sqrt(4000), many.standard_error.arrival_rate)
    assert abs(slopes.mean() - many.estimate.arrival_rate) < 4 * error
    assert error < 0.12 * many.estimate.arrival_rate


@METHODS
def test_replicas_do_not_depend_on_how_many_are_done_at_once(method, monkeypatch):
    """To the last bit, where the last part is not full too."""
    many = flat(gradient(SMALL, method))
    monkeypatch.setattr(paths, "CPU_LANES", 90)
    monkeypatch.setattr(paths, "DEVICE_LANES", 90)
    np.testing.assert_array_equal(flat(gradient(SMALL, method)), many)


def test_paths_are_those_of_simulate():
    result = gradient(SMALL, "score", seed=8)
    found = lb.stochastic.simulate(SMALL, jr.key(8), jnp.array([2.0]), 1, REPLICAS["score"])
    values = np.asarray(jax.vmap(squared_imbalance)(found.jobs[:, 0]))
    np.testing.assert_allclose(result.value, values.mean(), rtol=1e-14)
    np.testing.assert_allclose(result.value_error, stats.sem(values), rtol=1e-12)


@METHODS
def test_at_time_zero_nothing_depends_on_anything(method):
    result = gradient(SMALL, method, time=0.0, initial=jnp.array([1, 4]))
    assert result.value == 9
    np.testing.assert_array_equal(flat(result.estimate), np.zeros(4))


@METHODS
def test_the_estimate_is_a_pytree_like_that_of_jax_grad_and_keeps_each_type(method):
    delay = lb.MixedErlang(jnp.float32(1.0), jnp.array([0.5, 0.5], jnp.float32))
    system = lb.System(jnp.float32(2.0), jnp.float32([1.0, 2.0]), delay, lb.Logit(1.0))
    like = jax.eval_shape(jax.grad(lambda system: system.arrival_rate), system)
    result = eqx.filter_eval_shape(gradient, system, method)
    for tree in (result.estimate, result.standard_error):
        assert jax.tree.structure(tree) == jax.tree.structure(like)
        for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)


class Fails(eqx.Module):
    """A rule that gives no shares once the first server has too many jobs."""

    most: jax.Array

    def __call__(self, queue):
        return jnp.where(queue[0] > self.most, jnp.nan, jnp.array([0.5, 0.5]))


@METHODS
def test_a_path_whose_rule_fails_is_left_out_and_counted(method):
    def result(most):
        system = lb.System(0.3, 1.0, lb.NoDelay(), Fails(jnp.array(most)))
        return gradient(system, method, replicas=400, initial=jnp.array([0, 1]))

    some = result(0.5)
    assert 100 < some.valid < 380
    assert np.isfinite(flat((some.value, some.value_error, some.estimate))).all()
    assert result(-1.0).valid == 0
    assert np.isnan(result(-1.0).value)


def test_a_traced_time_out_of_range_leaves_no_valid_replica():
    valid = jax.jit(lambda time: gradient(SMALL, "score", time=time, replicas=8).valid)
    assert valid(jnp.inf) == 0
    assert valid(1.0) == 8


@METHODS
def test_single_precision_stays_so_and_agrees(method):
    """Five z-scores of the difference from double precision, with errors of 1 to 10 %."""
    double = gradient(SMALL, method, seed=9)
    with jax.enable_x64(False):
        system = lb.System(2.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
        single = gradient(system, method, seed=10)
        assert {leaf.dtype for leaf in jax.tree.leaves(single)[:-1]} == {jnp.dtype("float32")}
        one = flat((single.value, single.estimate))
    other = flat((double.value, double.estimate))
    error = flat((double.value_error, double.standard_error))
    assert np.all(np.abs(one - other) < 4 * np.sqrt(2) * error)


def two_numbers(jobs):
    return jobs[:, 0]


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"system": None}, "`system` must be of type System, got None."),
        ({"key": 3}, "`key` must be one random key such as jax.random.key(0), got 3."),
        ({"time": -1.0}, "`time` must be non-negative and finite, got -1.0 s."),
        ({"time": [1.0, 2.0]}, "`time` must have shape (), got shape (2,)"),
        ({"scale": 0.0}, "`scale` must be positive and finite, got 0"),
        ({"scale": 1e9}, "`scale` must be such that the mean number of jobs stays below"),
        ({"replicas": 1}, "`replicas` must be an integer of at least 2, got 1."),
        ({"initial": [0.5, 1.0]}, "`initial` must be whole numbers of jobs, got ["),
        ({"method": "magic"}, "`method` must be one of pathwise, score, coupled, got"),
        ({"relative_step": 0.1}, '`relative_step` must be left out with method "score", got 0.1.'),
        ({"step_size": 0.1}, '`step_size` must be left out with method "score", got 0.1.'),
        ({"relative_step": 0, "method": "coupled"}, "`relative_step` must be positive and finite"),
        ({"observable": two_numbers}, "`observable` must return one number, got"),
        ({"observable": 3}, "`observable` must map jobs to one number, got 3."),
        (
            {"system": lb.System(1.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0))},
            "`delay` must have phases for exact simulation, got Deterministic",
        ),
    ],
)
def test_a_bad_argument_is_named_with_what_it_must_be_and_what_it_is(options, complaint):
    given = {"system": SMALL, "observable": squared_imbalance, "key": jr.key(0), "time": 1.0}
    given["method"] = "score"
    with pytest.raises(ValueError, match=re.escape(complaint)):
        lb.stochastic.expectation_gradient(**given | options)
