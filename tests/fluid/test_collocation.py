from itertools import pairwise
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

import jaxlb as lb
from jaxlb.fluid import chain, collocation
from jaxlb.fluid.window import Problem

from .. import closed_forms
from ..rules import Fixed

pytestmark = pytest.mark.usefixtures("quick_compilation")

TIMES = np.array([0.0, 0.3, 1.0, 2.5, 6.0, 10.0, 20.0])
# theta, D, lambda, mu: the paper's Figure 3; gentle; sharp with a short and a long delay.
LANES = np.array(
    [[1.0, 1.0, 15.0, 1.0], [0.1, 0.5, 1.2, 1.7], [4.5, 0.3, 18.0, 0.6], [3.0, 4.0, 15.0, 1.5]]
)


def system(lane, stages, servers=2):
    theta, mean, arrival_rate, service_rate = lane
    delay = lb.Erlang(mean, stages)
    return lb.System(arrival_rate, service_rate, delay, lb.Logit(theta), servers)


def piecewise(right_side, start, times):
    """DOP853 at 1e-13, anew from each time to the next: between steps it is much less accurate."""
    states = [np.asarray(start)]
    for begin, end in pairwise(times):
        done = solve_ivp(right_side, (begin, end), states[-1], "DOP853", rtol=1e-13, atol=1e-13)
        states.append(done.y[:, -1])
    return np.array(states)


def imbalance_truth(lane, stages, x, times: Any = TIMES):
    """Equations (6)-(8) by another solver, accurate to 1e-11."""
    theta, mean, arrival_rate, service_rate = lane
    gamma = stages / mean

    def right_side(_, y):
        flow = np.append(-2 * arrival_rate * np.tanh(theta * y[0] / 2), gamma * y[1:])
        return np.append(flow[-1] - service_rate * y[0], flow[:-1] - flow[1:])

    return piecewise(right_side, [x, *np.zeros(stages)], times)


@pytest.fixture(scope="module")
def two_stages():
    """Imbalances of every lane from x = -1, two stages, by the other solver."""
    return np.array([imbalance_truth(lane, 2, -1.0) for lane in LANES])


def imbalances(lanes, stages, times: Any = TIMES, x: Any = -1.0):
    def one(lane):
        return lb.fluid.solve_imbalance(system(lane, stages), times, x, method="collocation")

    return jax.jit(jax.vmap(one))(lanes)


def relative(found, wanted):
    """Largest error of each member, relative to its largest value of each compartment."""
    return np.max(abs(found - wanted).max(axis=1) / abs(wanted).max(axis=1), axis=-1)


@pytest.mark.parametrize("stages", [3, 66])
def test_a_window_moves_jobs_as_the_matrix_exponential_does(stages):
    """66 stages are more than are multiplied as a matrix."""
    tables, level = chain.chain(stages), 3
    length = chain.LENGTHS[level]
    generator = stages * (np.eye(stages, k=1) - np.eye(stages))
    moved = expm(length * generator)
    moving = tables.moving[level]
    if stages > chain.MATRIX_STAGES:
        np.testing.assert_allclose(np.fft.irfft(moving)[:stages], moved[0], atol=1e-14)
    else:
        np.testing.assert_allclose(moving, moved, atol=1e-14)
    # What leaves at the end is the rate times what is in the last stage.
    np.testing.assert_allclose(tables.emptying[level][:, -1], stages * moved[:, -1], atol=1e-12)
    # A constant inflow fills the stages; rounding of sums of order one.
    filled = np.linalg.solve(generator.T, (moved.T - np.eye(stages))[:, 0])
    np.testing.assert_allclose(tables.filling[level].sum(axis=0), filled, atol=1e-13)
    passed = stages * filled[-1]
    np.testing.assert_allclose(tables.passing[level][:, -1].sum(), passed, atol=1e-13)


