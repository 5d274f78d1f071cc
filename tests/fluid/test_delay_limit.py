from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import jaxlb as lb
from jaxlb.fluid import method_of_steps, windows

from .. import closed_forms
from ..delay_equation import by_stacked_lags
from ..rules import Counted

pytestmark = pytest.mark.usefixtures("quick_compilation")

PAPER = 15.0, 1.0, 1.0, 1.0
TIMES = np.linspace(0, 7.3, 74)
TIGHT: Any = {"rtol": 1e-12, "atol": 1e-12}


def system(arrival_rate=15.0, service_rate: Any = 1.0, mean=1.0, sensitivity=1.0, servers=2):
    delay, rule = lb.Deterministic(mean), lb.Logit(sensitivity)
    return lb.System(arrival_rate, service_rate, delay, rule, servers)


def truth(arrival_rate, rates, mean, sensitivity, start, times):
    def inflow(queue):
        return len(start) * arrival_rate * closed_forms.logit(sensitivity, queue)

    rates, start = np.asarray(rates), np.asarray(start, float)
    return by_stacked_lags(inflow, rates, mean, start, np.zeros(len(start)), times)


@pytest.mark.parametrize(
    ("parameters", "rates", "start"),
    [
        (PAPER, [1.0, 1.0], [0, 1]),
        ((3.0, None, 0.7, 0.6), [0.5, 1.0, 2.0], [2.0, 0.0, 5.0]),
        ((9.0, None, 2.2, 3.0), [1.4, 0.8], [1.0, 3.0]),
    ],
    ids=["figure 3", "three unequal servers", "a sharp rule"],
)
def test_trajectory_is_that_of_another_solver(parameters, rates, start):
    arrival_rate, _, mean, sensitivity = parameters
    wanted = truth(arrival_rate, rates, mean, sensitivity, start, TIMES)
    whole = system(arrival_rate, rates, mean, sensitivity, len(rates))
    solution = lb.fluid.solve(whole, TIMES, start)
    assert solution.ok
    assert solution.jobs.shape == (74, len(rates), 2)
    # The default tolerance; 5e-10 is the worst of 64 systems.
    np.testing.assert_allclose(solution.jobs, wanted, atol=1e-8 * wanted.max())
    solution = lb.fluid.solve(whole, TIMES, start, **TIGHT)
    # Rounding, and the other solver's 1e-13, over the growth of some lags.
    np.testing.assert_allclose(solution.jobs, wanted, atol=1e-11 * wanted.max())
    np.testing.assert_array_equal(solution.queue, solution.jobs[..., 1])


def test_a_single_server_fills_as_its_closed_form_says():
    whole = system(3.0, 0.5, 1.7, 1.0, 1)
    solution = lb.fluid.solve(whole, TIMES, [4.0])
    late = np.maximum(TIMES - 1.7, 0)
    queue = 4 * np.exp(-0.5 * TIMES) + 3 / 0.5 * -np.expm1(-0.5 * late)
    # A constant inflow is a polynomial, and q exact.
    np.testing.assert_allclose(solution.queue[:, 0], queue, rtol=1e-13)
    in_transit = 3 * np.minimum(TIMES, 1.7)
    np.testing.assert_allclose(solution.in_transit[:, 0, 0], in_transit, rtol=1e-13, atol=1e-14)


def test_the_first_two_lags_are_integrals_of_the_free_decay():
    """q_i = e^(-mu t) q_i(0), then by variation of constants; z_i is the integral of the inflow."""
    rate, lag, start = 0.8, 1.5, np.array([0.0, 3.0])

    def inflow(time, server):
        return 2 * 6 * closed_forms.logit(0.9, start * np.exp(-rate * time))[server]

    def left(time, server, late):
        return inflow(time, server) * np.exp(rate * (time - late))

    times = [0.4, 1.2, 1.5, 2.0, 2.9]
    solution = lb.fluid.solve(system(6.0, rate, lag, 0.9), times, start, **TIGHT)
    for time, jobs in zip(times, solution.jobs, strict=True):
        for server in (0, 1):
            late = max(time - lag, 0.0)
            due = quad(left, 0, late, (server, late))[0]
            queue = start[server] * np.exp(-rate * time) + due
            # The integral's own tolerance is 1.5e-8 of it at worst, and 1e-13 where it is smooth.
            np.testing.assert_allclose(jobs[server, 1], queue, rtol=1e-11, atol=1e-14)
            if time <= lag:
                under_way = quad(inflow, 0, time, (server,))[0]
                np.testing.assert_allclose(jobs[server, 0], under_way, rtol=1e-11)


