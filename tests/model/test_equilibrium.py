import jax
import numpy as np
import pytest

import jaxlb as lb

DELAYS = {
    "none": lb.NoDelay(),
    "Erlang": lb.Erlang(0.7, 3),
    "mixed Erlang": lb.MixedErlang(2.0, [0.25, 0.5, 0.25]),
    "phases": lb.PhaseType([0.5, 0.5], [[-2.0, 1.5], [0.5, -1.0]]),
    "fit": lb.from_mean_cv(1.5, 0.4),
}


@pytest.mark.parametrize("name", DELAYS)
def test_equilibrium_is_at_rest(name):
    whole = lb.System(1.7, 0.6, DELAYS[name], lb.Logit(0.4), num_servers=5)
    balance = lb.fluid.equilibrium(whole)
    # Flows of 1.7/s in and out of every compartment.
    np.testing.assert_allclose(lb.model.dynamics.drift(whole, balance), 0, atol=3e-15)
    # Little's law; a dozen roundings.
    np.testing.assert_allclose(balance.sum(axis=1), 1.7 * (DELAYS[name].mean + 1 / 0.6), rtol=2e-15)


def test_equilibrium_of_the_paper_is_lambda_d_over_l_and_lambda_over_mu():
    balance = lb.fluid.equilibrium(lb.System(15.0, 0.5, lb.Erlang(2.0, 4), lb.Logit(1.0)))
    np.testing.assert_array_equal(balance, [[7.5, 7.5, 7.5, 7.5, 30.0]] * 2)


def test_equilibrium_of_a_delay_without_phases_is_the_service_alone():
    balance = lb.fluid.equilibrium(lb.System(3.0, 2.0, lb.Deterministic(1.0), lb.Logit(1.0), 3))
    np.testing.assert_array_equal(balance, [[1.5]] * 3)


def test_unequal_servers_have_no_closed_form_here():
    unequal = lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 1), lb.Logit(1.0))
    message = r"^`service_rate` must be the same for every server, got \[1\. 2\.\] 1/s\."
    with pytest.raises(ValueError, match=message):
        lb.fluid.equilibrium(unequal)
    # Under `jit` there is no number to raise on.
    assert np.isnan(jax.jit(lb.fluid.equilibrium)(unequal)[:, -1]).all()


def test_equal_rates_given_one_by_one_are_equal_servers():
    alike = lb.System(3.0, [2.0, 2.0], lb.Erlang(1.0, 1), lb.Logit(1.0))
    np.testing.assert_array_equal(lb.fluid.equilibrium(alike), [[3.0, 1.5]] * 2)