def test_imbalances_are_those_of_another_solver(two_stages):
    found = imbalances(LANES, 2)
    assert found.method == "collocation"
    assert found.ok.all()
    error = relative(found.y, two_stages)
    # 2e-8 of the largest is the worst of 64 random systems.
    assert error.max() < 5e-8
    # The estimate bounds the error, and is itself no larger than 5e-6.
    assert (relative(found.y[..., :1], two_stages[..., :1]) < found.error_estimate).all()
    assert found.error_estimate.max() < 5e-6


@pytest.mark.parametrize("stages", [1, 66])
def test_imbalances_with_one_stage_and_with_many(stages):
    lanes, times = LANES[:3:2], TIMES[:-1]
    wanted = np.array([imbalance_truth(lane, stages, -1.0, times) for lane in lanes])
    # As above; of a long chain the first stages are the least accurate.
    assert relative(imbalances(lanes, stages, times).y, wanted).max() < 2e-7


def test_jobs_at_unlike_servers_are_those_of_another_solver():
    start = np.random.default_rng(0).uniform(0, 5, (3, 5))
    rates = [0.7, 1.0, 1.6]
    whole = lb.System(6.0, jnp.array(rates), lb.Erlang(1.5, 4), lb.Logit(0.8), 3)
    found = lb.fluid.solve(whole, TIMES, start)

    def right_side(_, jobs):
        jobs = jobs.reshape(3, 5)
        return closed_forms.chain_drift(6.0, rates, 1.5, 4, 0.8, jobs).ravel()

    assert found.method == "collocation"
    wanted = piecewise(right_side, start.ravel(), TIMES).reshape(-1, 3, 5)
    np.testing.assert_array_equal(found.jobs[0], start)
    # 1e-8 of 6 jobs is the worst of random systems.
    np.testing.assert_allclose(found.jobs, wanted, atol=2e-7)


def test_linear_imbalance_is_the_closed_form_for_one_stage():
    whole = system([0.3, 2.0, 10.0, 1.0], 1)
    start = jnp.array([0.7, -0.4])
    options: Any = {"linear": True, "method": "collocation"}
    found = lb.fluid.solve_imbalance(whole, TIMES[1:], start, **options)
    wanted = lb.stability.exponential_imbalance(whole, TIMES[1:], 0.7, -0.4)
    # Relative to the largest value, which is of order one.
    np.testing.assert_allclose(found.queue, wanted, atol=2e-8)


def test_single_precision_is_accurate_to_its_digits(two_stages):
    found = imbalances(LANES.astype(np.float32), 2, jnp.asarray(TIMES, jnp.float32), np.float32(-1))
    assert found.y.dtype == jnp.float32
    assert found.ok.all()
    # 6e-5 is the worst of 64 random systems, with 200 stages; 8e-6 with two.
    assert relative(found.y, two_stages).max() < 2e-5


def observed(numbers, times, **options):
    """A scalar that depends on x and on jobs in transit, of four parameters and the start."""
    lane, x = numbers[:4], numbers[4]
    found = lb.fluid.solve_imbalance(system(lane, 2), times, x, **options)
    return found.y[1, 0] + 0.3 * found.y[0, 1]


def difference(function, at, step):
    """Central differences of fourth order, for each entry."""
    slopes = []
    for unit in np.diag(step * np.abs(at)):
        values = [function(at + shift * unit) for shift in (-2, -1, 1, 2)]
        slopes.append(np.dot(values, [1, -8, 8, -1]) / (12 * unit.max()))
    return np.array(slopes)


@pytest.fixture(scope="module")
def slopes():
    """Derivatives of `observed` in reverse and forward, for pairs of systems."""
    return [
        jax.jit(jax.vmap(transform(observed), (0, None))) for transform in (jax.grad, jax.jacfwd)
    ]


def test_gradients_are_those_of_finite_differences(slopes):
    numbers, times = np.append(LANES[0], -1.0), np.array([3.0, 7.3])

    def value(numbers):
        y = imbalance_truth(numbers[:4], 2, numbers[4], [0.0, *times])
        return y[2, 0] + 0.3 * y[1, 1]

    wanted = difference(value, numbers, 1e-3)
    reverse, forward = (slope(np.stack([numbers, 0.9 * numbers]), times) for slope in slopes)
    # Differences are accurate to 1e-8; gradients to 5e-7 of the largest.
    np.testing.assert_allclose(reverse[0], wanted, atol=5e-7 * max(abs(wanted)))
    # Both solve the same linear equations, to 1e-9 of the largest flow.
    np.testing.assert_allclose(forward, reverse, rtol=1e-7, atol=1e-8)


