import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

NOBODY = jnp.zeros((2, 0))


def shares(rule, queue, in_transit=None):
    """As the dynamics ask for them, whatever arguments the rule takes."""
    queue = jnp.asarray(queue)
    in_transit = jnp.zeros((len(queue), 1)) if in_transit is None else in_transit
    phases = in_transit.shape[1]
    delay = lb.Erlang(1.0, phases) if phases else lb.NoDelay()
    system = lb.System(1.0, 1.0, delay, rule, num_servers=len(queue))
    return lb.model.dynamics.shares(system, jnp.concatenate([in_transit, queue[:, None]], axis=1))


def test_difference_of_two_shares_is_minus_tanh_of_half_theta_x():
    """Identity (5), over ten orders of magnitude of theta and x and on both sides."""
    rng = np.random.default_rng(1)
    theta, size = 10 ** rng.uniform(-5, 5, (2, 2000))
    x = rng.choice([-1, 1], 2000) * size
    queue = np.stack([np.maximum(x, 0), np.maximum(-x, 0)], axis=1)
    both = jax.vmap(lambda theta, queue: lb.Logit(theta)(queue, NOBODY))(theta, queue)
    # Shares near one half, where 1.1e-16 is a unit; a few of them.
    np.testing.assert_allclose(both[:, 0] - both[:, 1], -np.tanh(theta * x / 2), atol=4e-16)
    np.testing.assert_allclose(both.sum(axis=1), 1, rtol=3e-16)


