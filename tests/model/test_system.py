import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb


def test_system_has_two_servers_unless_told_otherwise():
    delay, rule = lb.Erlang(1.0, 3), lb.Logit(1.0)
    assert lb.System(1.0, 1.0, delay, rule).num_servers == 2
    system = lb.System(arrival_rate=2.0, service_rate=0.5, delay=delay, routing=rule, num_servers=7)
    assert (system.num_servers, system.num_phases, system.offered_load) == (7, 3, 4)


def test_one_service_rate_holds_for_every_server_and_a_vector_for_each():
    delay, rule = lb.NoDelay(), lb.Logit(1.0)
    np.testing.assert_array_equal(lb.System(1.0, 2.0, delay, rule, 3).service_rates, [2, 2, 2])
    system = lb.System(3.0, [1.0, 2.0, 4.0], delay, rule, 3)
    np.testing.assert_array_equal(system.service_rates, [1, 2, 4])
    np.testing.assert_array_equal(system.offered_load, [3, 1.5, 0.75])


def test_delay_without_phases_counts_none():
    for delay in [lb.NoDelay(), lb.Deterministic(1.0)]:
        assert lb.System(1.0, 1.0, delay, lb.Logit(1.0)).num_phases == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda system: lb.model.dynamics.drift(system, jnp.ones((2, 1))),
        lambda system: lb.fluid.solve(system, [1.0]),
        lambda system: lb.fluid.solve_imbalance(system, [1.0], 1.0),
        lb.model.imbalance.matrix,
    ],
    ids=["drift", "solve", "solve_imbalance", "matrix"],
)
def test_what_needs_phases_says_so(use):
    system = lb.System(1.0, 1.0, lb.moving_average(1.0), lb.Logit(1.0))
    with pytest.raises(ValueError, match=r"^`delay` must have phases for .*, got TransformDelay"):
        use(system)


@pytest.mark.parametrize(
    "use",
    [
        lambda system: lb.fluid.solve(system, [1.0]),
        lambda system: lb.fluid.peak_imbalance(system, horizon=1.0),
        lb.fluid.limit_cycle.find,
        lb.stability.rightmost_root,
        lambda system: lb.stochastic.simulate(system, jax.random.key(0), [1.0]),
    ],
    ids=["solve", "observable", "cycle", "root", "simulate"],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_batch_of_systems_is_refused_by_functions_of_one(use):
    batch = jax.vmap(lambda d: lb.System(15.0, 1.0, lb.Erlang(d, 2), lb.Logit(1.0)))(jnp.ones(3))
    with pytest.raises(
        ValueError, match=r"^`system` must be one system, got a batch of shape \(3,"
    ):
        use(batch)


def test_systems_built_under_vmap_are_a_batch():
    rates, means = np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 2.0])

    def build(rate, mean):
        delay = lb.MixedErlang(mean, jnp.stack([rate, 4 - rate]) / 4)
        return lb.System(rate, 2 * rate, delay, lb.WeightedLogit(rate, jnp.ones(2)))

    batch = jax.vmap(build)(rates, means)
    assert batch.arrival_rate.shape == batch.delay.mean.shape == (3,)
    jobs = jnp.arange(6.0).reshape(2, 3)
    together = jax.vmap(lambda system: lb.model.dynamics.drift(system, jobs))(batch)
    for rate, mean, drift in zip(rates, means, together, strict=True):
        # The same operations in another order: a few roundings.
        alone = lb.model.dynamics.drift(build(rate, mean), jobs)
        np.testing.assert_allclose(drift, alone, rtol=1e-14)


def test_system_is_a_pytree_of_its_numbers():
    system = lb.System(1.0, [2.0, 3.0], lb.Erlang(4.0, 5), lb.Logit(6.0))
    leaves, structure = jax.tree.flatten(system)
    assert [np.asarray(leaf).tolist() for leaf in leaves] == [1, [2, 3], 4, 6]
    doubled = jax.tree.unflatten(structure, [2 * leaf for leaf in leaves])
    assert (doubled.delay.mean, doubled.routing.sensitivity, doubled.delay.stages) == (8, 12, 5)
    gradient = jax.grad(lambda system: system.offered_load @ jnp.array([1.0, 10.0]))(system)
    # 1/2 + 10/3, and -1/4 and -10/9 in the service rates: two roundings.
    np.testing.assert_allclose(gradient.arrival_rate, 1 / 2 + 10 / 3, rtol=4e-16)
    np.testing.assert_allclose(gradient.service_rate, [-1 / 4, -10 / 9], rtol=4e-16)
