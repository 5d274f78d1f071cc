"""Observables of trajectories and their derivatives, against DOP853, quadrature, closed forms."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq

import jaxlb as lb

from .. import closed_forms
from .two_stages import (
    CASES,
    HORIZON,
    NAMES,
    columns,
    path,
    peak,
    seen,
    settling,
    slopes_of,
    system,
    tops,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

TIGHT: Any = {"method": "diffrax", "rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize(("numbers", "start"), CASES)
def test_the_settling_time_and_its_derivatives_are_those_of_another_solver(numbers, start):
    initial = np.array([0.0, start])
    whole = system(numbers, lb.Erlang, 2)
    options = {"horizon": HORIZON, "tolerance": 0.05}
    found = lb.fluid.sensitivity(whole, lb.fluid.settling_time, initial, **options)
    assert found.valid
    # Collocation's tolerance is relative to 15 jobs, and leaves most of its digits here.
    np.testing.assert_allclose(found.value, settling(numbers, start, 0.05 * start), rtol=1e-9)
    wanted = slopes_of(lambda p: settling(p[:4], p[4], 0.05 * p[4]), np.array([*numbers, start]))
    derivative, rows = columns(found)
    # Collocation's derivatives are within 1e-8 of the largest, as the differences are.
    close: Any = {"rtol": 1e-8, "atol": 1e-8 * np.abs(wanted).max()}
    np.testing.assert_allclose(derivative, wanted[:4], **close)
    np.testing.assert_allclose(rows["initial[1]"].derivative, wanted[4], **close)
    relative = derivative * np.array(numbers) / float(found.value)
    np.testing.assert_allclose([rows[name].elasticity for name in NAMES], relative, rtol=1e-14)


@pytest.mark.parametrize(("numbers", "start"), CASES)
def test_distances_to_cliffs_are_those_of_the_lobes(numbers, start):
    level = 0.05 * start
    found = lb.fluid.settling_time(
        system(numbers, lb.Erlang, 2), [0.0, start], horizon=HORIZON, level=level
    )
    times, x = seen(numbers, start)
    highest = tops(x)
    before, after = (
        highest[side] for side in (times[highest] < found.value, times[highest] > found.value)
    )
    # Samples 1e-3 s apart are 1e-6 of a lobe below its top.
    np.testing.assert_allclose(found.next_lobe, 1 - x[after].max() / level, rtol=1e-5)
    last = x[before[-1]] / level - 1 if before.size else np.inf
    np.testing.assert_allclose(found.last_lobe, last, rtol=1e-5)
    assert found.cliff == min(found.next_lobe, found.last_lobe)


def test_the_settling_time_jumps_where_the_distance_is_zero_and_nowhere_else():
    """The design study's cliff: a jump of about 1 s at lambda theta = 0.593, beside the optimum."""

    def at(gain):
        return lb.fluid.settling_time(
            system((15.0, 1.0, 1.0, gain / 15), lb.Erlang, 2),
            [0.0, 1.0],
            horizon=HORIZON,
            tolerance=0.05,
        )

    gains = np.linspace(0.5, 0.7, 41)
    found = [at(gain) for gain in gains]
    truth = [settling((15.0, 1.0, 1.0, gain / 15), 1.0, 0.05) for gain in gains]
    np.testing.assert_allclose([one.value for one in found], truth, rtol=1e-9)
    jumps = np.flatnonzero(np.abs(np.diff(truth)) > 0.5)
    assert len(jumps) == 1

    def to_cliff(gain):
        """Past it the next lobe is the last one."""
        one = at(gain)
        return float(one.next_lobe if one.value < 2 else -one.last_lobe)

    cliff: Any = brentq(to_cliff, gains[jumps[0]], gains[jumps[0] + 1], xtol=1e-12)
    # Three digits are published.
    np.testing.assert_allclose(cliff, 0.593, atol=5e-4)
    below, above = (at(cliff * (1 + side * 1e-6)) for side in (-1, 1))
    assert 0.9 < above.value - below.value < 1.1
    # The lobe grows by a few of its heights for one of the gain.
    assert 0 < below.cliff < 1e-5
    assert 0 < above.last_lobe < 1e-5
    for side, one in ((-1, below), (1, above)):
        wanted = settling((15.0, 1.0, 1.0, cliff * (1 + side * 1e-6) / 15), 1.0, 0.05)
        # At the touching point the velocity is 1e-3 of its usual size, so errors grow as much.
        np.testing.assert_allclose(one.value, wanted, rtol=1e-6)


