"""Derivatives of the paths of Gaussian leaps, against master equations and coupled differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxlb as lb
from jaxlb.stochastic import paths, pathwise

pytestmark = pytest.mark.usefixtures("quick_compilation")

# E[x^2] / 16 at time 2 of lambda 2, mu 1, D 1, theta 1, L 1, scale 4 from (0, 4), in lambda, mu, D
# and theta: central differences of the master equation.
SYSTEM = lb.System(2.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
TRUTH = np.array([0.188775, -0.184742, -0.092272, -0.052175])


def squared_imbalance(jobs):
    return ((jobs[0, -1] - jobs[1, -1]) / 4) ** 2


def part_of_a_hundred(jobs):
    return (jobs[0, -1] - jobs[1, -1]) / 100


def gradient(system=SYSTEM, seed=0, time=2.0, scale=4.0, replicas=40_000, **options):
    options = {"initial": jnp.array([0, 4]), "step_size": 0.125} | options
    observable = options.pop("observable", squared_imbalance)
    return lb.stochastic.expectation_gradient(
        system, observable, jr.key(seed), time, scale, replicas, **options
    )


def leaves(tree):
    return np.array(jax.tree.leaves(tree))


def test_the_bias_is_below_a_twentieth_where_counts_are_not_few():
    """5 % for the bias and 4 standard errors: one more than that once in 16 000 seeds."""
    found = gradient()
    error = leaves(found.standard_error)
    assert np.all(np.abs(leaves(found.estimate) - TRUTH) < 0.05 * np.abs(TRUTH) + 4 * error)
    # In theta the noise is the largest part of what there is.
    assert np.all(error < 0.04 * np.abs(TRUTH))
    assert int(found.valid) == 40_000


def test_standard_errors_are_the_spread_over_keys():
    """60 keys: the spread is known to 9 %; 4 of that."""
    many = [gradient(seed=seed, replicas=200, time=1.0) for seed in range(60)]
    spread = np.std([leaves(found.estimate) for found in many], axis=0, ddof=1)
    stated = np.mean([leaves(found.standard_error) for found in many], axis=0)
    assert np.all(np.abs(spread / stated - 1) < 0.37)


def test_replicas_do_not_depend_on_how_many_are_done_at_once(monkeypatch):
    one = gradient(replicas=200)
    monkeypatch.setattr(paths, "CPU_LANES", 128)
    np.testing.assert_allclose(
        leaves(gradient(replicas=200).estimate), leaves(one.estimate), rtol=1e-12
    )


class Network(eqx.Module):
    """A rule of 42 numbers; it fails where both queues are long, if it is `fragile`."""

    layers: eqx.nn.MLP
    fragile: jax.Array

    def __call__(self, queue):
        fails = self.fragile & (queue.min() > 1.5)
        return jax.nn.softmax(self.layers(jnp.where(fails, jnp.nan, queue)))


LAYERS = eqx.nn.MLP(2, 2, 8, 1, key=jr.key(3))
# Of one program, since an array says which.
SOUND, FRAGILE = (Network(LAYERS, jnp.array(fragile)) for fragile in (False, True))


@pytest.mark.parametrize(
    ("delay", "rule", "observable"),
    [
        (lb.Erlang(1.0, 8), lb.Logit(1.0), part_of_a_hundred),
        (lb.Erlang(1.0, 2), SOUND, squared_imbalance),
    ],
    ids=["ring", "network"],
)
def test_reverse_and_forward_mode_agree(monkeypatch, delay, rule, observable):
    """The same paths, summed in another order; errors from 64 groups are known to 9 %."""
    system = lb.System(2.0, 1.0, delay, rule)
    found = []
    for few in (0, 1000):
        monkeypatch.setattr(pathwise, "FEW", few)
        found.append(gradient(system, replicas=2000, step_size=0.25, observable=observable))
    reverse, forward = found
    for one, other in zip(*(jax.tree.leaves(part.estimate) for part in found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(reverse.value, forward.value, rtol=1e-12)
    pairs = zip(*(jax.tree.leaves(part.standard_error) for part in found), strict=True)
    for one, other in pairs:
        assert np.all(np.abs(one / np.where(other > 0, other, 1) - 1)[other > 0] < 0.45)


def test_in_reverse_a_path_that_fails_spares_the_others_of_its_group():
    """The rule is NaN, and so is its slope, on some paths of every group."""
    system = lb.System(2.0, 1.0, lb.Erlang(1.0, 2), FRAGILE)
    found = gradient(system, replicas=2000, step_size=0.25)
    assert 0.2 < int(found.valid) / 2000 < 0.98
    for part in jax.tree.leaves((found.estimate, found.standard_error)):
        assert np.isfinite(part).all()


def test_a_network_learns_in_reverse_what_a_difference_says():
    """Along the gradient, by paths of the same random numbers: 1 % for the curvature."""
    system = lb.System(2.0, 1.0, lb.Erlang(1.0, 2), SOUND)
    slope = gradient(system, replicas=2000).estimate
    norm = sum(jnp.sum(part**2) for part in jax.tree.leaves(slope))

    def value(step):
        moved = jax.tree.map(lambda leaf, part: leaf + step * part, numbers, slope)
        return gradient(eqx.combine(moved, rest), replicas=2000).value

    numbers, rest = eqx.partition(system, eqx.is_inexact_array)
    difference = (value(0.01) - value(-0.01)) / 0.02
    np.testing.assert_allclose(norm, difference, rtol=0.01)


def test_without_a_step_one_is_chosen():
    found = gradient(step_size=None)
    error = leaves(found.standard_error)
    assert np.all(np.abs(leaves(found.estimate) - TRUTH) < 0.05 * np.abs(TRUTH) + 4 * error)


@pytest.mark.parametrize(("stages", "theta"), [(2, 0.0), (2, 0.05), (8, 0.0)])
def test_the_step_chosen_serves_a_rule_that_hardly_looks(stages, theta):
    """Its paths have no error whatever the step, its slope has: at a large scale that of the fluid
    limit, here within 1 % of it and 5 standard errors."""
    system = lb.System(5.0, 1.0, lb.Erlang(1.0, stages), lb.Logit(theta))
    found = lb.stochastic.expectation_gradient(
        system, part_of_a_hundred, jr.key(3), 2.0, 100.0, 2000, initial=jnp.array([0, 100])
    )

    def limit(theta):
        moved = eqx.tree_at(lambda system: system.routing.sensitivity, system, jnp.asarray(theta))
        return part_of_a_hundred(100 * lb.fluid.solve(moved, [2.0]).jobs[0])

    # Of second order in a small step, and one-sided, as no sensitivity is negative.
    step = 1e-3
    slope = (4 * limit(theta + step) - limit(theta + 2 * step) - 3 * limit(theta)) / (2 * step)
    error = 5 * found.standard_error.routing.sensitivity + 0.01 * abs(slope)
    assert abs(found.estimate.routing.sensitivity - slope) < error


def test_derivatives_in_the_weights_of_a_rule_are_those_of_coupled_differences():
    system = lb.System(2.0, 1.0, lb.Erlang(1.0, 2), lb.WeightedLogit(1.0, [0.5, 0.2]))
    found = gradient(system, replicas=4000)
    other = gradient(system, replicas=4000, method="coupled", step_size=None)
    assert found.estimate.routing.weights.shape == (2,)
    error = np.hypot(
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found.standard_error)]),
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(other.standard_error)]),
    )
    one, two = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part.estimate)])
        for part in (found, other)
    )
    assert np.all(np.abs(one - two) < 4.5 * error + 0.05 * np.abs(two))


def test_a_path_whose_rule_fails_is_left_out_and_counted():
    system = lb.System(2.0, 1.0, lb.Erlang(1.0, 1), lambda queue: jnp.array([0.5, 0.4]) + 0 * queue)
    found = gradient(system, replicas=10)
    assert int(found.valid) == 0
    assert np.isnan(leaves(found.estimate)).all()


def test_at_time_zero_nothing_depends_on_anything():
    found = gradient(time=0.0, replicas=200)
    np.testing.assert_array_equal(leaves(found.estimate), 0)
    assert float(found.value) == 1
