import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

imbalance = lb.model.imbalance

LOOP = np.array([[-2.0, 0.5, 0.7], [0.25, -3.0, 0.0], [1.0, 0.0, -1.5]])
DELAYS = {
    "none": lb.NoDelay(),
    "two stages": lb.Erlang(0.7, 2),
    "mixed stages": lb.MixedErlang(2.0, [0.25, 0.5, 0.25]),
    "phases": lb.PhaseType([0.5, 0.25, 0.25], LOOP),
}
WEIGHTS = np.array([1.0, 0.5, -0.2])

delays = pytest.mark.parametrize("name", DELAYS)


def system(delay, routing=None, num_servers=2):
    return lb.System(1.7, 0.6, delay, routing or lb.Logit(0.4), num_servers)


def weighted(delay):
    return lb.WeightedLogit(0.4, WEIGHTS[: delay.num_phases])


def plain(_):
    return lb.Logit(0.4)


rules = pytest.mark.parametrize("rule", [plain, weighted])


class OwnLogit(eqx.Module):
    """The paper's rule, but the package does not know it."""

    sensitivity: jax.Array

    def __call__(self, queue):
        return jax.nn.softmax(-self.sensitivity * queue)


class OwnWeightedLogit(eqx.Module):
    sensitivity: jax.Array
    weights: jax.Array

    def __call__(self, queue, in_transit):
        return jax.nn.softmax(-self.sensitivity * (queue + in_transit @ self.weights))


def test_difference_puts_service_first():
    jobs = jnp.array([[1.0, 2.0, 3.0], [0.5, 1.0, 0.0]])
    np.testing.assert_array_equal(imbalance.difference(jobs), [3.0, 0.5, 1.0])


@delays
@rules
def test_difference_system_is_the_difference_of_the_fluid_equations(name, rule):
    """(6)-(8) close: they need the difference of the state alone."""
    both = system(DELAYS[name], rule(DELAYS[name]))
    jobs = jnp.array(np.random.default_rng(1).uniform(0, 5, (2, DELAYS[name].num_phases + 1)))
    found = imbalance.drift(both, imbalance.difference(jobs))
    wanted = imbalance.difference(lb.model.dynamics.drift(both, jobs))
    # Differences of a few terms below 20/s.
    np.testing.assert_allclose(found, wanted, atol=2e-14)


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_matrix_is_that_of_equation_12(stages):
    found = imbalance.matrix(system(lb.Erlang(0.7, stages)))
    wanted = closed_forms.difference_matrix(1.7 * 0.4, 0.6, 0.7, stages)
    # One or two roundings; zeros are zeros.
    np.testing.assert_allclose(found, wanted, rtol=4e-16, atol=0)


@delays
@rules
def test_matrix_is_the_jacobian_of_the_difference_system_at_balance(name, rule):
    both = system(DELAYS[name], rule(DELAYS[name]))
    balance = jnp.zeros(DELAYS[name].num_phases + 1)
    jacobian = jax.jacfwd(lambda y: imbalance.drift(both, y))(balance)
    # Two roundings of rates below 4/s.
    np.testing.assert_allclose(imbalance.matrix(both), jacobian, rtol=4e-16, atol=1e-15)
    y = jnp.array(np.random.default_rng(2).uniform(-1, 1, DELAYS[name].num_phases + 1))
    # Sums of four terms below 4/s.
    np.testing.assert_allclose(imbalance.linearised_drift(both, y), jacobian @ y, atol=4e-15)


@delays
def test_matrix_holds_modes_of_the_whole_system(name):
    """Each eigenvalue of A_L is one of the Jacobian of (2)-(4) at balance, N - 1 times."""
    delay = DELAYS[name]
    whole = system(delay, weighted(delay), num_servers=3)
    balance = lb.model.equilibrium(whole)
    jacobian = jax.jacfwd(lambda jobs: lb.model.dynamics.drift(whole, jobs))(balance)
    flat = np.asarray(jacobian).reshape(balance.size, balance.size)
    spectrum = np.linalg.eigvals(flat)
    for root in np.linalg.eigvals(imbalance.matrix(whole)):
        # A root met twice is as accurate as the square root of rounding.
        assert np.sum(abs(spectrum - root) < 1e-6) == 2


