"""Job marks: what a path depends on, and what becomes of one that fails."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxlb as lb
from jaxlb.stochastic import marks
from tests.stochastic.by_marks import paths

TIMES = jnp.array([0.0, 0.3, 1.0, 2.0, 4.0])
START = jnp.array([[2, 1], [0, 9]], jnp.int32)
SIZES = marks.Sizes(512, 128)
# So short a delay that marks of a block depend on each other, and a rule that counts every job.
SYSTEM = lb.System(10.0, 1.0, lb.Erlang(0.1, 1), lb.Logit(4.0))


def drawn(ids, system=SYSTEM, sizes=SIZES, possible=True):
    """Counts, and whether they are valid, at scale 2."""
    given = system, jr.key(1), ids, TIMES, jnp.asarray(2.0), START
    return [np.asarray(part) for part in marks.paths(*given, jnp.array(possible), sizes)]


@pytest.fixture(scope="module")
def wanted():
    jobs, valid = drawn(jnp.arange(40))
    assert valid.all()
    return jobs


def test_path_depends_on_its_number_alone(wanted):
    """To the last bit: whatever the number, the order and the type of the numbers."""
    jobs, _ = drawn(jnp.arange(40)[::-1])
    np.testing.assert_array_equal(jobs[::-1], wanted)
    some = jnp.array([17, 3, 17], jnp.uint32)
    np.testing.assert_array_equal(drawn(some)[0], wanted[[17, 3, 17]])
    assert len(np.unique(wanted[:, 2:].reshape(40, -1), axis=0)) == 40


def test_record_at_time_zero_is_the_start(wanted):
    np.testing.assert_array_equal(wanted[:, 0], np.broadcast_to(START, (40, 2, 2)))


def test_path_does_not_depend_on_blocks_and_one_that_overflows_is_flagged(wanted):
    """In blocks of 16 arrivals, with 48 places for about 44 jobs.

    Rounding of times differs, which changes a count with a chance below 1e-12.
    """
    jobs, valid = drawn(jnp.arange(40), sizes=marks.Sizes(16, 48))
    assert 5 < valid.sum() < 35
    np.testing.assert_array_equal(jobs[valid], wanted[valid])
    for found, path in zip(jobs[~valid], wanted[~valid], strict=True):
        assert_stays(found, path)


def test_paths_are_the_same_bits_one_by_one_and_many_at_once(monkeypatch, wanted):
    """As on a GPU, in batches of 16 and a rest."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(marks, "DEVICE_PATHS", 16)
    jobs, valid = drawn(jnp.arange(40))
    assert valid.all()
    np.testing.assert_array_equal(jobs, wanted)


def assert_stays(found, wanted):
    """Whether the path is the wanted one up to some record, then stays there."""
    good = int(np.argmin((found == wanted).all(axis=(1, 2))))
    assert good > 0
    np.testing.assert_array_equal(
        found[good:], np.broadcast_to(found[good - 1], found[good:].shape)
    )


def test_path_whose_rule_fails_is_flagged_and_the_others_are_unharmed(wanted):
    def rule(queue):
        share = SYSTEM.routing(queue, jnp.zeros((2, 1)))
        return jnp.where(queue[0] > 12.0, jnp.nan, share)

    jobs, valid = drawn(jnp.arange(40), eqx.tree_at(lambda s: s.routing, SYSTEM, rule_of(rule)))
    assert 5 < valid.sum() < 35
    np.testing.assert_array_equal(jobs[valid], wanted[valid])
    # No record of a valid path can show more than the rule has seen, but for the last job.
    assert wanted[valid, :, 0, 1].max() <= 25
    for found, path in zip(jobs[~valid], wanted[~valid], strict=True):
        assert_stays(found, path)


def rule_of(function):
    return lb.System(1.0, 1.0, lb.NoDelay(), function).routing


