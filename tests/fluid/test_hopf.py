"""The Hopf point's normal form, against eigenvectors, and the branch of cycles born there."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb
from jaxlb.fluid import limit_cycle

pytestmark = pytest.mark.usefixtures("quick_compilation")


def by_eigenvectors(arrival_rate, service_rate, delay, stages, weights):
    """c and dr / d log theta: the cubic term projected on the left eigenvector, for y' = A y + ...

    with y = (x, w_1, ..., w_L) and an inflow of -2 lambda tanh(theta s / 2), s = x + weights . w.
    """
    rule = lb.WeightedLogit(1.0, weights)
    system = lb.System(arrival_rate, service_rate, lb.Erlang(delay, stages), rule)
    theta = float(lb.stability.critical_sensitivity(system))
    rate = stages / delay
    matrix = np.diag(np.full(stages + 1, -rate)) + np.diag(np.full(stages, rate), -1)
    # Rows and columns w_1, ..., w_L, x.
    matrix[-1, -1] = -service_rate
    load, inflow = np.append(weights, 1.0), np.eye(stages + 1)[0]
    gain = -arrival_rate * theta * np.outer(inflow, load)
    values, right = np.linalg.eig(matrix + gain)
    at = np.argmax(np.real(values) + 1e-6 * np.imag(values))
    q = right[:, at] / (load @ right[:, at])
    left_values, left = np.linalg.eig((matrix + gain).T)
    p = left[:, np.argmin(abs(left_values - values[at]))]
    p = p / (p @ q)
    # -2 lambda tanh(theta s / 2) = -lambda theta s + lambda theta^3 s^3 / 12 - ...; in s^3 with
    # s = z e^(i omega t) + conj, the resonant term is 3 z |z|^2.
    coefficient = (p @ inflow) * arrival_rate * theta**3 / 12 * 3
    return coefficient, p @ gain @ q


@pytest.mark.parametrize(("stages", "weights"), [(5, [0.0] * 5), (3, [0.0, 0.1, 0.05])])
@pytest.mark.parametrize(("service_rate", "delay"), [(1.0, 1.0), (0.7, 1.6)])
def test_coefficient_is_the_projected_cubic_term(stages, weights, service_rate, delay):
    rule = lb.WeightedLogit(0.1, weights)
    system = lb.System(15.0, service_rate, lb.Erlang(delay, stages), rule)
    form = limit_cycle.hopf_normal_form(system)
    assert form.exists
    assert form.is_supercritical
    coefficient, speed = by_eigenvectors(15.0, service_rate, delay, stages, weights)
    # Eigenvectors of a matrix of condition 1e3 or so.
    np.testing.assert_allclose(form.first_lyapunov_coefficient, coefficient, rtol=1e-11)
    np.testing.assert_allclose(form.root_speed, speed, rtol=1e-11)


@pytest.mark.parametrize("stages", [2, 5, np.inf])
def test_coefficient_has_the_closed_form(stages):
    """-(theta^2 / 4) / (1 / (i omega + mu) + L / (i omega + gamma)); D for the last at infinity."""
    delay, service_rate = 1.5, 0.8
    law = lb.Deterministic(delay) if np.isinf(stages) else lb.Erlang(delay, stages)
    form = limit_cycle.hopf_normal_form(lb.System(15.0, service_rate, law, lb.Logit(1.0)))
    root = 1j * form.frequency
    passed = delay if np.isinf(stages) else stages / (root + stages / delay)
    wanted = -(form.sensitivity**2) / 4 / (1 / (root + service_rate) + passed)
    np.testing.assert_allclose(form.first_lyapunov_coefficient, wanted, rtol=1e-13)


def test_without_a_hopf_point_there_is_no_normal_form():
    form = limit_cycle.hopf_normal_form(lb.System(15.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0)))
    assert not form.exists
    assert not form.is_supercritical
    assert np.isnan(form.frequency)


def test_a_branch_is_born_at_the_hopf_point_and_ends_at_the_relay_limit():
    def system_of(theta):
        return lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(theta))

    branch = limit_cycle.continuation(system_of, [0.1, 0.5, 1.0, 10.0, 30.0])
    # Two stages: the critical gain is 9 where mu D = 1.
    np.testing.assert_allclose(branch.values, [0.1, 0.5, 9 / 15, 1, 10, 30], rtol=1e-13)
    np.testing.assert_array_equal(branch.is_hopf, [0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(branch.valid, [0, 0, 1, 1, 1, 1])
    # Another program's, by harmonic balance with up to 512 harmonics.
    amplitude = [0, 0, 0, 3.637615152396167, 4.346222479819598, 4.3521182056396235]
    period = [np.nan, np.nan, 2 * np.pi / np.sqrt(8),
              2.22755074035346, 2.2544206594305787, 2.2551061209964143]  # fmt: skip
    np.testing.assert_allclose(branch.amplitude, amplitude, rtol=1e-11)
    np.testing.assert_allclose(branch.period, period, rtol=1e-11)
    np.testing.assert_allclose(branch.multiplier[2:4], [1, 0.3469624256619773], rtol=1e-9)
    assert (abs(branch.multiplier[4:]) < 0.2).all()


def test_a_branch_along_the_delay_begins_and_ends_where_balance_is_marginal():
    def system_of(delay):
        return lb.System(15.0, 1.0, lb.Erlang(delay, 2), lb.Logit(0.7))

    branch = limit_cycle.continuation(system_of, jnp.array([0.2, 1.0, 3.0, 20.0]))
    window = lb.stability.critical_delay(system_of(1.0))
    np.testing.assert_allclose(branch.values[branch.is_hopf], window[:2], rtol=1e-12)
    np.testing.assert_array_equal(branch.valid, [0, 1, 1, 1, 1, 0])


def test_values_of_a_branch_must_increase():
    with pytest.raises(ValueError, match="`values` must be increasing, got"):
        limit_cycle.continuation(lambda _: pytest.fail("not called"), [1.0, 1.0])