def test_without_feedback_the_imbalance_decays_like_an_exponential():
    """T = log(1 / tolerance) / mu, 2.9957 for 0.05; the integral of x^2 (1 - e^(-2 mu h))/2 mu."""
    whole = system((15.0, 1.0, 1.7, 0.0), lb.Erlang, 2)
    options: Any = {"initial": [0.0, 1.0], "horizon": 4.0}
    found = lb.fluid.sensitivity(whole, lb.fluid.settling_time, tolerance=0.05, **options)
    # The method's tolerance is 1e-8 of 15 jobs, and leaves most of its digits here.
    np.testing.assert_allclose(found.value, np.log(20), rtol=1e-9)
    np.testing.assert_allclose(found.derivative.service_rate, -np.log(20), rtol=1e-8)
    np.testing.assert_allclose(found.elasticity.service_rate, -1, rtol=1e-8)
    np.testing.assert_allclose(found.derivative.arrival_rate, 0, atol=1e-10)
    # Of what is left of x nothing turns; noise of 1e-8 jobs may.
    np.testing.assert_allclose(found.observation.next_lobe, 1, atol=1e-6)
    assert found.observation.last_lobe == np.inf
    found = lb.fluid.sensitivity(whole, lb.fluid.integrated_imbalance, **options)
    left = np.exp(-8)
    np.testing.assert_allclose(found.value, (1 - left) / 2, rtol=1e-8)
    np.testing.assert_allclose(found.derivative.service_rate, 4 * left - (1 - left) / 2, rtol=1e-8)
    assert found.observation.error_estimate < 1e-8


def test_without_delay_the_settling_time_is_an_integral():
    """T = integral of dx / v from the level to x_0 with v = 2 lambda tanh(theta x / 2) + mu x."""
    arrival_rate, service_rate, theta, start, level = 5.0, 0.7, 0.9, 6.0, 0.4
    whole = lb.System(arrival_rate, service_rate, lb.NoDelay(), lb.Logit(theta))

    def speed(x):
        return 2 * arrival_rate * np.tanh(theta * x / 2) + service_rate * x

    def integral(change):
        return quad(lambda x: change(x) / speed(x) ** 2, level, start, epsabs=0, epsrel=1e-13)[0]

    found = lb.fluid.sensitivity(
        whole, lb.fluid.settling_time, [start, 0.0], horizon=3.0, level=level, **TIGHT
    )
    np.testing.assert_allclose(found.value, integral(speed), rtol=1e-10)
    derivative = found.derivative
    by_sensitivity = integral(lambda x: -arrival_rate * x / np.cosh(theta * x / 2) ** 2)
    # The solver's tolerance over the smallest speed.
    for slope, wanted in (
        (derivative.arrival_rate, integral(lambda x: -2 * np.tanh(theta * x / 2))),
        (derivative.service_rate, integral(lambda x: -x)),
        (derivative.routing.sensitivity, by_sensitivity),
        (found.initial_derivative[0], 1 / speed(start)),
    ):
        np.testing.assert_allclose(slope, wanted, rtol=1e-9)


def test_the_integral_is_that_of_quadrature_and_its_slopes_are_of_differences():
    numbers, start = CASES[2]

    def integral(p):
        solution = path(p[:4], p[4], HORIZON).sol
        panels = np.linspace(0, HORIZON, 41)
        # By pieces of the solver's interpolant, which is true to 1e-10.
        return sum(
            quad(lambda t: solution(t)[0] ** 2, a, b, epsabs=0, epsrel=1e-11, limit=200)[0]
            for a, b in pairwise(panels)
        )

    whole = system(numbers, lb.Erlang, 2)
    found = lb.fluid.sensitivity(
        whole, lb.fluid.integrated_imbalance, [0.0, start], horizon=HORIZON
    )
    np.testing.assert_allclose(found.value, integral([*numbers, start]), rtol=1e-8)
    assert found.observation.error_estimate < 1e-6
    step = 1e-3 * numbers[3]
    p = np.array([*numbers, start])
    change = step * np.eye(5)[3]
    fine, coarse = (
        (integral(p + m * change) - integral(p - m * change)) / (2 * m * step) for m in (1, 2)
    )
    slope = found.derivative.routing.sensitivity
    # The interpolant's error over the step.
    np.testing.assert_allclose(slope, (4 * fine - coarse) / 3, rtol=1e-6)


