"""Sensitivity studies: both modes, batches, tables, and what is refused."""

import re

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb

from .two_stages import CASES, HORIZON, columns, system

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(
    ("observable", "value", "slopes"),
    [
        (lb.fluid.cycle_amplitude, 3.637615152396451,
         [0.3634530535252638, -3.6369859552617174, 1.8148098476172363, 1.8141806504827918]),
        (lb.fluid.cycle_period, 2.2275507403534602,
         [0.001378215209782361, -0.5715367221481742, 1.6766872463520204, 0.020673228146735542]),
    ],
)  # fmt: skip
def test_of_cycles_derivatives_are_those_of_shooting(observable, value, slopes):
    """The table of `test_limit_cycle`, by half-period shooting at 1e-13."""
    whole = system((15.0, 1.0, 1.0, 1.0), lb.Erlang, 2)
    found = lb.fluid.sensitivity(whole, observable, harmonics=32, samples=256)
    assert found.valid
    np.testing.assert_allclose(found.value, value, rtol=1e-11)
    np.testing.assert_allclose(columns(found)[0], slopes, rtol=1e-8, atol=1e-9)
    # Time in units of D, jobs in units of 1 / theta: two numbers are left.
    elasticity = found.elasticity
    by_time = elasticity.delay.mean - elasticity.arrival_rate - elasticity.service_rate
    np.testing.assert_allclose(by_time, float(found.observation.unit == "s"), atol=1e-8)


def constant(theta):
    """The settling time and both distances of a deterministic delay."""
    found = lb.fluid.settling_time(
        system((15.0, 1.0, 1.0, theta), lb.Deterministic),
        [0.0, 1.0],
        horizon=HORIZON,
        tolerance=0.05,
    )
    return jnp.stack([found.value, found.next_lobe, found.last_lobe])


def test_forward_mode_gives_what_reverse_and_differences_do():
    """Distances to cliffs too: a maximum's slope is that at its time, held."""
    theta, step = jnp.array(0.1), 1e-5
    value, slopes = jax.jvp(constant, (theta,), (jnp.ones_like(theta),))
    by_difference = (constant(theta + step) - constant(theta - step)) / (2 * step)
    # Of the difference: the square of its step, relative to theta, and 1e-9 over it.
    np.testing.assert_allclose(slopes, by_difference, rtol=1e-5)
    found = lb.fluid.sensitivity(
        system((15.0, 1.0, 1.0, theta), lb.Deterministic),
        lb.fluid.settling_time,
        [0.0, 1.0],
        horizon=HORIZON,
        tolerance=0.05,
    )
    assert found.value == value[0]
    # Both solve the same linear equations.
    np.testing.assert_allclose(found.derivative.routing.sensitivity, slopes[0], rtol=1e-10)


def test_forward_mode_through_diffrax_takes_its_adjoint():
    def largest(theta):
        whole = lb.System(5.0, 1.0, lb.NoDelay(), lb.Logit(theta))
        adjoint = dfx.ForwardMode()
        return lb.fluid.peak_imbalance(whole, [3.0, 0.0], horizon=1.0, adjoint=adjoint).value

    assert jax.jvp(largest, (0.9,), (1.0,)) == (3, 0)


def of_batch(theta):
    return lb.fluid.sensitivity(
        system((15.0, 1.0, 1.0, theta), lb.Deterministic),
        lb.fluid.settling_time,
        jnp.array([0.0, 1.0]),
        horizon=HORIZON,
        tolerance=0.05,
        max_steps=256,
    )


def test_bad_members_are_flagged_and_leave_the_others_bit_equal():
    """Numbers out of their domain, a rule too sharp for the steps, and one that does not settle."""
    batch = jax.jit(jax.vmap(of_batch))
    found = batch(jnp.array([0.04, -1.0, jnp.nan, 1e6, 1.0, 0.1]))
    np.testing.assert_array_equal(found.valid, [True, False, False, False, False, True])
    assert np.isnan(found.value[1:5]).all()
    assert np.isnan(found.derivative.delay.mean[1:5]).all()
    assert not found.observation.settled[4]
    others = batch(jnp.array([0.04, 0.04, 0.1, 0.1, 0.1, 0.1]))
    for here, there in zip(jax.tree.leaves(found), jax.tree.leaves(others), strict=True):
        np.testing.assert_array_equal(np.asarray(here)[[0, 5]], np.asarray(there)[[0, 5]])
    with pytest.raises(ValueError, match="`sensitivity` must be of one system, got a batch of"):
        found.rows()


def last_queue(system, initial):
    return lb.fluid.solve(system, [3.0], initial).queue[0, 0]


def test_a_function_of_ones_own_and_its_table():
    """One server: what is left of the start at 3 s, and of arrivals since D = 1 s."""
    whole = lb.System(5.0, 2.0, lb.Deterministic(1.0), lb.Logit(1.0), num_servers=1)
    found = lb.fluid.sensitivity(whole, last_queue, [1.0])
    left, late = np.exp(-6), np.exp(-4)
    # A constant inflow is a polynomial: rounding.
    np.testing.assert_allclose(found.value, 2.5 * (1 - late) + left, rtol=1e-12)
    wanted = {
        "arrival_rate": (1 - late) / 2,
        "service_rate": -1.25 * (1 - late) + 5 * late - 3 * left,
        "delay.mean": -5 * late,
        "routing.sensitivity": 0,
        "initial[0]": left,
    }
    table = found.to_pandas()
    assert list(table.index) == list(wanted)
    assert list(table.columns) == ["parameter", "unit", "derivative", "elasticity"]
    np.testing.assert_allclose(table["derivative"], list(wanted.values()), rtol=1e-11)
    np.testing.assert_allclose(
        table["elasticity"],
        table["derivative"] * table["parameter"] / float(found.value),
        rtol=1e-14,
    )
    assert table.loc["arrival_rate", "unit"] == "1/s"
    assert found.observation.name == "last_queue"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"horizon": 0.0}, "`horizon` must be positive and finite, got 0.0 s."),
        ({"tolerance": -0.1}, "`tolerance` must be positive and finite, got -0.1."),
        ({"level": 1.0}, "`tolerance` or `level` must be given, and not both, got 0.05 and 1.0."),
        ({"tolerance": None}, "`tolerance` or `level` must be given, and not both, got None and"),
        ({"panels": 0}, "`panels` must be an integer of at least 1, got 0."),
        ({"initial": [1.0]}, "`initial` must have shape (2,), got shape (1,)."),
        ({"method": "steps"}, "`method` must be another than 'steps' but for a deterministic"),
        ({"observable": 3.0}, "`observable` must map (system, initial) to a number, got 3.0."),
        ({"observable": lambda system, _: system.delay}, "`observable` must be a number, got"),
        ({"system": 3.0}, "`system` must be of type System, got 3.0."),
        (
            {"system": lb.System(1.0, 1.0, lb.NoDelay(), lb.Logit(1.0), 1), "initial": [1.0]},
            "`num_servers` must be at least 2 here, got 1.",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_bad_argument_is_named(change, complaint):
    given = {
        "system": system(CASES[0][0], lb.Erlang, 2),
        "observable": lb.fluid.settling_time,
        "initial": [0.0, 1.0],
        "horizon": HORIZON,
        "tolerance": 0.05,
    } | change
    if given["observable"] is not lb.fluid.settling_time:
        given = {name: given[name] for name in ("system", "observable", "initial")}
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        lb.fluid.sensitivity(**given)