@pytest.mark.parametrize("value", [-1.0, np.inf])
@pytest.mark.parametrize(
    "place",
    [lambda s: s.arrival_rate, lambda s: s.service_rate, lambda s: s.delay.mean],
    ids=["arrival_rate", "service_rate", "delay"],
)
def test_paths_of_an_impossible_system_stay_at_the_start(place, value):
    """As of one built with traced values, which nothing has checked."""
    system = eqx.tree_at(place, SYSTEM, jnp.full((), value, jnp.float64))
    jobs, valid = drawn(jnp.arange(40), system)
    assert not valid.any()
    np.testing.assert_array_equal(jobs, np.broadcast_to(START, (40, 5, 2, 2)))


def test_paths_that_must_not_begin_stay_at_the_start():
    jobs, valid = drawn(jnp.arange(40), possible=False)
    assert not valid.any()
    np.testing.assert_array_equal(jobs, np.broadcast_to(START, (40, 5, 2, 2)))


@pytest.mark.parametrize(
    "delay",
    [
        lb.Erlang(1.0, 2),
        lb.PhaseType([0.8, 0.2], [[-3.0, 2.0], [0.5, -1.5]]),
    ],
    ids=["erlang", "phase-type"],
)
def test_jobs_in_transit_all_reach_their_own_server(delay):
    """With next to no arrivals and completions nothing is lost: 1e-20 false alarms."""
    start = np.zeros((2, delay.num_phases + 1), int)
    start[0, 0], start[1, 1] = 5, 3
    start[:, -1] = 2, 1
    system = lb.System(1e-25, 1e-25, delay, lb.Logit(1.0))
    jobs = paths(system, 9, [0.2, 1.0, 200.0], 1.0, start, 50)
    np.testing.assert_array_equal(jobs.sum(axis=-1), np.broadcast_to([7, 4], (50, 3, 2)))
    np.testing.assert_array_equal(jobs[:, -1, :, -1], np.broadcast_to([7, 4], (50, 2)))
    assert (np.diff(jobs[..., 0], axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("horizon", "wanted"),
    [
        # 6000 jobs in the mean and 100 at the start; blocks are twice as long as the table.
        (20.0, marks.Sizes(16384, 8192)),
        # 300 arrivals, at most 463, and 100.
        (0.1, marks.Sizes(512, 1024)),
    ],
)
def test_sizes_are_enough_and_powers_of_two(horizon, wanted):
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    start = jnp.array([[0, 0, 0], [0, 0, 100]])
    assert marks.sizes(system, jnp.array([0.0, horizon]), jnp.asarray(100.0), start) == wanted


@pytest.mark.parametrize("name", ["system", "times", "scale", "initial"])
def test_sizes_of_traced_arguments_raise(name):
    given = {"system": SYSTEM, "times": TIMES, "scale": jnp.asarray(2.0), "initial": START}

    def of(traced):
        found = marks.sizes(*{**given, name: traced}.values())
        return jnp.asarray(found.block)

    with pytest.raises(ValueError, match=f"`{name}` fixes an array shape, so it must be concrete"):
        jax.jit(of)(given[name])


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (
            lb.System(1.0, 1.0, lb.TransformDelay(lambda r: 1 / (1 + r)), lb.Logit(1.0)),
            r"`delay` must have phases or a quantile function .* got TransformDelay",
        ),
        (
            lb.System(1.0, [1.0, 2.0], lb.NoDelay(), lb.Logit(1.0)),
            "`service_rate` must be the same for every server",
        ),
    ],
    ids=["transform", "unequal-servers"],
)
def test_systems_without_times_of_their_own_raise(system, message):
    with pytest.raises(ValueError, match=message):
        drawn(jnp.arange(40), system)


def test_marks_found_together_are_those_found_one_after_the_other(wanted, monkeypatch):
    """The fixed point is the path: with one arrival at a time there is nothing to repeat."""
    jax.clear_caches()
    monkeypatch.setattr(marks, "TOGETHER", 1)
    np.testing.assert_array_equal(drawn(jnp.arange(40))[0], wanted)
    jax.clear_caches()