def test_the_integral_of_a_small_imbalance_is_the_variance_of_linear_noise():
    """4 lambda times it, from one job: by Parseval's theorem elsewhere."""
    whole = system((15.0, 1.0, 1.0, 0.3 / 15), lb.Erlang, 2)
    small = 1e-2
    found = lb.fluid.integrated_imbalance(whole, [15.0, 15.0 + small], horizon=HORIZON)
    wanted = closed_forms.queue_variance(15.0, 1.0, 0.3, 1.0, 2)
    # The tolerance of 1e-9 of 15 jobs, relative to a hundredth of one.
    np.testing.assert_allclose(60 * found.value / small**2, float(wanted), rtol=1e-5)


@pytest.mark.parametrize("mean", [0.13, 0.3, 1.0, 7.3])
def test_kinks_of_a_deterministic_delay_are_at_ends_of_panels(mean):
    """Whatever the horizon is in delays; shorter than a panel they are seen in the estimate."""
    whole = system((9.0, 0.8, mean, 0.05), lb.Deterministic)
    coarse, fine = (
        lb.fluid.integrated_imbalance(
            whole, [0.0, 1.0], horizon=7.77, panels=panels, rtol=1e-12, atol=1e-12
        )
        for panels in (32, 256)
    )
    error = abs(coarse.value / fine.value - 1)
    assert error <= coarse.error_estimate + 1e-13
    # What the rule leaves of functions that are smooth on its panels.
    assert error < 1e-10 or mean < 7.77 / 32