def test_derivatives_reach_windows_of_earlier_blocks(slopes):
    """A block has 128 windows, and this lane needs more."""
    numbers, times = np.append([5.0, 0.2, 20.0, 1.0], -1.0), np.array([0.3, 20.0])
    assert not np.isfinite(observed(jnp.array(numbers), times, max_steps=128))
    value = jax.jit(observed)
    wanted = difference(lambda numbers: float(value(numbers, times)), numbers, 1e-4)
    reverse, forward = (slope(np.stack([numbers, 0.9 * numbers]), times) for slope in slopes)
    # Differences of values accurate to 1e-9 over a step of 1e-4; slopes are some hundreds.
    np.testing.assert_allclose(reverse[0], wanted, atol=5e-7 * max(abs(wanted)))
    np.testing.assert_allclose(forward, reverse, rtol=1e-6, atol=1e-6)


def test_second_derivatives_are_refused():
    numbers = jnp.append(jnp.asarray(LANES[0]), -1.0)
    with pytest.raises(NotImplementedError, match="method='diffrax'"):  # JAX's, for no derivative
        jax.hessian(observed)(numbers, np.array([3.0, 7.3]))


def test_bad_members_are_flagged_and_leave_the_others_alone():
    """The second is solved; the third would need too many windows; the rest is out of range."""
    lanes = np.array([LANES[0], LANES[0], LANES[0], LANES[0], LANES[0], LANES[1]])
    lanes[1:5, :2] = [[1e6, 1.0], [1e6, 1e-6], [np.nan, 1.0], [1.0, -1.0]]
    horizon = np.array([20.0, 20.0, 1e4, 20.0, 20.0, 20.0])

    def one(lane, horizon):
        found = lb.fluid.solve_imbalance(system(lane, 2), TIMES / 20 * horizon, -1.0)
        return found.y, found.ok, found.result == dfx.RESULTS.max_steps_reached

    solve = jax.jit(jax.vmap(one))
    y, ok, too_long = solve(lanes, horizon)
    np.testing.assert_array_equal(ok, [True, True, False, False, False, True])
    np.testing.assert_array_equal(too_long, [False, False, True, False, False, False])
    # A relay: the difference never exceeds 2 lambda / mu.
    assert abs(y[1, :, 0]).max() < 30
    assert np.isinf(y[2:5, -1]).all()
    fine = np.array([0, 5])
    np.testing.assert_array_equal(y[fine], solve(lanes[fine], horizon[fine])[0])


def test_times_out_of_order_are_flagged_where_they_are_traced():
    def one(times):
        found = lb.fluid.solve(system(LANES[0], 2), times)
        return found.queue, found.ok

    queue, ok = jax.jit(one)(jnp.array([2.0, 1.0]))
    assert not ok
    assert np.isinf(queue).all()


def test_new_numbers_and_more_windows_do_not_recompile():
    traces = []

    def arrivals(system, values):
        traces.append(None)
        return -system.arrival_rate * system.routing.sensitivity * values

    problem = Problem(arrivals, lambda system: system.common_service_rate[None])

    def solve(lane, times):
        start = collocation.Start(jnp.ones(1), jnp.zeros((1, 2)))
        return collocation.solve(problem, system(lane, 2), jnp.asarray(times), start, 10000)

    first = solve([0.1, 1.0, 1.0, 1.0], TIMES)
    count = len(traces)
    assert count > 0
    second = solve([0.1, 0.01, 1.0, 1.0], TIMES * 2)
    assert len(traces) == count
    assert not np.allclose(first.queue, second.queue)


