"""Floquet multipliers, against the monodromy matrix by another solver and the normal form."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxlb as lb
from jaxlb.fluid import limit_cycle

pytestmark = pytest.mark.usefixtures("quick_compilation")


def system_of(theta, stages, delay=1.0, arrival_rate=15.0):
    law = lb.Deterministic(delay) if np.isinf(stages) else lb.Erlang(delay, stages)
    return lb.System(arrival_rate, 1.0, law, lb.Logit(theta))


def monodromy_multipliers(system, cycle):
    """All of them, by DOP853 at 1e-12, from the largest modulus on."""
    modes = cycle.harmonics.shape[0]

    @jax.jit
    def right_side(_, both):
        y, around = both[:modes], both[modes:].reshape(modes, modes)
        change, tangent = jax.linearize(lambda y: lb.model.imbalance.drift(system, y), y)
        return jnp.append(change, jax.vmap(tangent, 1, 1)(around))

    start = np.append(cycle.imbalance([0.0])[0], np.eye(modes))
    path = solve_ivp(right_side, (0, float(cycle.period)), start, "DOP853", rtol=1e-12, atol=1e-12)
    values = np.linalg.eigvals(path.y[modes:, -1].reshape(modes, modes))
    return values[np.argsort(-abs(values))]


@pytest.mark.parametrize(
    "system",
    [
        system_of(1.0, 2),
        system_of(1.0, 2, 4.0, 10.0),
        lb.System(15.0, 1.0, lb.Erlang(1.0, 3), lb.WeightedLogit(3.0, [0.2, 0.1, 0.05])),
        lb.System(
            60.0, 1.0, lb.PhaseType([0.9, 0.1, 0], [[-6, 6, 0], [0, -5, 5], [1, 0, -7]]),
            lb.Logit(2.0),
        ),
    ],
    ids=["figure_3", "figure_5", "weighted", "phases"],
)  # fmt: skip
def test_the_largest_multiplier_is_that_of_the_monodromy_matrix(system):
    cycle = limit_cycle.find(system)
    assert cycle.valid
    found = limit_cycle.floquet(system, cycle, 3)
    assert found.valid
    assert found.is_stable
    first, *others = monodromy_multipliers(system, cycle)
    # The shift in time; an error of 1e-11 is the solver's.
    np.testing.assert_allclose(first, 1, atol=1e-9)
    others = np.array([value if abs(value) > 2e-3 else 0 for value in [*others, 0]])
    np.testing.assert_allclose(found.multipliers[: len(others)], others[:3], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    ("stages", "delay", "arrival_rate", "multiplier"),
    [
        (2, 1.0, 15.0, 0.3469624256619773),
        (2, 4.0, 10.0, 0.7804569492995398),
        (10, 1.0, 15.0, 0.003300885253),
    ],
)
def test_multipliers_are_those_of_another_program(stages, delay, arrival_rate, multiplier):
    """By shooting, but for the last, by a Hill determinant: to its digits."""
    system = system_of(1.0, stages, delay, arrival_rate)
    found = limit_cycle.floquet(system, limit_cycle.find(system))
    np.testing.assert_allclose(found.multipliers, [multiplier], rtol=5e-10)


@pytest.mark.parametrize("stages", [2, np.inf])
def test_near_the_hopf_point_the_multiplier_is_that_of_the_normal_form(stages):
    """A change of the amplitude shrinks at the rate 2 Re S log(theta / theta_c)."""
    form = limit_cycle.hopf_normal_form(system_of(1.0, stages))
    excess = 1e-4
    system = system_of(form.sensitivity * jnp.exp(excess), stages)
    cycle = limit_cycle.find(system)
    found = limit_cycle.floquet(system, cycle)
    assert found.valid
    rate = -jnp.log(found.multipliers[0].real) / cycle.period
    # The next order is of the relative size of the excess.
    np.testing.assert_allclose(rate, 2 * form.root_speed.real * excess, rtol=20 * excess)
    assert abs(found.multipliers[0].imag) < 1e-12


def test_a_cycle_that_forgets_within_a_period_has_no_multiplier_to_tell_from_zero():
    """Another program gives 1.4e-9."""
    system = system_of(1.0, np.inf)
    found = limit_cycle.floquet(system, limit_cycle.find(system), 2)
    assert found.valid
    np.testing.assert_array_equal(found.multipliers, 0)


def test_derivatives_are_those_of_finite_differences():
    def multiplier(numbers):
        theta, delay, arrival_rate, service_rate = numbers
        system = lb.System(arrival_rate, service_rate, lb.Erlang(delay, 2), lb.Logit(theta))
        cycle = limit_cycle.find(system, 16, 128)
        return limit_cycle.floquet(system, cycle).multipliers[0].real

    numbers = jnp.array([1.0, 1.0, 15.0, 1.0])
    at = jax.jit(jax.vmap(multiplier))
    step = 1e-4 * np.eye(4)
    slope = (8 * (at(numbers + step) - at(numbers - step))
             - (at(numbers + 2 * step) - at(numbers - 2 * step))) / 12e-4  # fmt: skip
    # Fourth order in steps of 1e-4, of values good to 1e-14.
    np.testing.assert_allclose(jax.jit(jax.grad(multiplier))(numbers), slope, rtol=1e-8)


def test_without_a_cycle_multipliers_are_not_a_number_and_flagged():
    system = system_of(0.3, 2)
    found = limit_cycle.floquet(system, limit_cycle.find(system))
    assert np.isnan(found.multipliers[0])
    assert not found.valid
    assert not found.is_stable


def test_bad_arguments_are_refused():
    system = system_of(1.0, 2)
    cycle = limit_cycle.find(system)
    with pytest.raises(ValueError, match="`count` must be an integer of at least 1, got 0"):
        limit_cycle.floquet(system, cycle, 0)


@pytest.mark.usefixtures("without_type_checks")
def test_what_is_no_cycle_is_refused():
    cycle: Any = 3.6
    with pytest.raises(ValueError, match=r"`cycle` must be of type LimitCycle, got 3\.6"):
        limit_cycle.floquet(system_of(1.0, 2), cycle)
