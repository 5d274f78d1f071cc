"""The linear-quadratic rule, and the Riccati equation behind it, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxlb as lb
from jaxlb import design
from jaxlb.design.riccati import best_feedback

from .cases import A, B, closed_loop, erlang, gains_of, noise, open_loop

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCALE = 100.0


@pytest.mark.parametrize(("stages", "case"), [(2, A), (10, B)])
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_feedback_is_that_of_scipy(stages, case, decay):
    matrix = open_loop(case, stages) + decay * np.eye(stages + 1)
    control, output = np.eye(stages + 1)[1], np.eye(stages + 1)[0]
    for price in (1e-4, 1e-2):
        found = jax.jit(best_feedback)(matrix, control, output, jnp.asarray(price))
        solution = scipy.linalg.solve_continuous_are(
            matrix, control[:, None], np.outer(output, output), np.array([[price]])
        )
        assert found.ok
        # Both lose up to four digits where the shift makes the open loop unstable.
        np.testing.assert_allclose(found.gains, control @ solution / price, rtol=1e-11)


def test_a_mode_that_feedback_does_not_reach_is_flagged():
    matrix = jnp.diag(jnp.array([-1.0, 0.5]))
    found = best_feedback(matrix, jnp.array([1.0, 0.0]), jnp.ones(2), jnp.asarray(1.0))
    assert not found.ok


def variance_and_effort(case, stages, gains):
    covariance = scipy.linalg.solve_continuous_lyapunov(
        closed_loop(case, stages, gains), -noise(case, stages)
    )
    return covariance[0, 0], np.sqrt(SCALE * gains @ covariance @ gains)


# Gains of a prototype at a tenth of a switch's effort; its bound was met to 2e-5.
@pytest.mark.parametrize(
    ("case", "stages", "gains", "relative"),
    [
        (A, 2, [12.124802, 4.278306, 8.854283], 0.4454629),
        (B, 2, [6.448823, 1.730244, 4.723990], 0.7461660),
    ],
)
def test_effort_is_as_asked_and_variance_least(case, stages, gains, relative):
    system = erlang(case, stages, lb.Logit(1.0))
    rule = design.lqr(system, 0.1, SCALE)
    found = gains_of(system.with_routing(rule))
    np.testing.assert_allclose(found, gains, rtol=5e-5)
    variance, effort = variance_and_effort(case, stages, found)
    assert variance / (2 * case[0]) == pytest.approx(relative, rel=1e-5)
    assert effort == pytest.approx(0.1 * 4 * case[0] * SCALE / np.sqrt(2 * np.pi), rel=1e-9)
    assert effort == pytest.approx(0.1 * float(design.relay_effort(system, SCALE)), rel=1e-9)
    # Any other direction at the same effort is worse; a size that restores it is found by halves.
    for k in range(stages + 1):
        other = found * (1 + 0.05 * np.eye(stages + 1)[k])
        low, high = 0.5, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            too_much = variance_and_effort(case, stages, middle * other)[1] > effort
            low, high = (low, middle) if too_much else (middle, high)
        assert variance_and_effort(case, stages, low * other)[0] > variance


def test_roots_are_left_of_the_decay_asked_for():
    system = erlang(A, 2, lb.Logit(1.0))
    rates = [
        design.decay_rate(system.with_routing(design.lqr(system, 0.1, SCALE, decay)))
        for decay in (0.0, 3.0)
    ]
    # 2.3255 and 4.3213 by a prototype.
    np.testing.assert_allclose(rates, [2.32553, 4.32131], rtol=2e-5)


def test_derivatives_are_those_of_differences():
    def gain(values):
        effort, mean = values
        system = erlang((15.0, 1.0, mean), 2, lb.Logit(1.0))
        return design.lqr(system, effort, SCALE).sensitivity

    values, step = jnp.array([0.1, 1.0]), 1e-4
    slopes = jax.jit(jax.grad(gain))(values)
    gain = jax.jit(gain)
    for k in range(2):
        change = step * jnp.eye(2)[k]
        difference = (gain(values + change) - gain(values - change)) / (2 * step)
        # The differences themselves are off by the square of the step.
        assert float(slopes[k]) == pytest.approx(float(difference), rel=1e-5)


def test_a_decay_that_costs_more_than_the_effort_is_refused_and_flagged():
    system = erlang(A, 2, lb.Logit(1.0))
    with pytest.raises(ValueError, match=r"^`decay` must be such that its least effort, 4.08, is"):
        design.lqr(system, 0.01, 1.0, 5.0)
    found = jax.jit(jax.vmap(lambda decay: design.lqr(system, 0.01, 1.0, decay).sensitivity))(
        jnp.array([0.0, 5.0])
    )
    np.testing.assert_array_equal(jnp.isnan(found), [False, True])
    assert found[0] == pytest.approx(float(design.lqr(system, 0.01).sensitivity), rel=1e-12)


def test_wrong_arguments_are_named():
    system = erlang(A, 2, lb.Logit(1.0))
    for arguments, match in (
        ((1.0,), "`effort` must be below 1"),
        ((-0.1,), "`effort` must be positive"),
        ((0.1, 0.0), "`scale` must be positive"),
        ((0.1, 1.0, -1.0), "`decay` must be non-negative"),
    ):
        with pytest.raises(ValueError, match=f"^{match}"):
            design.lqr(system, *arguments)
    with pytest.raises(ValueError, match=r"^`delay` must have phases"):
        design.lqr(lb.System(15.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0)))