def test_imbalance_settles_on_the_known_limit_cycle():
    """Amplitude 18.053225243848 and period 2.988836890998, by harmonic balance elsewhere."""
    period, samples = 2.988836890998, 20000
    # The multipliers are below 1e-8: nothing of the start is left.
    times = 30 + period * np.arange(samples + 1) / samples
    x = lb.fluid.solve_imbalance(system(), times, 1.0, **TIGHT).queue
    np.testing.assert_allclose(x[-1], x[0], atol=1e-9)
    np.testing.assert_allclose(x[samples // 2], -x[0], atol=1e-9)
    # A sample next to a peak of curvature 230 jobs/s^2 is up to 7e-7 below it.
    np.testing.assert_allclose(max(abs(x)), 18.053225243848, rtol=0, atol=1e-6)


def test_imbalance_is_the_difference_of_the_queues():
    whole = system(9.0, 0.8, 0.7, 0.5)
    queue = lb.fluid.solve(whole, TIMES, [3.0, 1.0], **TIGHT).queue
    reduced = lb.fluid.solve_imbalance(whole, TIMES, 2.0, **TIGHT)
    assert reduced.y.shape == (74, 1)
    # Rounding over the growth of some lags.
    np.testing.assert_allclose(reduced.queue, queue[:, 0] - queue[:, 1], atol=1e-10)


def test_linear_imbalance_is_the_sum_over_lags():
    """x = x0 e^(-mu t) sum over n of (-k e^(mu D) (t - n D))^n / n!, n D <= t."""
    mean, rate, gain = 0.7, 0.8, 9.0 * 0.5
    solution = lb.fluid.solve_imbalance(
        system(9.0, rate, mean, 0.5), TIMES, [2.0], linear=True, **TIGHT
    )
    wanted = np.zeros_like(TIMES)
    term = np.ones_like(TIMES)
    for n in range(12):
        late = np.maximum(TIMES - n * mean, 0)
        factorial = np.prod(np.arange(1.0, n + 1))
        term = (-gain * np.exp(rate * mean) * late) ** n / factorial
        wanted += 2 * np.exp(-rate * TIMES) * term
    # Terms of the sum are up to 1e5, with rounding of 1e-11.
    np.testing.assert_allclose(solution.queue, wanted, atol=1e-9)


def test_gradients_in_both_modes_are_those_of_finite_differences():
    """In lambda, mu, D, theta, both queues at the start, and a time; D divides no time."""
    at = jnp.array([9.0, 0.8, 0.73, 0.9, 1.0, 2.0, 3.1])

    def jobs(p):
        whole = system(p[0], p[1], p[2], p[3])
        return lb.fluid.solve(whole, jnp.stack([p[6] / 2, p[6]]), p[4:6], **TIGHT).jobs

    def value(p):
        found = truth(p[0], [p[1], p[1]], p[2], p[3], p[4:6], [p[6] / 2, p[6]])
        return found[-1, 0].sum()

    steps = 3e-4 * np.eye(7)
    at_numpy = np.asarray(at)
    # Richardson: the error is the fourth power of the step, and 1e-12 over the step.
    coarse = [(value(at_numpy + 2 * h) - value(at_numpy - 2 * h)) / 1.2e-3 for h in steps]
    fine = [(value(at_numpy + h) - value(at_numpy - h)) / 6e-4 for h in steps]
    wanted = (4 * np.array(fine) - np.array(coarse)) / 3
    backward = jax.jit(jax.grad(lambda p: jobs(p)[-1, 0].sum()))
    forward = jax.jit(jax.jacfwd(lambda p: jobs(p)[-1, 0].sum()))
    np.testing.assert_allclose(backward(at), wanted, rtol=1e-8, atol=1e-8)
    # Both solve the same equations: rounding.
    np.testing.assert_allclose(forward(at), backward(at), rtol=1e-11, atol=1e-11)


def test_slopes_in_the_delay_are_right_at_the_end_of_a_window_and_have_slopes():
    """At t = 2 D, a node of every mesh, the queue has a derivative in D, though no second one."""

    def queue(mean):
        return lb.fluid.solve(system(9.0, 0.8, mean, 0.9), [1.0, 2.0], **TIGHT).queue[-1, 0]

    slope = jax.grad(queue)
    both = jax.jit(lambda mean: jax.jvp(slope, (mean,), (jnp.ones(()),)))
    step = 1e-6
    wanted = (queue(1 + step) - queue(1 - step)) / (2 * step)
    # The difference's error is its step times the jump of the second derivative, some tens.
    np.testing.assert_allclose(both(1.0)[0], wanted, rtol=1e-5)
    wanted = (both(0.73 + step)[0] - both(0.73 - step)[0]) / (2 * step)
    # Its error is the square of its step, and 1e-11 over it.
    np.testing.assert_allclose(both(0.73)[1], wanted, rtol=1e-5)


def solve_batch(means, thetas, rates):
    def one(mean, theta, rate):
        solution = lb.fluid.solve(system(15.0, rate, mean, theta), TIMES)
        return solution.jobs, solution.result == dfx.RESULTS.max_steps_reached, solution.ok

    return jax.vmap(one)(means, thetas, rates)


def test_bad_members_are_flagged_and_leave_the_others_bit_equal():
    """Too sharp a rule, too short a delay, and numbers out of their domain."""
    batch = jax.jit(solve_batch)
    means = jnp.array([1.0, 1.0, 1e-6, -1.0, jnp.nan, 1.0, 0.5])
    thetas = jnp.array([1.0, 1e6, 1.0, 1.0, 1.0, 1.0, 2.0])
    rates = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, jnp.inf, 1.0])
    jobs, too_long, ok = batch(means, thetas, rates)
    np.testing.assert_array_equal(ok, [True, False, False, False, False, False, True])
    np.testing.assert_array_equal(too_long, [False, True, True, False, False, False, False])
    assert np.all(np.isinf(np.asarray(jobs)[1:6]))
    good = batch(jnp.full(7, 1.0).at[6].set(0.5), jnp.ones(7).at[6].set(2.0), jnp.ones(7))[0]
    np.testing.assert_array_equal(np.asarray(jobs)[[0, 6]], np.asarray(good)[[0, 6]])