def test_the_default_is_collocation_where_it_applies():
    weights = lb.WeightedLogit(1.0, jnp.ones(2))
    others = [
        lb.System(15.0, 1.0, lb.Erlang(1.0, 2), weights),
        lb.System(15.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0)),
        lb.System(15.0, 1.0, lb.PhaseType([1.0], [[-1.0]]), lb.Logit(1.0)),
        lb.System(15.0, 1.0, lb.MixedErlang(1.0, jnp.ones(65) / 65), lb.Logit(1.0)),
        lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lambda queue: jax.nn.softmax(-queue)),
    ]
    paper, mixed = (
        lb.System(15.0, 1.0, delay, lb.Logit(1.0))
        for delay in (lb.Erlang(1.0, 200), lb.MixedErlang(1.0, [0.5, 0.5]))
    )

    def solved(whole, **options):
        return eqx.filter_eval_shape(lambda: lb.fluid.solve(whole, [0.1], **options))

    assert [solved(other).method for other in others] == ["diffrax"] * 5
    assert solved(paper, rtol=1e-6).method == "diffrax"
    assert solved(paper, method="diffrax").error_estimate is None
    for whole in (paper, mixed):
        assert solved(whole).method == "collocation"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"method": "rk4"},
            "`method` must be one of auto, collocation, diffrax, steps, got 'rk4'",
        ),
        ({"method": "steps"}, "`method` must be another than 'steps' but for a deterministic"),
        (
            {"delay": lb.Deterministic(1.0)},
            "`method` must be 'steps' for a deterministic delay, got 'collocation'",
        ),
        ({"rtol": 1e-6}, "`method` must be 'diffrax' for a solver"),
        ({"max_steps": 0}, "`max_steps` must be an integer of at least 1, got 0"),
        ({"delay": lb.NoDelay()}, "`delay` must have phases for collocation, got NoDelay"),
        (
            {"delay": lb.MixedErlang(1.0, jnp.ones(65) / 65)},
            "`delay` must have at most 64 phases for collocation, unless it is Erlang and the rule",
        ),
        (
            {"routing": Fixed(jnp.full(2, 0.5))},
            "`routing` must be Logit or WeightedLogit for collocation, got QueueRule",
        ),
    ],
    ids=repr,
)
def test_collocation_is_refused_where_it_does_not_apply(change, words):
    parts: dict[str, Any] = {"delay": lb.Erlang(1.0, 2), "routing": lb.Logit(1.0)}
    options: dict[str, Any] = {"method": "collocation"}
    for name, value in change.items():
        (parts if name in parts else options)[name] = value
    with pytest.raises(ValueError, match="must") as error:
        lb.fluid.solve(lb.System(15.0, 1.0, **parts), [1.0], **options)
    assert words in str(error.value)


@pytest.mark.parametrize("method", ["collocation", "diffrax"])
def test_many_are_solved_in_chunks_as_each_would_be_alone(method):
    # Their costs fall, rise and rise: no order that undoes itself.
    systems = jax.vmap(lambda lane: system(lane, 2))(LANES[[2, 0, 1, 3]])
    initial = jnp.array([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    chunk = 3 if method == "diffrax" else None
    found = lb.fluid.solve_many(systems, TIMES, initial.tolist(), chunk=chunk, method=method)
    assert found.method == method
    wanted = eqx.filter_vmap(lambda one, start: lb.fluid.solve(one, TIMES, start, method=method))(
        systems, initial
    )
    assert found.ok.all()
    # Steps are chosen for each by itself: rounding over some hundreds of them.
    np.testing.assert_allclose(found.jobs, wanted.jobs, rtol=1e-9, atol=1e-9)


def test_many_need_one_leading_axis():
    systems = jax.vmap(lambda lane: system(lane, 2))(LANES)
    for bad, initial in [(system(LANES[0], 2), None), (systems, [[1.0, 2.0]] * 3)]:
        with pytest.raises(ValueError, match=r"^`systems` must have one leading axis in common"):
            lb.fluid.solve_many(bad, TIMES, initial)
    with pytest.raises(ValueError, match=r"^`initial` must be non-negative and finite, got"):
        lb.fluid.solve_many(systems, TIMES, -np.ones((4, 2)))