def test_closed_form_of_the_difference_is_accurate_relative_to_itself():
    y = 10.0 ** np.arange(-300, 3, 20)[:, None]
    difference = jax.vmap(lambda y: lb.model.imbalance.share_difference(lb.Logit(0.3), y))(y)
    # Two roundings.
    np.testing.assert_allclose(difference, -np.tanh(0.15 * y[:, 0]), rtol=4e-16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", [lb.Logit, lambda theta: lb.WeightedLogit(theta, theta[None])])
def test_no_sensitivity_overflows(dtype, rule):
    theta = np.array([1, 1e4, 1e8], dtype)
    queue = np.array([[0, 1e9, 1e9], [1e9, 1e9, 1e9], [1e9, 0, 5]], dtype)
    in_transit = jnp.zeros((3, 1), dtype)

    def rule_at(theta, queue):
        return rule(theta)(queue, in_transit)

    both = jax.vmap(jax.vmap(rule_at, (0, None)), (None, 0))
    share = both(theta, queue)
    assert share.dtype == dtype
    # Losers get exp(-5) at most, or nothing; one rounding of the whole.
    wanted = np.stack([np.stack([closed_forms.logit(t, q) for t in theta]) for q in queue])
    np.testing.assert_allclose(share, wanted, rtol=10 * np.finfo(dtype).eps)
    slope = jax.vmap(jax.vmap(jax.jacrev(rule_at, (0, 1)), (0, None)), (None, 0))(theta, queue)
    assert all(np.all(np.isfinite(leaf)) for leaf in slope)


def test_close_queues_are_told_apart_however_large_they_are():
    """In float32, theta times 1e7 jobs has no digits left for the one job that differs."""
    queue = jnp.array([1e7, 1e7 + 1], jnp.float32)
    share = lb.Logit(np.float32(0.7))(queue, NOBODY)
    # One rounding in float32.
    np.testing.assert_allclose(share, closed_forms.logit(0.7, [0.0, 1.0]), rtol=2e-7)


def test_zero_sensitivity_routes_uniformly_whatever_the_queues():
    for rule in [lb.Logit(0.0), lb.WeightedLogit(0.0, [2.0])]:
        np.testing.assert_array_equal(shares(rule, [0.0, 3.0, 1e9, 7.0]), [0.25] * 4)


def test_large_sensitivity_joins_the_shortest_queue_and_splits_ties():
    np.testing.assert_array_equal(shares(lb.Logit(1e8), [2.0, 1.0, 1.5]), [0, 1, 0])
    np.testing.assert_array_equal(shares(lb.Logit(1e8), [2.0, 1.0, 1.0]), [0, 0.5, 0.5])


def test_shares_are_carried_along_when_servers_are_relabelled():
    rng = np.random.default_rng(2)
    queue, in_transit = jnp.array(rng.uniform(0, 3, 5)), jnp.array(rng.uniform(0, 3, (5, 3)))
    order = rng.permutation(5)
    for rule in [lb.Logit(0.7), lb.WeightedLogit(0.7, [1.0, 0.5, -0.2])]:
        share = rule(queue, in_transit)
        # The sum of odds may be added up in another order: one rounding.
        np.testing.assert_allclose(rule(queue[order], in_transit[order]), share[order], rtol=4e-16)


def test_weights_count_jobs_in_transit():
    rng = np.random.default_rng(3)
    queue, in_transit = jnp.array(rng.uniform(0, 3, 4)), jnp.array(rng.uniform(0, 3, (4, 3)))
    weights = np.array([1.0, 0.5, -0.2])
    found = lb.WeightedLogit(0.7, weights)(queue, in_transit)
    # A few roundings.
    np.testing.assert_allclose(
        found, closed_forms.logit(0.7, queue + in_transit @ weights), rtol=1e-15
    )
    np.testing.assert_array_equal(
        lb.WeightedLogit(0.7, np.zeros(3))(queue, in_transit), lb.Logit(0.7)(queue, in_transit)
    )


def test_sensitivity_and_weights_may_be_traced_and_batched():
    """The derivative of share i in theta is share i times mean load less load i."""
    rng = np.random.default_rng(4)
    queue, in_transit = jnp.array(rng.uniform(0, 3, 3)), jnp.array(rng.uniform(0, 3, (3, 2)))
    theta, weights = np.array([0.2, 1.0]), rng.uniform(-1, 1, (2, 2))

    def share(theta, weights):
        return lb.WeightedLogit(theta, weights)(queue, in_transit)

    slopes = jax.jit(jax.vmap(jax.jacrev(share, (0, 1))))(theta, weights)
    for i in range(2):
        load = queue + in_transit @ weights[i]
        p = closed_forms.logit(theta[i], load)
        away = (p @ load - load) * p
        transit = (p @ in_transit - in_transit) * p[:, None] * theta[i]
        # A few roundings of numbers of order one.
        np.testing.assert_allclose(slopes[0][i], away, atol=2e-15)
        np.testing.assert_allclose(slopes[1][i], transit, atol=2e-15)


def softmax(queue):
    return jax.nn.softmax(-0.7 * queue)


def softmax_of_all(queue, in_transit):
    return jax.nn.softmax(-0.7 * (queue + in_transit @ jnp.array([1.0, 0.5])))


class OwnRule(eqx.Module):
    """No base class of the package's, and more arguments that all have defaults."""

    sensitivity: float

    def __call__(self, queue, key=None, *, state=None):
        return jax.nn.softmax(-self.sensitivity * queue)


class OwnRouting(lb.AbstractRouting):
    def __call__(self, queue, in_transit):
        return softmax_of_all(queue, in_transit)


def keyword_in_transit(queue, in_transit=None):
    assert in_transit is not None
    return softmax_of_all(queue, in_transit)


def test_rules_of_ones_own_see_the_queue_and_if_they_ask_jobs_in_transit():
    rng = np.random.default_rng(5)
    queue, in_transit = jnp.array(rng.uniform(0, 3, 3)), jnp.array(rng.uniform(0, 3, (3, 2)))
    for rule in [softmax, OwnRule(0.7), eqx.nn.Lambda(softmax)]:
        # Same formula, maybe another order of operations: a few roundings.
        np.testing.assert_allclose(
            shares(rule, queue, in_transit), closed_forms.logit(0.7, queue), rtol=1e-15
        )
    load = queue + in_transit @ jnp.array([1.0, 0.5])
    for rule in [softmax_of_all, OwnRouting(), keyword_in_transit]:
        np.testing.assert_allclose(
            shares(rule, queue, in_transit), closed_forms.logit(0.7, load), rtol=1e-15
        )


def test_neural_network_is_a_rule_with_gradients_in_its_weights():
    layers = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0)), eqx.nn.Lambda(jax.nn.softmax)
    network = eqx.nn.Sequential(layers)

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(network):
        system = lb.System(1.0, 1.0, lb.Erlang(1.0, 1), network)
        return lb.model.dynamics.drift(system, jnp.array([[0.0, 1.0], [0.5, 2.0]]))[0, 0]

    np.testing.assert_array_equal(shares(network, [1.0, 2.0]), network(jnp.array([1.0, 2.0])))
    leaves = jax.tree.leaves(eqx.filter(gradient(network), eqx.is_array))
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
    assert any(np.any(leaf) for leaf in leaves)
