"""Weights by age."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import gammaln, softmax

import jaxlb as lb
from jaxlb import design

pytestmark = pytest.mark.usefixtures("quick_compilation")

INITIAL, GENERATOR = [0.5, 0.3, 0.2], [[-8.0, 1.0, 0.0], [0.0, -0.5, 0.2], [0.0, 0.0, -2.0]]
AGES = np.append(0, np.geomspace(1e-4, 100, 200))


def weight_of(delay, weights):
    system = lb.System(15.0, 1.0, delay, lb.WeightedLogit(0.3, weights))
    rule = design.by_age(system)
    np.testing.assert_array_equal(rule.sensitivity, 0.3)
    return rule.weight


@pytest.mark.parametrize(("stages", "tolerance"), [(1, 1e-15), (10, 2e-6), (50, 2e-5)])
def test_erlang_stages_follow_a_poisson_law_that_has_not_ended(stages, tolerance):
    weights = np.sin(np.arange(stages))
    weight = weight_of(lb.Erlang(1.0, stages), weights)
    passed = np.arange(stages)
    # Of the first age, zero, the logarithm is as good as minus infinity.
    logs = passed * np.log(np.maximum(stages * AGES[:, None], 1e-300)) - gammaln(passed + 1)
    # Cubic interpolation of a function of age that turns with the stages; as documented.
    found = jax.vmap(weight)(jnp.asarray(AGES))
    np.testing.assert_allclose(found, softmax(logs, axis=1) @ weights, atol=tolerance)
    # By then a job that has not arrived is in the last stage but for 50 / 10^9.
    np.testing.assert_allclose(weight(jnp.asarray(1e9)), weights[-1], atol=1e-2)


def test_other_phases_follow_their_generator():
    weights = np.array([1.2, 0.3, 0.8])
    weight = weight_of(lb.PhaseType(INITIAL, GENERATOR), weights)
    for age in (0.0, 1e-3, 0.07, 0.5, 3.0, 20.0):
        chances = INITIAL @ expm(age * np.array(GENERATOR))
        # Cubic interpolation, as documented.
        wanted = chances @ weights / chances.sum()
        np.testing.assert_allclose(weight(jnp.asarray(age)), wanted, atol=1e-7)


def test_the_weight_of_a_new_job_has_its_slope():
    weight = weight_of(lb.Erlang(2.0, 3), np.array([1.0, 0.4, 0.2]))
    # A stage is passed at rate 3 / 2: (0.4 - 1) 1.5.
    np.testing.assert_allclose(jax.grad(weight)(0.0), -0.9, rtol=1e-12)
    assert np.isfinite(jax.grad(weight)(1e12))


def test_single_precision_stays_single():
    single = jnp.float32
    routing = lb.WeightedLogit(single(0.3), jnp.array([1.0, 0.2], single))
    system = lb.System(single(15), single(1), lb.Erlang(single(1), 2), routing)
    weight = design.by_age(system).weight
    assert weight(single(0.5)).dtype == single
    # (1 + 0.2 t) / (1 + t) with t = 1; rounding of sums of some hundred steps.
    np.testing.assert_allclose(weight(single(0.5)), 0.6, atol=1e-5)


def test_a_bad_member_of_a_batch_spares_the_others():
    def at_one(mean):
        system = lb.System(15.0, 1.0, lb.Erlang(mean, 2), lb.WeightedLogit(0.3, [1.0, 0.2]))
        return design.by_age(system).weight(jnp.asarray(1.0))

    batch = jax.vmap(at_one)(jnp.array([1.0, -1.0, 2.0]))
    good = jax.vmap(at_one)(jnp.array([1.0, 1.0, 2.0]))
    assert np.isnan(batch[1])
    np.testing.assert_array_equal(batch[::2], good[::2])


def test_without_a_delay_no_job_has_an_age():
    system = lb.System(15.0, 1.0, lb.NoDelay(), lb.WeightedLogit(0.3, jnp.zeros(0)))
    with pytest.raises(ValueError, match=r"^`delay` must keep jobs in transit"):
        design.by_age(system)
