"""What an ensemble is made of: shapes, keys, replicas, failure inside a batch, bad arguments."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxlb as lb

SYSTEM = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
TIMES = (0.0, 0.5, 2.0)


def simulate(system=SYSTEM, key=None, times=TIMES, **options):
    key = jr.key(0) if key is None else key
    return lb.stochastic.simulate(system, key, jnp.array(times), **options)


def assert_same(one, other):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)


def test_counts_are_non_negative_32_bit_integers_by_replica_time_server_and_phase():
    ensemble = simulate(scale=5, replicas=200)
    assert ensemble.jobs.dtype == jnp.int32
    assert ensemble.queue.shape == (200, 3, 2)
    assert ensemble.in_transit.shape == (200, 3, 2, 2)
    assert ensemble.jobs.min() >= 0
    assert ensemble.valid.all()
    np.testing.assert_array_equal(ensemble.times, TIMES)


@pytest.mark.parametrize(
    ("scale", "initial", "expected"),
    [
        (7, None, [[0, 0, 0], [0, 0, 7]]),
        (2.6, None, [[0, 0, 0], [0, 0, 3]]),
        (1, [4, 2], [[0, 0, 4], [0, 0, 2]]),
        (1, [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_a_record_at_time_zero_is_the_initial_state(scale, initial, expected):
    start = None if initial is None else jnp.array(initial)
    ensemble = simulate(scale=scale, initial=start, replicas=200)
    np.testing.assert_array_equal(ensemble.jobs[:, 0], [expected] * 200)


def test_a_path_does_not_depend_on_how_many_replicas_there_are():
    few, many = simulate(replicas=2), simulate(replicas=33)
    np.testing.assert_array_equal(few.jobs, many.jobs[:2])


def test_replicas_and_keys_give_different_paths():
    """Six counts of 10 to 20 agree by chance for some of 28 pairs once in 1e5 new seeds."""
    batches = [simulate(key=jr.key(seed), scale=5, replicas=4) for seed in (0, 1)]
    final = np.concatenate([batch.jobs[:, -1] for batch in batches])
    assert len(np.unique(final, axis=0)) == 8


def test_a_raw_key_is_taken_like_a_typed_one():
    assert_same(simulate(key=jr.PRNGKey(5)), simulate(key=jr.key(5)))


def test_jit_and_vmap_over_keys_change_nothing():
    keys = jr.split(jr.key(3), 4)
    batch = jax.jit(jax.vmap(lambda key: simulate(key=key, replicas=3)))(keys)
    for k, key in enumerate(keys):
        assert_same(jax.tree.map(lambda leaf, k=k: leaf[k], batch), simulate(key=key, replicas=3))


def test_scale_times_and_parameters_may_be_traced():
    def build(rate, sensitivity, mean, scale, times, start):
        system = lb.System(rate, 1.0, lb.Erlang(mean, 2), lb.Logit(sensitivity))
        return lb.stochastic.simulate(system, jr.key(0), times, scale, 3, start)

    arguments = 4.0, 1.0, 1.0, 2.0, jnp.array(TIMES), jnp.array([1.0, 2.0])
    assert_same(jax.jit(build)(*arguments), build(*arguments))


class Skewed(eqx.Module):
    """Adds `skew` to the first share once the first queue has `after` jobs."""

    skew: jax.Array
    after: int

    def __call__(self, queue):
        skew = jnp.where(queue[0] >= self.after, self.skew, 0.0)
        return jnp.array([0.5 + skew, 0.5 - skew])


def skewed(skew, after):
    return lb.System(4.0, 1.0, lb.Erlang(1.0, 2), Skewed(jnp.asarray(skew), after))


@pytest.mark.parametrize("skew", [np.nan, np.inf, -np.inf, 0.7, -0.7])
def test_a_path_stops_with_a_flag_where_the_rule_gives_no_probabilities(skew):
    ensemble = simulate(skewed(skew, after=0), replicas=3)
    assert not ensemble.valid.any()
    np.testing.assert_array_equal(
        ensemble.jobs, np.broadcast_to(ensemble.jobs[:, :1], (3, 3, 2, 3))
    )


def test_shares_that_do_not_sum_to_one_are_flagged():
    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lambda queue: jnp.array([0.5, 0.4]) + 0 * queue)
    assert not simulate(system, replicas=3).valid.any()


def test_a_path_is_flagged_only_if_it_came_to_where_the_rule_fails():
    """Of 200 paths some reach three jobs, some do not, but for a chance of 1e-9 or less."""
    ensemble = simulate(skewed(np.nan, after=3), replicas=200)
    reached = (ensemble.queue[:, :, 0] >= 3).any(axis=1)
    assert 0 < ensemble.valid.sum() < 200
    assert ensemble.queue[:, :, 0].max() == 3
    # A path that comes there stays there, so the records show it.
    np.testing.assert_array_equal(ensemble.valid, ~reached)


def test_a_failing_member_of_a_batch_leaves_the_others_alone():
    skews = jnp.array([0.0, jnp.nan, 0.25, 0.75, jnp.inf])
    batch = jax.vmap(lambda skew: simulate(skewed(skew, after=0), replicas=2))(skews)
    np.testing.assert_array_equal(batch.valid.all(axis=1), [True, False, True, False, False])
    for k in (0, 2):
        assert_same(batch.jobs[k], simulate(skewed(skews[k], after=0), replicas=2).jobs)


@pytest.mark.parametrize(
    ("of_system", "of_others"), [(jnp.float32, jnp.float64), (jnp.float64, jnp.float32)]
)
def test_arguments_of_two_precisions_work_together(of_system, of_others):
    """Jobs in service are Poisson(16) at time 12: 5 standard errors, 6e-7 false alarms each."""
    rate, unit = of_system(4.0), of_system(1.0)
    system = lb.System(rate, unit, lb.Erlang(unit, 2), lb.Logit(unit))
    times, scale = jnp.array([1.0, 12.0], of_others), of_others(2.0)
    ensemble = lb.stochastic.simulate(system, jr.key(0), times, scale, 2000, jnp.zeros(2))
    assert ensemble.jobs.dtype == jnp.int32
    total = ensemble.queue[:, -1].sum(axis=1)
    # The empty start is forgotten like exp(-12), within a hundredth of the standard error.
    assert abs(total.mean() - 16) < 5 * np.sqrt(16 / 2000)


def test_single_precision_draws_no_event_of_rate_zero():
    """Sums of many rates round: about one draw in a million once fell on an empty phase.

    The seed is one at which that happened, by JAX 0.12 on a CPU; a count became -1.
    """
    with jax.enable_x64(False):
        system = lb.System(15.0, 1.3, lb.Erlang(0.7, 600), lb.Logit(1.0))
        start = np.random.default_rng(0).poisson(0.2, (2, 601))
        brief = [10 / (600 / 0.7 * start[:, :-1].sum())]
        ensemble = lb.stochastic.simulate(
            system, jr.key(39), brief, 10.0, 2000, jnp.array(start), method="direct"
        )
        assert ensemble.jobs.min() >= 0
        assert ensemble.valid.all()


def one_share(queue):
    return queue[:1]


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        (
            "method",
            "tau",
            "must be one of exact, direct, marks, leap, phase_leap, ring_leap, gauss",
        ),
        ("key", 0, "must be one random key such as jax.random.key(0), got 0."),
        ("key", jr.split(jr.key(0), 2), "must be one random key such as jax.random.key(0), got"),
        ("times", [], "must have at least one entry, got none."),
        ("times", 1.0, "must have shape (any,), got shape ()."),
        ("times", [[1.0]], "must have shape (any,), got shape (1, 1)"),
        ("times", [-1.0, 1.0], "must be non-negative and finite, got [-1. 1.] s."),
        ("times", [0.0, np.nan], "must be non-negative and finite, got [ 0. nan] s."),
        ("times", [0.0, np.inf], "must be non-negative and finite, got [ 0. inf] s."),
        ("times", [2.0, 1.0], "must be increasing, got [2. 1.] s."),
        ("times", [1.0, 1.0], "must be increasing, got [1. 1.] s."),
        ("times", "now", "must be a number, got 'now'."),
        ("times", None, "must be a number, got None."),
        ("scale", 0.0, "must be positive and finite, got 0"),
        ("scale", -2.0, "must be positive and finite, got -2"),
        ("scale", np.nan, "must be positive and finite, got nan"),
        ("scale", np.inf, "must be positive and finite, got inf"),
        ("scale", [1.0, 2.0], "must have shape (), got shape (2,)"),
        ("scale", "big", "must be a number, got 'big'."),
        ("scale", True, "must be a number, got True."),
        ("scale", 1j, "must be real, got an array of complex128."),
        ("scale", 1e8, "must be such that the mean number of jobs stays below 536870912, got 1"),
        ("replicas", 0, "must be an integer of at least 1, got 0."),
        ("replicas", -3, "must be an integer of at least 1, got -3."),
        ("replicas", 1.5, "must be an integer of at least 1, got 1.5."),
        ("replicas", True, "must be an integer of at least 1, got True."),
        ("replicas", "2", "must be an integer of at least 1, got '2'."),
        ("initial", [0.0], "must have shape (2,), got shape (1,)."),
        ("initial", [[0.0], [1.0]], "must have shape (2, 3), got shape (2, 1)."),
        ("initial", 3.0, "must have shape (2, 3), got shape ()."),
        ("initial", [[0.0], [0.0, 1.0]], "must be a number, got [[0.0], [0.0, 1.0]]."),
        ("initial", [0.5, 1.0], "must be whole numbers of jobs, got ["),
        ("initial", [-1.0, 1.0], "must be non-negative and finite, got [-1. 1.] jobs."),
        ("initial", [np.nan, 1.0], "must be non-negative and finite, got [nan 1.] jobs."),
        ("initial", "empty", "must be a number, got 'empty'."),
        (
            "keep",
            "paths",
            "must be one or more of jobs, final, mean, variance, covariance, quantil",
        ),
        ("keep", [], "must be one or more of jobs, final, mean, variance, covariance, quantiles,"),
        ("keep", None, "must be one or more of jobs, final, mean, variance, covariance, quantiles"),
        (
            "keep",
            [["mean"]],
            "must be one or more of jobs, final, mean, variance, covariance, quan",
        ),
        ("levels", [0.5, 1.0], "must be one or more numbers between 0 and 1, got [0.5 1. ]."),
        ("levels", [], "must be one or more numbers between 0 and 1, got []."),
        ("levels", 0.5, "must have shape (any,), got shape ()."),
        ("burn_in", -1.0, "must be non-negative and finite, got -1.0 s."),
        ("chunk_size", 0, "must be an integer of at least 1, got 0."),
        ("replicas", [0.5], "must be an integer, or a vector of them, got [0.5]."),
        ("replicas", 2**40, "must be numbered from 0 to 2^31 - 1, got 1099511627776."),
        (
            "replicas",
            [2**70],
            "must be an integer, or a vector of them, got [1180591620717411303424].",
        ),
        ("replicas", [[1], [1, 2]], "must be an integer, or a vector of them, got [[1], [1, 2]]."),
        ("replicas", [-1, 2], "must be from 0 to 2^31 - 1, got [-1 2]."),
        ("routing", lambda _: None, "must return an array of shares, got None."),
        ("routing", one_share, "must return shares of shape (2,), got shape (1,)."),
    ],
)
def test_a_bad_argument_is_named_with_what_it_must_be_and_what_it_is(argument, value, complaint):
    parts = {"delay": SYSTEM.delay, "routing": SYSTEM.routing}
    others = {"key": jr.key(0), "times": [1.0]}
    (parts if argument in parts else others)[argument] = value
    system = lb.System(4.0, 1.0, **parts)
    with pytest.raises(ValueError, match=re.escape(f"`{argument}` {complaint}")):
        lb.stochastic.simulate(system, **others)


def test_an_infinite_traced_time_is_flagged_and_ends():
    simulate = jax.jit(lambda times: lb.stochastic.simulate(SYSTEM, jr.key(0), times, replicas=3))
    ensemble = simulate(jnp.array([1.0, jnp.inf]))
    assert not ensemble.valid.any()
    np.testing.assert_array_equal(ensemble.jobs[:, 1], ensemble.jobs[:, 0])


def test_a_traced_scale_too_large_for_the_counts_is_flagged_and_spares_the_others():
    simulate = jax.vmap(lambda scale: lb.stochastic.simulate(SYSTEM, jr.key(0), [1.0], scale))
    ensemble = simulate(jnp.array([2.0, 1e10]))
    alone = lb.stochastic.simulate(SYSTEM, jr.key(0), [1.0], 2.0)
    np.testing.assert_array_equal(ensemble.valid[:, 0], [True, False])
    np.testing.assert_array_equal(ensemble.jobs[0], alone.jobs)


def test_a_rule_may_compute_in_a_wider_type_than_the_rest():
    one, weights = np.float32(1), jnp.array([1.0, 2.0])
    system = lb.System(one, one, lb.Erlang(one, 2), lambda queue: jax.nn.softmax(-queue * weights))
    times = np.array([1.0], np.float32)
    assert lb.stochastic.simulate(system, jr.key(0), times, np.float32(9)).valid.all()


def test_a_traced_start_that_is_no_count_is_flagged():
    @jax.jit
    def simulate(start):
        return lb.stochastic.simulate(SYSTEM, jr.key(0), [1.0], initial=start)

    for start, valid in (([0.0, 3.0], True), ([0.5, 3.0], False), ([-1.0, 3.0], False)):
        assert bool(simulate(jnp.array(start)).valid[0]) is valid
