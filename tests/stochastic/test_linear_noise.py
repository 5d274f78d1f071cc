"""Stationary covariance by linear noise: closed forms, other solvers, points of rest, flags."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import mpmath as mp
import numpy as np
import pytest
from scipy import linalg

import jaxlb as lb
from jaxlb.stochastic import one_stage_variance, stationary_covariance, two_stage_variance

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")

CRITICAL = {2: 9.0, 5: 3.5602625753532817, 10: 2.806002436819856, 50: 2.3577423380239764}
HYPER = lb.PhaseType([0.3, 0.7], [[-4.0, 1.0], [0.5, -0.9]])
SKIPPING = lb.MixedErlang(1.3, [0.2, 0.0, 0.5, 0.3])


def system(gain, stages=2, servers=2):
    return lb.System(15.0, 1.0, lb.Erlang(1.0, stages), lb.Logit(gain / 15.0), servers)


@eqx.filter_jit
def queue_difference(whole, jobs=None):
    """Variance of Q_1 - Q_2 per unit of scale."""
    queue = stationary_covariance(whole, jobs).queue
    return queue[0, 0] + queue[1, 1] - 2 * queue[0, 1]


@pytest.mark.parametrize("servers", [2, 5])
@pytest.mark.parametrize("stages", [1, 2, 5, 50])
def test_variance_of_the_imbalance_is_the_integral_of_its_square(stages, servers):
    gain = 0.9 * CRITICAL.get(stages, 20.0)
    wanted = closed_forms.queue_variance(15.0, 1.0, gain, 1.0, stages)
    # Eigenvalues 30 times nearer to the axis than the rates, and a difference of counts.
    np.testing.assert_allclose(
        queue_difference(system(gain, stages, servers)), float(wanted), rtol=1e-12
    )


@pytest.mark.parametrize("part", [0.3, 0.99, 0.9999])
@pytest.mark.parametrize(("stages", "formula"), [(1, one_stage_variance), (2, two_stage_variance)])
def test_closed_forms_are_the_integral_of_the_square(stages, formula, part):
    for arrival_rate, service_rate, mean in ((15.0, 1.0, 1.0), (0.7, 3.0, 0.2)):
        stage = stages / mean
        critical = 2 * service_rate**2 / stage + 4 * service_rate + 2 * stage
        gain = part * (critical if stages == 2 else 40.0)
        rule = lb.Logit(gain / arrival_rate)
        whole = lb.System(arrival_rate, service_rate, lb.Erlang(mean, stages), rule)
        gain = float(whole.arrival_rate * rule.sensitivity)
        wanted = closed_forms.queue_variance(arrival_rate, service_rate, gain, mean, stages)
        # Rounding over the distance to the Hopf point.
        np.testing.assert_allclose(formula(whole), float(wanted), rtol=2e-15 / (1 - part))


def test_figures_of_the_paper():
    assert one_stage_variance(system(15.0, 1)) == pytest.approx(15.9375, rel=1e-14)
    assert two_stage_variance(system(1.5, 2)) == pytest.approx(0.8 * 30, rel=1e-14)


@pytest.mark.parametrize(
    "delay",
    [*(lb.Erlang(1.3, stages) for stages in (1, 2, 10, 50)), SKIPPING, HYPER, lb.NoDelay()],
    ids=lambda delay: type(delay).__name__ + str(delay.num_phases),
)
def test_counting_all_jobs_makes_the_variance_independent_of_the_law(delay):
    for theta in (0.1, 10.0):
        rule = lb.WeightedLogit(theta, jnp.ones(delay.num_phases))
        whole = lb.System(4.0, 0.8, delay, rule, 3)
        wanted = closed_forms.counting_all_variance(4.0, 0.8, 4.0 * theta, float(delay.mean))
        np.testing.assert_allclose(queue_difference(whole), float(wanted), rtol=1e-12)


@pytest.mark.parametrize("delay", [lb.Erlang(1.0, 3), HYPER, lb.NoDelay()])
def test_counts_are_independent_and_poisson_without_feedback(delay):
    whole = lb.System(4.0, 0.8, delay, lb.Logit(0.0), 3)
    found = stationary_covariance(whole)
    assert found.valid
    size = 3 * (delay.num_phases + 1)
    covariance = found.covariance.reshape(size, size)
    wanted = np.diag(lb.model.equilibrium(whole).ravel())
    np.testing.assert_allclose(covariance, wanted, atol=1e-13)


def by_hand(arrival_rate, service_rates, delay, sensitivity, jobs):
    """Covariance at a point by SciPy, from the drift of `closed_forms` and rates written out."""
    initial, generator = np.asarray(delay.initial), np.asarray(delay.generator)
    servers, compartments = jobs.shape
    size, leave = jobs.size, -generator.sum(axis=1)

    def drift(flat):
        given = arrival_rate, service_rates, initial, generator, sensitivity
        return closed_forms.phase_type_drift(*given, flat.reshape(jobs.shape)).ravel()

    step = 1e-5
    basis = step * np.eye(size)
    matrix = np.array([drift(jobs.ravel() + e) - drift(jobs.ravel() - e) for e in basis]).T
    noise = np.zeros((size, size))
    share = closed_forms.logit(sensitivity, jobs[:, -1])
    for i in range(servers):
        unit = np.eye(size)[i * compartments : (i + 1) * compartments]
        service = compartments - 1
        moves = [(unit[c], servers * arrival_rate * share[i] * initial[c]) for c in range(service)]
        moves += [(unit[service] - unit[c], leave[c] * jobs[i, c]) for c in range(service)]
        for c in range(service):
            for other in set(range(service)) - {c}:
                moves.append((unit[other] - unit[c], generator[c, other] * jobs[i, c]))
        moves.append((-unit[service], service_rates[i] * jobs[i, service]))
        noise += sum(rate * np.outer(move, move) for move, rate in moves)
    wanted = linalg.solve_continuous_lyapunov(matrix / 2 / step, -noise)
    return wanted.reshape(*jobs.shape, *jobs.shape)


@pytest.mark.parametrize("delay", [lb.Erlang(1.0, 3), HYPER, SKIPPING])
def test_covariance_of_all_compartments_is_that_of_scipy(delay):
    whole = lb.System(4.0, 0.8, delay, lb.Logit(0.2), 3)
    jobs = lb.model.equilibrium(whole)
    wanted = by_hand(4.0, np.full(3, 0.8), delay, 0.2, np.asarray(jobs))
    # Differences of the drift are right to 1e-10.
    by_modes, at_point = stationary_covariance(whole), stationary_covariance(whole, jobs)
    np.testing.assert_allclose(by_modes.covariance, wanted, atol=1e-7)
    np.testing.assert_allclose(by_modes.covariance, at_point.covariance, atol=1e-11)
    assert by_modes.valid
    assert at_point.valid


def test_servers_may_differ_at_a_point_of_rest():
    rates = np.array([0.5, 1.0, 2.0])
    whole = lb.System(4.0, rates, lb.Erlang(1.0, 2), lb.Logit(0.2), 3)
    jobs = lb.fluid.solve(whole, jnp.array([200.0])).jobs[-1]
    found = stationary_covariance(whole, jobs)
    assert found.valid
    wanted = by_hand(4.0, rates, whole.delay, 0.2, np.asarray(jobs))
    np.testing.assert_allclose(found.covariance, wanted, atol=1e-6)
    # The total is Poisson in each compartment of transit, whatever the rule.
    total = found.covariance.sum(axis=(0, 2))
    np.testing.assert_allclose(total[:2, :2], 12.0 * 0.5 * np.eye(2), atol=1e-6)
    away = stationary_covariance(whole, jobs + 0.1)
    assert not away.valid
    assert np.isnan(away.covariance).all()


def test_any_smooth_rule_may_route():
    def power(queue):
        odds = 1 / (1 + queue) ** 2
        return odds / odds.sum()

    whole = lb.System(15.0, 1.0, lb.Erlang(1.0, 5), power)
    # Its slope is that of a logit rule of this sensitivity, at 15 jobs in service.
    alike = system(15.0 * 2 / 16, 5)
    found, wanted = stationary_covariance(whole), stationary_covariance(alike)
    np.testing.assert_allclose(found.covariance, wanted.covariance, atol=1e-11)

    # A rule that does not share alike is not at rest where all servers are alike.
    def biased(queue):
        return jnp.array([0.6, 0.4]) + 0 * queue

    whole = lb.System(15.0, 1.0, lb.Erlang(1.0, 5), biased)
    assert not stationary_covariance(whole).valid


@pytest.mark.parametrize("stages", [2, 10])
def test_derivatives_near_the_hopf_point_are_those_of_the_closed_form(stages):
    point = [15.0, 1.0, 0.99 * CRITICAL[stages] / 15.0, 1.0]

    def variance(*numbers):
        arrival_rate, service_rate, theta, mean = numbers
        delay = lb.Erlang(mean, stages)
        return queue_difference(lb.System(arrival_rate, service_rate, delay, lb.Logit(theta)))

    found = jax.jit(jax.grad(variance, argnums=(0, 1, 2, 3)))(*point)

    def exactly(*numbers):
        arrival_rate, service_rate, theta, mean = numbers
        gain = arrival_rate * theta
        return closed_forms.queue_variance(arrival_rate, service_rate, gain, mean, stages)

    for number in range(4):
        order = tuple(int(k == number) for k in range(4))
        wanted = mp.diff(exactly, tuple(map(mp.mpf, point)), order)
        # The slope grows with the square of the variance, and so does the effect of rounding.
        np.testing.assert_allclose(found[number], float(wanted), rtol=2e-11)


def test_past_the_hopf_point_values_are_flagged_and_the_rest_is_unharmed():
    gains = jnp.array([5.0, 8.9999, 9.0001, 40.0])

    def members(gain):
        found = stationary_covariance(system(gain))
        return found.covariance, found.valid, two_stage_variance(system(gain))

    covariance, valid, closed = jax.vmap(members)(gains)
    assert valid.tolist() == [True, True, False, False]
    assert np.isfinite(covariance[:2]).all()
    assert np.isnan(covariance[2:]).all()
    assert np.isinf(closed[2:]).all()
    alone = members(gains[0])[0]
    np.testing.assert_allclose(covariance[0], alone, rtol=1e-13)

    def kept(gains):
        parts = jax.vmap(members)(gains)
        both = jnp.nansum(parts[0], axis=(1, 2, 3, 4)), jnp.where(jnp.isinf(parts[2]), 0, parts[2])
        return jnp.sum(both[0] + both[1])

    slopes = jax.grad(kept)(gains)
    assert (slopes[:2] > 0).all()
    assert slopes[2:].tolist() == [0.0, 0.0]


def test_numbers_out_of_their_domain_are_flagged():
    def member(arrival_rate):
        whole = lb.System(arrival_rate, 1.0, lb.Erlang(1.0, 2), lb.Logit(0.3))
        found = stationary_covariance(whole)
        return found.covariance[0, -1, 0, -1], found.valid

    values, valid = jax.vmap(member)(jnp.array([15.0, -1.0, jnp.nan]))
    assert valid.tolist() == [True, False, False]
    assert np.isnan(values).tolist() == [False, True, True]
    slopes = jax.vmap(jax.grad(lambda rate: member(rate)[0]))(jnp.array([15.0, -1.0, jnp.nan]))
    assert slopes[1:].tolist() == [0.0, 0.0]


def test_single_precision_is_kept():
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), system(8.1, 10))
    single = eqx.tree_at(lambda s: s.routing.sensitivity, single, jnp.float32(2.5 / 15))
    found = stationary_covariance(single)
    assert found.covariance.dtype == jnp.float32
    wanted = closed_forms.queue_variance(15.0, 1.0, 2.5, 1.0, 10)
    np.testing.assert_allclose(queue_difference(single), float(wanted), rtol=2e-4)


def test_bad_arguments_are_refused(monkeypatch):
    # Users run without the type checks of the test suite.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    whole = system(5.0)
    with pytest.raises(ValueError, match=r"^`system` must be of type System"):
        stationary_covariance(whole.delay)  # pyright: ignore
    with pytest.raises(ValueError, match=r"^`jobs` must have shape"):
        stationary_covariance(whole, jnp.ones(2))
    with pytest.raises(ValueError, match=r"^`delay` must have phases"):
        stationary_covariance(lb.System(1.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0)))
    with pytest.raises(ValueError, match=r"^`service_rate` must be the same"):
        stationary_covariance(lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 2), lb.Logit(1.0)))
    for formula, stages in ((one_stage_variance, 2), (two_stage_variance, 1)):
        with pytest.raises(ValueError, match=r"^`delay` must be Erlang"):
            formula(system(5.0, stages))
    weighted = lb.System(1.0, 1.0, lb.Erlang(1.0, 1), lb.WeightedLogit(1.0, [0.5]))
    with pytest.raises(ValueError, match=r"^`routing` must be Logit"):
        one_stage_variance(weighted)
    with pytest.raises(ValueError, match=r"^`num_servers` must be at least 2"):
        one_stage_variance(system(5.0, 1, 1))