def test_a_batch_in_step_gives_what_each_gives_at_its_own_pace(monkeypatch):
    """Off the CPU a batch runs in step; the number of windows makes it a program of its own."""

    def value(p):
        return lb.fluid.solve(system(9.0, 0.8, p[0], p[1]), [2.2], max_steps=300).queue[-1, 0]

    def in_step(function, *arguments):
        return function(*arguments)

    batch = jnp.array([[1.0, 1.0], [0.11, 0.2], [2.0, 3.0], [1e-4, 1.0]])
    both = jax.value_and_grad(value)
    alone, slopes = zip(*[both(p) for p in batch[:3]], strict=True)
    for module in (method_of_steps, windows):
        monkeypatch.setattr(module, "at_its_own_pace", in_step)
    jax.clear_caches()
    found, gradient = jax.jit(jax.vmap(both))(batch)
    # The same arithmetic, but for the order of some sums.
    np.testing.assert_allclose(found[:3], alone, rtol=1e-12)
    np.testing.assert_allclose(gradient[:3], slopes, rtol=1e-9, atol=1e-11)
    assert np.isinf(found[3])
    jax.clear_caches()


def test_traced_times_out_of_order_are_flagged():
    times = jnp.array([[1.0, 2.0], [2.0, 1.0], [-1.0, 1.0], [1.0, jnp.nan]])
    solved = jax.vmap(lambda t: lb.fluid.solve(system(), t))(times)
    np.testing.assert_array_equal(solved.ok, [True, False, False, False])
    assert np.isinf(solved.queue[1:]).all()


