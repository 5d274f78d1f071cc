"""Criteria against closed forms, measured tables and integration by SciPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import jaxlb as lb
from jaxlb import design

from .cases import A, closed_loop, erlang, noise

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCALE = 100.0


def logit(gain, stages=2):
    return erlang(A, stages, lb.Logit(gain / A[0]))


def test_variance_and_squared_error_are_one_criterion_without_weights():
    # Of least variance, .8 of that without feedback: closed form.
    assert design.linear_noise_variance(logit(1.5)) == pytest.approx(24.0, rel=1e-13)
    for gain in (0.0, 1.5, 7.0):
        variance = design.linear_noise_variance(logit(gain), SCALE)
        error = design.integrated_squared_error(logit(gain))
        assert error == pytest.approx(float(variance) / SCALE / (4 * A[0]), rel=1e-12)


def test_with_weights_each_is_its_own_integral():
    system = erlang(A, 2, lb.WeightedLogit(0.4, [0.3, 0.8]))
    gains = 6.0 * np.array([1.0, 0.3, 0.8])
    matrix = closed_loop(A, 2, gains)
    times = np.linspace(0, 40, 8001)
    roots, left = np.linalg.eig(matrix)
    modes = left * np.linalg.solve(left, [1.0, 0.0, 0.0])
    x = (modes[0] * np.exp(times[:, None] * roots)).sum(axis=1).real
    # Simpson's rule at this step.
    wanted = scipy.integrate.simpson(x**2, x=times)
    assert design.integrated_squared_error(system) == pytest.approx(wanted, rel=1e-8)
    covariance = scipy.linalg.solve_continuous_lyapunov(matrix, -noise(A, 2))
    assert design.linear_noise_variance(system) == pytest.approx(covariance[0, 0], rel=1e-12)
    effort = np.sqrt(SCALE * gains @ covariance @ gains)
    assert design.control_effort(system, SCALE) == pytest.approx(effort, rel=1e-12)


def test_effort_of_the_papers_rule_is_its_gain_times_the_deviation():
    for delay in (lb.Erlang(1.0, 2), lb.Deterministic(1.0)):
        system = lb.System(15.0, 1.0, delay, lb.Logit(0.1))
        wanted = 1.5 * np.sqrt(float(design.linear_noise_variance(system, SCALE)))
        assert design.control_effort(system, SCALE) == pytest.approx(wanted, rel=1e-12)
    assert design.control_effort(logit(0.0)) == 0.0


# Below the service rate, at it, and above; the Hopf gain is 2.2618.
@pytest.mark.parametrize("gain", [0.4, 1.0, 1.2, 2.2])
def test_variance_under_a_constant_delay_is_the_integral_of_its_spectrum(gain):
    system = lb.System(15.0, 1.0, lb.Deterministic(1.0), lb.Logit(gain / 15))
    frequency = np.linspace(0, 4000, 4_000_001)
    still = 60 / (frequency**2 + 1)
    spectrum = 60 / np.abs(1j * frequency + 1 + gain * np.exp(-1j * frequency)) ** 2
    # The difference falls with the cube of the frequency; the rule of trapezoids is exact to 1e-9.
    wanted = 30 + np.trapezoid(spectrum - still, frequency) / np.pi
    assert float(design.linear_noise_variance(system)) == pytest.approx(wanted, rel=1e-7)
    error = float(design.integrated_squared_error(system))
    assert error == pytest.approx(wanted / 60, rel=1e-7)


# Past the Hopf gain of 9, and before.
def test_unstable_systems_have_no_variance_no_error_and_do_not_settle():
    functions = {
        "variance": design.linear_noise_variance,
        "error": design.integrated_squared_error,
        "effort": design.control_effort,
    }

    @jax.jit
    @jax.vmap
    def found(gain):
        return {
            name: jax.value_and_grad(lambda gain, function=function: function(logit(gain)))(gain)
            for name, function in functions.items()
        }

    both = found(jnp.array([8.0, 9.5]))
    for value, slope in both.values():
        np.testing.assert_array_equal(np.isinf(value), [False, True])
        assert slope[0] != 0
        assert slope[1] == 0
    assert not np.isfinite(design.decay_rate(logit(9.5))) or design.decay_rate(logit(9.5)) < 0


@partial(jax.jit, static_argnames="stages")
def settled(gain, stages):
    return design.settling_time(logit(gain, stages))


def test_settling_time_is_that_of_scipy_and_infinite_where_unstable():
    found = settled(0.55, 2)

    def drift(_, y):
        inflow = 2 * A[0] * -np.tanh(0.55 / A[0] * y[0] / 2)
        return [2 * y[2] - y[0], inflow - 2 * y[1], 2 * (y[1] - y[2])]

    def leaves(_, y):
        return abs(y[0]) - 0.05

    solved = scipy.integrate.solve_ivp(
        drift, (0, 40), [-1.0, 0.0, 0.0], "DOP853", events=leaves, rtol=1e-12, atol=1e-14
    )
    assert found.value == pytest.approx(solved.t_events[0][-1], rel=1e-8)
    assert found.valid
    assert settled(0.0, 2).value == pytest.approx(np.log(20), rel=1e-9)
    wild = settled(9.5, 2)
    assert np.isinf(wild.value)
    assert not wild.valid
    assert not wild.stable
    assert design.settling_cliff(logit(9.5)) == 0


def test_a_cycle_smaller_than_the_tolerance_has_not_settled():
    # Just past the Hopf point the cycle is small: within a tenth of the start, but it stays.
    system = logit(9.0001)
    assert lb.fluid.settling_time(system, horizon=2000.0, tolerance=0.9, panels=512).valid
    assert np.isinf(design.settling_time(system, tolerance=0.9, horizon=2000.0).value)


def test_worst_decay_rate_is_the_least_over_the_mean_delay():
    system = erlang(A, 2, lb.WeightedLogit(0.4, [0.3, 0.8]))
    rates = []
    for mean in np.linspace(0.8, 1.2, 401):
        matrix = closed_loop((15.0, 1.0, mean), 2, 6.0 * np.array([1.0, 0.3, 0.8]))
        rates.append(-np.linalg.eigvals(matrix).real.max())
    # The least of a fine grid.
    assert design.worst_decay_rate(system, 0.2) == pytest.approx(min(rates), rel=1e-5)
    nominal = design.decay_rate(system)
    assert design.worst_decay_rate(system) < nominal
    assert design.pseudospectral_decay_rate(system, 0.1) < nominal


def test_the_table_has_every_criterion_and_says_what_not_to_trust():
    table = design.criteria(logit(1.5), SCALE)
    rows = {row.name: row for row in table.rows()}
    assert rows["decay rate"].value == pytest.approx(float(design.decay_rate(logit(1.5))))
    assert rows["stationary variance over that without feedback"].value == pytest.approx(0.8, 1e-4)
    assert rows["control effort"].value == pytest.approx(1.5 * np.sqrt(2400), rel=1e-9)
    assert rows["gain margin"].value == pytest.approx(6.0, rel=1e-12)
    assert all(row.valid for row in rows.values())
    assert "gain margin" in str(table)
    frame = table.to_pandas()
    assert frame.loc["gain margin", "better"] == "more"
    wild = {row.name: row for row in design.criteria(logit(12.0), SCALE).rows()}
    assert not wild["stationary variance"].valid
    assert not wild["settling time"].valid
    constant = lb.System(15.0, 1.0, lb.Deterministic(1.0), lb.Logit(0.08))
    of_constant = {row.name: row for row in design.criteria(constant, SCALE).rows()}
    assert not of_constant["decay rate, pseudospectral"].valid
    assert of_constant["stationary variance"].valid


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"^`error` must be below 1"):
        design.worst_decay_rate(logit(1.0), 1.0)
    with pytest.raises(ValueError, match=r"^`scale` must be positive"):
        design.control_effort(logit(1.0), -1.0)
    with pytest.raises(ValueError, match=r"^`num_servers` must be at least 2"):
        design.integrated_squared_error(
            lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0), num_servers=1)
        )
    own = lb.System(1.0, 1.0, lb.TransformDelay(lambda r: jnp.exp(-r)), lb.Logit(1.0))
    for function in (
        design.integrated_squared_error,
        design.linear_noise_variance,
        design.control_effort,
    ):
        with pytest.raises(ValueError, match=r"^`delay` must have phases"):
            function(own)
