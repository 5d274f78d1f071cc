"""Collocation with delays of any phases and with weighted rules, against another solver."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import jaxlb as lb
from jaxlb.fluid import chain, jumps

from .. import closed_forms
from .test_collocation import difference, piecewise

pytestmark = pytest.mark.usefixtures("quick_compilation")

INITIAL = np.array([0.5, 0.25, 0.25])
# Phases that a job may come back to, and one that it may not leave for others.
LOOP = np.array([[-2.0, 0.5, 0.7], [0.25, -3.0, 0.0], [1.0, 0.0, -1.5]])
WEIGHTS = np.array([1.0, 0.5, -0.2])
TIMES = np.array([0.0, 0.3, 1.0, 6.0, 10.0])
START = np.random.default_rng(0).uniform(0, 5, (3, 4))
RATES = np.array([0.7, 1.0, 1.6])


def truth(arrival_rate, rates, initial, generator, sensitivity, start, weights: Any = 0.0):
    """Jobs at the times by DOP853 at 1e-13."""

    def right_side(_, jobs):
        law = np.asarray(initial), np.asarray(generator)
        jobs = jobs.reshape(start.shape)
        return closed_forms.phase_type_drift(
            arrival_rate, rates, *law, sensitivity, jobs, weights
        ).ravel()

    return piecewise(right_side, start.ravel(), TIMES).reshape(-1, *start.shape)


def solve(system, start, times=TIMES):
    return lb.fluid.solve(system, times, start, method="collocation")


@pytest.mark.parametrize("level", [0, 3, 12])
def test_a_window_moves_jobs_as_the_matrix_exponential_does(level):
    delay, rule = lb.PhaseType(INITIAL, LOOP), lb.WeightedLogit(1.0, WEIGHTS)
    made = jumps.jumps(lb.System(1.0, 1.0, delay, rule))
    # Three jumps a second are the most.
    np.testing.assert_allclose(made.unit, 2 / 3, rtol=1e-15)
    part = jumps.at_level(made, jnp.asarray(level))
    step = (2 / 3) * LOOP
    ends = part.length * chain.nodes()
    moved = np.array([expm(end * step) for end in ends])
    leaving = -step.sum(axis=1)
    np.testing.assert_allclose(part.moving, moved[-1], atol=1e-14)
    # The law leaves out 1e-16 of many jumps.
    for weights, (before, since) in (
        (leaving, (part.emptying, part.passing)),
        (WEIGHTS, part.weighed),
    ):
        np.testing.assert_allclose(before, (moved @ weights).T, atol=1e-14)
        # A constant inflow for good, and what rounding leaves of its sums.
        stayed = [np.linalg.solve(step.T, (one.T - np.eye(3)) @ INITIAL) for one in moved]
        np.testing.assert_allclose(since.sum(axis=0), stayed @ weights, atol=1e-13)
    # An inflow that grows like time, or falls.
    for inflow, slope in ((ends, 1.0), (ends[-1] - ends, -1.0)):
        # Of z' = z step + inflow initial, as a larger exponential.
        whole = np.zeros((5, 5))
        whole[:3, :3], whole[3, :3], whole[4, 3] = step, INITIAL, slope
        state = np.array([0, 0, 0, inflow[0], 1]) @ expm(ends[-1] * whole)
        np.testing.assert_allclose(inflow @ part.filling, state[:3], atol=1e-13)


@pytest.mark.parametrize(
    ("delay", "initial", "generator"),
    [
        (lb.PhaseType(INITIAL, LOOP), INITIAL, LOOP),
        (
            lb.MixedErlang(1.5, [0.2, 0.3, 0.5]),
            np.array([0.5, 0.3, 0.2]),
            2.3 / 1.5 * (np.eye(3, k=1) - np.eye(3)),
        ),
    ],
    ids=["phases", "mixed"],
)
def test_jobs_at_unlike_servers_are_those_of_another_solver(delay, initial, generator):
    found = solve(lb.System(6.0, RATES, delay, lb.Logit(0.8), 3), START)
    wanted = truth(6.0, RATES, initial, generator, 0.8, START)
    assert found.ok
    np.testing.assert_array_equal(found.jobs[0], START)
    error = np.abs(found.jobs - wanted).max()
    # Of 30 jobs; 6e-11 was measured.
    assert error < 1e-9
    assert found.error_estimate is not None
    assert error / 30 < found.error_estimate < 1e-6


@pytest.mark.parametrize("rates", [RATES, [1.0, 1.0]], ids=["three", "two"])
def test_jobs_under_weighted_rules_are_those_of_another_solver(rates):
    """Of two, their difference too, which has equations of its own."""
    servers, rule = len(rates), lb.WeightedLogit(0.8, WEIGHTS)
    system = lb.System(6.0, rates, lb.PhaseType(INITIAL, LOOP), rule, servers)
    start = START[:servers]
    wanted = truth(6.0, rates, INITIAL, LOOP, 0.8, start, WEIGHTS)
    np.testing.assert_allclose(solve(system, start).jobs, wanted, atol=1e-9)
    if servers == 2:
        y = lb.fluid.solve_imbalance(
            system, TIMES, np.roll(start[0] - start[1], 1), method="collocation"
        ).y
        apart = np.roll(wanted[:, 0] - wanted[:, 1], 1, axis=-1)
        np.testing.assert_allclose(y, apart, atol=1e-9)


def test_weights_of_an_erlang_delay_are_those_of_its_stages():
    weights = np.array([0.4, 0.1, 0.2, 0.3])
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 4), lb.WeightedLogit(1.0, weights))
    start = np.zeros((2, 5))
    start[1, -1] = 1
    chain = 4 * (np.eye(4, k=1) - np.eye(4))
    wanted = truth(15.0, [1.0, 1.0], np.eye(4)[0], chain, 1.0, start, weights)
    # Of 15 jobs; 3e-9 was measured.
    np.testing.assert_allclose(solve(system, start).jobs, wanted, atol=2e-8)


def observed(numbers, jobs=None):
    """Of arrival and service rates, sensitivity, weights, the law, and jobs in service at 0."""
    system = lb.System(
        numbers[0],
        numbers[1],
        lb.PhaseType([numbers[6], 1 - numbers[6]], [[-numbers[7], numbers[8]], [0.3, -numbers[9]]]),
        lb.WeightedLogit(numbers[2], numbers[3:5]),
    )
    jobs = jnp.zeros((2, 3)).at[0, -1].set(numbers[5])
    found = solve(system, jobs, TIMES).jobs
    return found[3, 0, 2] + 0.3 * found[2, 1, 0]


def test_gradients_are_those_of_finite_differences():
    # The first phase does not lead out, but might.
    numbers = np.array([6.0, 1.2, 0.8, 0.5, -0.2, 3.0, 0.7, 2.0, 2.0, 1.7])

    def value(n):
        start = np.zeros((2, 3))
        start[0, -1] = n[5]
        law = [n[6], 1 - n[6]], [[-n[7], n[8]], [0.3, -n[9]]]
        jobs = truth(n[0], [n[1], n[1]], *law, n[2], start, n[3:5])
        return jobs[3, 0, 2] + 0.3 * jobs[2, 1, 0]

    wanted = difference(value, numbers, 1e-3)
    reverse, forward = (
        jax.jit(slope(observed))(jnp.asarray(numbers)) for slope in (jax.grad, jax.jacfwd)
    )
    # Differences are accurate to 1e-9.
    np.testing.assert_allclose(reverse, wanted, atol=1e-8 * max(abs(wanted)))
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-10)


def test_bad_members_are_flagged_and_leave_the_others_alone():
    """A law that is none, and one so stiff that it would need too many windows."""
    generators = np.array([LOOP, LOOP, LOOP, LOOP])
    generators[1, 0, 1], generators[2, 0, 0] = 5.0, -1e12

    def one(generator):
        system = lb.System(6.0, 1.0, lb.PhaseType(INITIAL, generator), lb.Logit(0.8))
        found = lb.fluid.solve(system, TIMES, method="collocation", max_steps=4096)
        return found.jobs, found.ok

    run = jax.jit(jax.vmap(one))
    jobs, ok = run(generators)
    np.testing.assert_array_equal(ok, [True, False, False, True])
    assert np.isinf(jobs[1:3, -1]).all()
    fine = np.array([0, 3, 0, 3])
    np.testing.assert_array_equal(jobs[fine], run(generators[fine])[0])


def test_single_precision_keeps_its_type_and_its_digits():
    law = jnp.asarray(INITIAL, jnp.float32), jnp.asarray(LOOP, jnp.float32)
    rule = lb.WeightedLogit(jnp.float32(0.8), jnp.asarray(WEIGHTS, jnp.float32))
    rates = jnp.asarray(RATES, jnp.float32)
    system = lb.System(jnp.float32(6.0), rates, lb.PhaseType(*law), rule, 3)
    found = solve(system, START.astype(np.float32), TIMES.astype(np.float32))
    assert found.jobs.dtype == jnp.float32
    assert lb.model.dynamics.initial_jobs(system, None).dtype == jnp.float32
    wanted = truth(6.0, RATES, INITIAL, LOOP, 0.8, START, WEIGHTS)
    # Of 30 jobs, relative to which 1e-6 is asked.
    np.testing.assert_allclose(found.jobs, wanted, atol=1e-4)