def test_new_values_do_not_recompile():
    traces = []

    def solve(theta, mean, rtol):
        whole = lb.System(15.0, 1.0, lb.Deterministic(mean), Counted(jnp.array(theta), traces))
        return lb.fluid.solve(whole, [3.0, 6.0], rtol=rtol).queue

    first = solve(1.0, 1.0, 1e-8)
    wanted = lb.fluid.solve(system(), [3.0, 6.0]).queue
    # The same rule, and up to rounding the same arithmetic.
    np.testing.assert_allclose(first, wanted, rtol=1e-9)
    count = len(traces)
    assert count > 0
    assert not np.allclose(first, solve(0.5, 0.11, 1e-6))
    assert len(traces) == count


def test_memory_grows_with_need_where_numbers_are_concrete():
    """200 s of a delay of 0.1 s are 2000 windows at least; 1024 fit at first."""
    whole, times = system(mean=0.1, sensitivity=0.1), [100.0, 200.0]
    solution = lb.fluid.solve(whole, times)
    # Balance, 15 jobs each, is stable: the critical delay is 1.2 s.
    np.testing.assert_allclose(solution.queue, 15, rtol=1e-8)
    traced = jax.jit(lambda w: lb.fluid.solve(w, times))
    assert traced(whole).result == dfx.RESULTS.max_steps_reached
    enough = jax.jit(lambda w: lb.fluid.solve(w, times, max_steps=4096))(whole)
    np.testing.assert_array_equal(enough.queue, solution.queue)


def test_single_precision_in_gives_single_precision_out():
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), system())
    times = jnp.asarray(TIMES, jnp.float32)
    solution = lb.fluid.solve(single, times, jnp.array([0, 1], jnp.float32))
    assert solution.jobs.dtype == jnp.float32
    assert solution.ok
    wanted = truth(15.0, [1.0, 1.0], 1.0, 1.0, [0, 1], np.asarray(times, float))
    # Rounding of 1e-7 times the growth over some lags; 30 jobs here.
    np.testing.assert_allclose(solution.jobs, wanted, atol=30 * 3e-6)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("solver", lambda: lb.fluid.solve(system(), [1.0], solver=dfx.Dopri8())),
        ("adjoint", lambda: lb.fluid.solve(system(), [1.0], adjoint=dfx.ForwardMode())),
        ("first_step", lambda: lb.fluid.solve_imbalance(system(), [1.0], 1.0, first_step=0.1)),
    ],
)
def test_settings_of_diffrax_are_refused(name, work):
    with pytest.raises(ValueError, match=f"^`{name}` must be left out for a deterministic delay"):
        work()


def test_bad_arguments_are_named():
    def by_transit(queue, in_transit):
        return jax.nn.softmax(-queue - in_transit.sum(axis=1))

    whole = lb.System(1.0, 1.0, lb.Deterministic(1.0), by_transit)
    with pytest.raises(ValueError, match=r"^`routing` must look at queues alone here"):
        lb.fluid.solve(whole, [1.0])
    with pytest.raises(ValueError, match=r"^`initial` must be without jobs in transit"):
        lb.fluid.solve(system(), [1.0], np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"^`initial` must have shape \(1,\)"):
        lb.fluid.solve_imbalance(system(), [1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match=r"^`max_steps` must be an integer of at least 1"):
        lb.fluid.solve(system(), [1.0], max_steps=0)
    with pytest.raises(ValueError, match=r"^`rtol` must be positive"):
        lb.fluid.solve(system(), [1.0], rtol=0.0)
    unequal = system(service_rate=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"^`service_rate` must be the same for every server"):
        lb.fluid.solve_imbalance(unequal, [1.0], 1.0)