@delays
def test_eigenvector_solves_the_eigenvalue_problem(name):
    delay = DELAYS[name]
    for rule in [lb.Logit(0.4), weighted(delay)]:
        both = system(delay, rule)
        matrix = np.asarray(imbalance.matrix(both))
        for root in np.linalg.eigvals(matrix):
            vector = imbalance.eigenvector(both, jnp.asarray(complex(root)))
            assert vector[0] == 1
            # The root is accurate to 1e-15 and the vector below 10.
            np.testing.assert_allclose(matrix @ vector, root * vector, atol=1e-13)


def test_eigenvector_is_equation_16():
    both = system(lb.Erlang(0.7, 5))
    root, stage, gain = 0.3 + 1.1j, 5 / 0.7, 1.7 * 0.4
    phases = np.arange(1, 6)
    wanted = np.append(1, -gain * stage ** (phases - 1) / (root + stage) ** phases)
    # A few roundings.
    np.testing.assert_allclose(imbalance.eigenvector(both, jnp.array(root)), wanted, rtol=3e-15)


@delays
def test_total_moves_by_itself_whatever_the_sensitivity(name):
    delay = DELAYS[name]
    jobs = jnp.array(np.random.default_rng(3).uniform(0, 5, (3, delay.num_phases + 1)))
    total = imbalance.total_drift(system(delay, num_servers=3), jobs.sum(axis=0))
    for theta in [0.0, 0.4, 1e6]:
        whole = system(delay, lb.Logit(theta), 3)
        # Sums of three terms below 40/s.
        summed = lb.model.dynamics.drift(whole, jobs).sum(axis=0)
        np.testing.assert_allclose(total, summed, atol=1e-13)
        np.testing.assert_array_equal(imbalance.total_drift(whole, jobs.sum(axis=0)), total)


@pytest.mark.parametrize(("name", "num_servers"), [("none", 2), ("two stages", 2), ("phases", 5)])
def test_rule_of_ones_own_is_linearised_like_the_rule_that_it_equals(name, num_servers):
    delay, theta = DELAYS[name], jnp.array(0.4)
    pairs = [
        (OwnLogit(theta), lb.Logit(0.4)),
        (OwnWeightedLogit(theta, weighted(delay).weights), weighted(delay)),
    ]
    for own, known in pairs:
        found = imbalance.matrix(system(delay, own, num_servers))
        # Shares are computed at balance and cancel: a few roundings of rates below 4/s.
        wanted = imbalance.matrix(system(delay, known, num_servers))
        np.testing.assert_allclose(found, wanted, atol=3e-15)


@delays
def test_characteristic_residual_is_the_characteristic_polynomial_of_the_matrix(name):
    """det(r I - A_L) = residual times det(r I - generator), with weights or without."""
    delay = DELAYS[name]
    for rule in [lb.Logit(0.4), weighted(delay), OwnLogit(jnp.array(0.4))]:
        both = system(delay, rule)
        matrix, generator = np.asarray(imbalance.matrix(both)), np.asarray(delay.generator)
        for r in [0.3 + 1.1j, -0.2 + 0.5j, 2 + 0j, -5j]:
            residual = lb.stability.characteristic_residual(both, jnp.array(r))
            phases = np.linalg.det(r * np.eye(len(generator)) - generator)
            wanted = np.linalg.det(r * np.eye(len(matrix)) - matrix)
            # Determinants of up to four rows: a few dozen roundings.
            np.testing.assert_allclose(residual * phases, wanted, rtol=1e-14)


def test_difference_system_asks_for_two_alike_servers_and_a_logit_rule():
    delay, y = DELAYS["two stages"], jnp.zeros(3)
    with pytest.raises(ValueError, match=r"^`num_servers` must be 2 here, got 3\."):
        imbalance.drift(system(delay, num_servers=3), y)
    with pytest.raises(ValueError, match=r"^`routing` must be a logit rule here, got QueueRule\."):
        imbalance.drift(system(delay, OwnLogit(jnp.array(0.4))), y)
    with pytest.raises(ValueError, match=r"^`num_servers` must be at least 2 here, got 1\."):
        imbalance.matrix(system(delay, num_servers=1))
    unequal = lb.System(1.7, [0.6, 0.7], delay, lb.Logit(0.4))
    message = r"^`service_rate` must be the same for every server, got \[0\.6 0\.7\] 1/s\."
    for use in [imbalance.matrix, lambda s: imbalance.drift(s, y), lb.model.equilibrium]:
        with pytest.raises(ValueError, match=message):
            use(unequal)
    # Under `jit` there is no number to raise on.
    assert np.isnan(jax.jit(imbalance.drift)(unequal, jnp.ones(3))).any()