def test_the_largest_imbalance_is_that_of_another_solver():
    """Past its Hopf point the system of Figure 3 grows from 1 job to a largest lobe."""
    numbers, start = (15.0, 1.0, 1.0, 1.0), 1.0
    whole = system(numbers, lb.Erlang, 2)
    found = lb.fluid.sensitivity(whole, lb.fluid.peak_imbalance, [0.0, start], horizon=HORIZON)
    times, x = seen(numbers, start)
    near = times[np.argmax(x)]
    np.testing.assert_allclose(found.value, peak(numbers, start, near), rtol=1e-8)
    assert abs(found.observation.time - near) < 1e-3
    wanted = slopes_of(lambda p: peak(p[:4], p[4], near), np.array([*numbers, start]))
    derivative, rows = columns(found)
    # Of the differences, and of the solver's growth over 20 s.
    np.testing.assert_allclose(derivative, wanted[:4], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(rows["initial[1]"].derivative, wanted[4], rtol=1e-6, atol=1e-7)


def test_the_largest_imbalance_may_be_at_an_end():
    whole = system((15.0, 1.0, 1.0, 0.2), lb.Erlang, 2)
    found = lb.fluid.sensitivity(whole, lb.fluid.peak_imbalance, [1.0, 5.0], horizon=0.2)
    assert found.observation.time == 0
    assert found.value == 4
    np.testing.assert_allclose(found.initial_derivative, [-1, 1], rtol=1e-12)
    # Rounding of an exponential of zero.
    np.testing.assert_allclose(found.derivative.service_rate, 0, atol=1e-14)
    growing = lb.fluid.peak_imbalance(whole, [[9.0, 9.0, 1.0], [0.0, 0.0, 0.0]], horizon=0.2)
    assert growing.time == 0.2


LAW = np.array([0.6, 0.4]), np.array([[-2.0, 1.5], [0.0, -0.7]])
RATES = [0.7, 1.0, 1.6]


def three_unequal(numbers, end):
    """Three unlike servers and a delay of two unlike phases, from 0, 3 and 1 jobs."""
    arrival_rate, theta = numbers
    start = np.zeros((3, 3))
    start[:, -1] = [0.0, 3.0, 1.0]

    def right_side(_, jobs):
        change = closed_forms.phase_type_drift(arrival_rate, RATES, *LAW, theta, jobs.reshape(3, 3))
        return change.ravel()

    return solve_ivp(
        right_side, (0, end), start.ravel(), "DOP853", rtol=1e-12, atol=1e-12, dense_output=True
    )


def test_many_unlike_servers_and_any_phases_have_a_spread():
    """The level is above their equilibrium's; max - min changes hands on the way."""
    numbers, level = np.array([4.0, 0.8]), 2.5

    def width(queue):
        return queue.max() - queue.min()

    def last(numbers) -> Any:
        solution = three_unequal(numbers, 10.0).sol
        times = np.linspace(0, 10, 10_001)
        widths = np.ptp(solution(times).reshape(3, 3, -1)[:, -1], axis=0)
        k = np.flatnonzero(widths > level)[-1]
        return brentq(
            lambda t: width(solution(t).reshape(3, 3)[:, -1]) - level,
            times[k],
            times[k + 1],
            xtol=1e-13,
        )

    whole = lb.System(numbers[0], RATES, lb.PhaseType(*LAW), lb.Logit(numbers[1]), 3)
    found = lb.fluid.sensitivity(
        whole,
        lb.fluid.settling_time,
        [0.0, 3.0, 1.0],
        horizon=10.0,
        level=level,
        rtol=1e-10,
        atol=1e-10,
    )
    assert found.valid
    # The solver's tolerance, and 1e-10 of the other's interpolant.
    np.testing.assert_allclose(found.value, last(numbers), rtol=1e-8)
    wanted = slopes_of(last, numbers)
    derivative = found.derivative
    np.testing.assert_allclose(
        [derivative.arrival_rate, derivative.routing.sensitivity], wanted, rtol=1e-6
    )
    names = [row.name for row in found.rows()]
    assert names == [
        *("arrival_rate", "service_rate[0]", "service_rate[1]", "service_rate[2]"),
        *("delay.initial[0]", "delay.initial[1]", "delay.generator[0, 0]", "delay.generator[0, 1]"),
        *("delay.generator[1, 0]", "delay.generator[1, 1]", "routing.sensitivity"),
        *("initial[0]", "initial[1]", "initial[2]"),
    ]


def test_what_never_exceeds_the_level_settles_at_once_and_without_slope():
    numbers = (15.0, 1.0, 1.0, 0.2)
    whole = system(numbers, lb.Erlang, 2)
    found = lb.fluid.settling_time(whole, [0.0, 1.0], horizon=HORIZON, level=1.5)
    assert found.valid
    assert found.value == 0
    assert not found.crossed
    # It jumps where the largest lobe reaches the level.
    x = seen(numbers, 1.0)[1]
    np.testing.assert_allclose(found.cliff, 1 - x[tops(x)].max() / 1.5, rtol=1e-5)
    # In balance from the start: the level is zero, and never exceeded.
    found = lb.fluid.sensitivity(
        whole, lb.fluid.settling_time, [2.0, 2.0], horizon=HORIZON, tolerance=0.05
    )
    assert found.value == 0
    assert found.derivative.delay.mean == 0


def test_what_the_panels_do_not_resolve_is_flagged():
    whole = system((15.0, 1.0, 1.0, 1.0), lb.Deterministic)
    found = lb.fluid.peak_imbalance(whole, horizon=HORIZON, panels=1)
    assert not found.valid
    assert np.isnan(found.value)


def test_single_precision_keeps_its_type_and_four_digits():
    double = system((15.0, 1.2, 0.8, 0.1), lb.Erlang, 2)
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), double)
    options: Any = {"initial": [0.0, 20.0], "horizon": HORIZON, "tolerance": 0.05}
    found, wanted = (lb.fluid.settling_time(whole, **options) for whole in (single, double))
    assert found.valid
    assert found.value.dtype == found.cliff.dtype == jnp.float32
    # The method's 3e-6 of 20 jobs, over a level of one.
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-4)
    np.testing.assert_allclose(found.cliff, wanted.cliff, rtol=1e-3)
