"""The filter of a dispatcher that sees no phases."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import solve_continuous_are

import jaxlb as lb
from jaxlb import design

pytestmark = pytest.mark.usefixtures("quick_compilation")

INITIAL, GENERATOR = [0.5, 0.3, 0.2], [[-8.0, 1.0, 0.0], [0.0, -0.5, 0.2], [0.0, 0.0, -2.0]]
MIXED = lb.PhaseType(INITIAL, GENERATOR)


def system_of(delay, arrival_rate=15.0):
    weights = jnp.arange(delay.num_phases, 0, -1) / delay.num_phases
    return lb.System(arrival_rate, 1.0, delay, lb.WeightedLogit(0.3, weights))


def equations(delay, arrival_rate):
    """Drift of w, how it shows in arrivals, and the noise of w, of both and of arrivals."""
    generator, initial = np.asarray(delay.generator), np.asarray(delay.initial)
    leave = -generator.sum(axis=1)
    occupancy = -np.linalg.solve(generator.T, initial)
    # Jobs that come, that move from phase to phase, and that leave, each by a Poisson stream.
    noise = np.diag(initial)
    for phase, rates in enumerate(generator):
        for other, rate in enumerate(rates):
            move = np.zeros(len(initial))
            move[phase] -= 1
            if other != phase:
                move[other] += 1
                noise = noise + occupancy[phase] * rate * np.outer(move, move)
        move = np.zeros(len(initial))
        move[phase] = -1
        noise = noise + occupancy[phase] * leave[phase] * np.outer(move, move)
    both = 2 * arrival_rate
    return generator.T, leave, both * noise, -both * leave * occupancy, both


def gains_in_the_long_run(delay, arrival_rate):
    """Of the Riccati equation in time, from a start where all is known."""
    drift, leave, noise, shared, arrivals = equations(delay, arrival_rate)
    noise = noise - arrivals * np.outer(delay.initial, delay.initial)
    size = len(leave)

    def slope(_, flat):
        error = flat.reshape(size, size)
        gains = (error @ leave + shared) / arrivals
        change = drift @ error + error @ drift.T + noise - arrivals * np.outer(gains, gains)
        return change.ravel()

    end = 60 * float(delay.mean)
    found = solve_ivp(slope, (0, end), np.zeros(size**2), "DOP853", rtol=1e-12, atol=1e-12)
    return (found.y[:, -1].reshape(size, size) @ leave + shared) / arrivals


@pytest.mark.parametrize("delay", [lb.Erlang(2.0, 5), MIXED], ids=["erlang", "phases"])
def test_gains_are_those_that_the_filter_comes_to_in_time(delay):
    gains = design.kalman(system_of(delay)).gains
    # The solver's error of 1e-12 a step, over hundreds of steps.
    np.testing.assert_allclose(gains, gains_in_the_long_run(delay, 15.0), atol=1e-9)


def test_gains_of_two_stages_have_a_closed_form():
    # The error of the first stage obeys v' = gamma (1 - 2 v - v^2) in units of 2 lambda / gamma.
    gains = design.kalman(system_of(lb.Erlang(0.7, 2), 4.0)).gains
    np.testing.assert_allclose(gains, [1 - np.sqrt(2), np.sqrt(2) - 2], rtol=1e-13)


def test_with_one_phase_the_number_in_transit_is_all_there_is():
    np.testing.assert_array_equal(design.kalman(system_of(lb.Erlang(1.0, 1))).gains, [-1])


@pytest.mark.parametrize("delay", [lb.Erlang(1.0, 4), MIXED], ids=["erlang", "phases"])
def test_without_the_log_arrivals_tell_nothing(delay):
    rule = design.kalman(system_of(delay), log=False)
    assert not rule.log
    np.testing.assert_array_equal(rule.gains, 0)
    drift, leave, noise, shared, arrivals = equations(delay, 15.0)
    # Dual to the regulator: drift and output transposed.
    error = solve_continuous_are(
        drift.T, leave[:, None], noise, np.array([[arrivals]]), s=shared[:, None]
    )
    # Rounding of the library's solver, relative to entries of order one.
    np.testing.assert_allclose((error @ leave + shared) / arrivals, 0, atol=1e-11)


def test_gains_of_fifty_stages_sum_to_minus_one_in_both_precisions():
    for dtype, tolerance in ((jnp.float64, 1e-13), (jnp.float32, 1e-5)):
        delay = lb.Erlang(dtype(1.0), 50)
        weights = jnp.ones(50, dtype)
        system = lb.System(dtype(15), dtype(1), delay, lb.WeightedLogit(dtype(0.3), weights))
        gains = design.kalman(system).gains
        assert gains.dtype == dtype
        # Rounding of a sum of 50.
        np.testing.assert_allclose(gains.sum(), -1, atol=tolerance)
        assert (gains < 0).mean() > 0.5


def test_no_other_gains_do_better():
    """Of the cost that the design is best for, E x^2 + R E u^2 (Anderson and Moore's figures)."""
    feedback, price = (
        np.array([12.124802302436654, 4.278306452575738, 8.854282978113531]),
        2.58572e-3,
    )
    routing = lb.WeightedLogit(feedback[0] / 15, feedback[1:] / feedback[0])
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), routing)
    rule = design.kalman(system)

    @jax.jit
    def cost(move):
        moved = eqx.tree_at(lambda rule: rule.gains, rule, rule.gains + move * jnp.array([1, -1]))
        found = design.observed_noise(system.with_routing(moved))
        return found.variance + price * found.effort**2

    least, slope = jax.value_and_grad(cost)(0.0)
    # Six digits of the price are given.
    np.testing.assert_allclose(slope / least, 0, atol=1e-6)
    assert min(cost(0.05), cost(-0.05)) > least * (1 + 1e-5)


def test_gains_have_derivatives():
    generator, towards = jnp.array(GENERATOR), jnp.array([[-1.0, 0.5, 0], [0, -0.1, 0], [0, 0, 0]])

    def second(step):
        return design.kalman(system_of(lb.PhaseType(INITIAL, generator + step * towards))).gains[1]

    slope = jax.grad(second)(0.0)
    # Central differences of a step of 1e-4: error of order 1e-8.
    np.testing.assert_allclose(slope, (second(1e-4) - second(-1e-4)) / 2e-4, rtol=1e-6)


def test_a_bad_member_of_a_batch_spares_the_others():
    def gains(mean):
        return design.kalman(system_of(lb.Erlang(mean, 3))).gains

    batch = jax.vmap(gains)(jnp.array([1.0, -1.0, 2.0]))
    good = jax.vmap(gains)(jnp.array([1.0, 1.0, 2.0]))
    assert np.isnan(batch[1]).all()
    np.testing.assert_array_equal(batch[::2], good[::2])


@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_named():
    system, number = system_of(lb.Erlang(1.0, 2)), cast(Any, 1)
    for make in (design.kalman, design.by_age, design.observations):
        with pytest.raises(ValueError, match=r"^`routing` must be a WeightedLogit.* got Logit"):
            make(system.with_routing(lb.Logit(1.0)))
    with pytest.raises(ValueError, match=r"^`log` must be of type bool"):
        design.kalman(system, log=number)
