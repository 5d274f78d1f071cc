"""Trade-offs: against closed forms, other designs, and all that is near in gains."""

import functools
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_continuous_lyapunov

import jaxlb as lb
from jaxlb import design

from ..closed_forms import (
    difference_matrix,
    imbalance_noise,
    queue_variance,
    rightmost_erlang_root,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

SENSITIVITY = "routing.sensitivity"
WEIGHTS = "routing.weights"
SCALE = 100.0


def plain(stages=2, theta=0.1):
    return lb.System(15.0, 1.0, lb.Erlang(1.0, stages), lb.Logit(theta))


def counting():
    return lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.WeightedLogit(0.1, [0.5, 0.5]))


def near(system):
    """One, and the squared distance from (1, 2)."""
    return 1 + (system.routing.sensitivity - 1) ** 2 + (system.arrival_rate - 2) ** 2


def far(system):
    """From (0, 3)."""
    return 1 + system.routing.sensitivity**2 + (system.arrival_rate - 3) ** 2


def test_front_over_sensitivity_alone_is_the_curve_between_its_closed_forms():
    front = design.pareto(
        plain(), design.decay_rate, design.linear_noise_variance, {SENSITIVITY: (0, 1)}, points=7
    )
    gains = 15 * front.parameters[SENSITIVITY]
    # The ends to the digits of `tune`.
    np.testing.assert_allclose(gains[[0, -1]], [1 / 27, 1.5], rtol=1e-9)
    np.testing.assert_allclose(front.values[-1, 1], 0.8 * 30, rtol=1e-12)
    # Half of the digits at the double root.
    np.testing.assert_allclose(front.values[0, 0], 4 / 3, rtol=1e-7)
    assert (np.diff(gains) > 0).all()
    for gain, (rate, variance) in zip(gains[1:], front.values[1:], strict=True):
        root: Any = rightmost_erlang_root(1, gain, 1, 2)
        # Rounding; roots are single here.
        np.testing.assert_allclose(rate, -float(root.real), rtol=1e-12)
        truth = float(queue_variance(15, 1, gain, 1, 2))
        np.testing.assert_allclose(variance, truth, rtol=1e-12)
    assert front.names == ("decay_rate", "linear_noise_variance")
    assert front.units == ("1/s", "jobs²")
    assert front.more == (True, False)
    assert len(front.systems) == 7
    assert (np.diff(front.values, axis=0) < 0).all()
    # At even distances: none is twice the mean.
    steps = np.diff(front.values / np.ptp(front.values, axis=0), axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    assert lengths.max() < 2 * lengths.mean()


@pytest.fixture(scope="module")
def front_of_weights():
    """Rate against variance of all rules that count jobs in transit, at a tenth of all effort."""
    system = counting()
    effort = functools.partial(design.control_effort, scale=SCALE)
    return design.pareto(
        system,
        design.decay_rate,
        design.linear_noise_variance,
        {SENSITIVITY: (0, None), WEIGHTS: (None, None)},
        {effort: (None, 0.1 * design.relay_effort(system, SCALE))},
        points=4,
    )


def figures(gains):
    """Decay rate, linear-noise variance and effort at a scale of 100, of gains of x and phases."""
    matrix = difference_matrix(0.0, 1.0, 1.0, 2)
    matrix[1] -= gains
    rate = -np.max(np.real(np.linalg.eigvals(matrix)))
    covariance = solve_continuous_lyapunov(matrix, -imbalance_noise(15.0, 2))
    return rate, covariance[0, 0], np.sqrt(SCALE * gains @ covariance @ gains)


def gains_of(front, place):
    gain = 15 * front.parameters[SENSITIVITY][place]
    return gain * np.append(1.0, front.parameters[WEIGHTS][place])


LIMIT = 0.1 * 4 * 15 * SCALE / np.sqrt(2 * np.pi)


def test_front_of_weights_keeps_its_limits_and_has_the_values_it_says(front_of_weights):
    assert len(front_of_weights.systems) == 4
    assert (np.diff(front_of_weights.values, axis=0) < 0).all()
    for place, (rate, variance) in enumerate(front_of_weights.values):
        truth = figures(gains_of(front_of_weights, place))
        # Three roots that meet move by the third root of rounding.
        np.testing.assert_allclose(rate, truth[0], rtol=1e-4)
        np.testing.assert_allclose(variance, truth[1], rtol=1e-10)
        # What `tune` calls feasible.
        assert truth[2] <= LIMIT * (1 + 1e-6)


def test_front_of_weights_beats_designs_of_prescribed_decay(front_of_weights):
    """Anderson and Moore's, by a script of its own, at the same effort."""
    for rate, relative in ((3.6034332528760658, 0.45852847530918456),
                           (4.321310804429057, 0.4752685507691361)):  # fmt: skip
        # The front is convex, so that it is below its chords.
        found = np.interp(rate, *front_of_weights.values[::-1].T) / 30
        assert found < relative
    rule = design.lqr(counting(), 0.1, SCALE)
    least = figures(15 * np.asarray(rule.sensitivity * jnp.append(1.0, rule.weights)))
    # The limits hold to 1e-6, and the variance is flat where it is least.
    np.testing.assert_allclose(front_of_weights.values[-1, 1], least[1], rtol=1e-6)


def test_nothing_near_a_design_of_the_front_is_better(front_of_weights):
    rng = np.random.default_rng(5)
    for place, (rate, variance) in enumerate(front_of_weights.values):
        gains = gains_of(front_of_weights, place)
        sizes = 10 ** rng.uniform(-4, -0.5, (1500, 1))
        around = gains * (1 + sizes * rng.normal(size=(1500, 3)))
        seen = np.array([figures(each) for each in around])
        kept = (seen[:, 1] <= variance * (1 + 1e-9)) & (seen[:, 2] <= LIMIT)
        assert kept.any() or place == 3
        # Limits that may be missed by 1e-6 of their size move the best by some 1e-5.
        assert seen[kept, 0].max(initial=0.0) < rate * (1 + 3e-5)


def test_front_of_two_smooth_criteria_is_the_segment_between_their_optima():
    free = {SENSITIVITY: (0, None), "arrival_rate": (0.1, None)}
    front = design.pareto(plain(), near, far, free, {far: (None, 2.5)}, points=6)
    theta, rate = front.parameters[SENSITIVITY], front.parameters["arrival_rate"]
    # The best of `near` with `far` at 2.5 is at a distance of sqrt(1.5) from (0, 3).
    truth = np.linspace(np.sqrt(1.5 / 2), 0, 6)
    # Values and limits to 1e-6; along a level, where values are flat, the root of that.
    np.testing.assert_allclose(theta, truth, atol=1e-3)
    np.testing.assert_allclose(theta + rate, 3, atol=1e-3)
    wanted = 1 + 2 * np.stack([(truth - 1) ** 2, truth**2], axis=1)
    np.testing.assert_allclose(front.values, wanted, rtol=2e-6)
    assert front.units == ("", "")
    assert front.converged.all()
    table = front.to_pandas()
    columns = ["near", "far", SENSITIVITY, "arrival_rate", "converged", "conditional"]
    assert list(table.columns) == columns
    np.testing.assert_array_equal(table[SENSITIVITY], theta)


def test_criteria_that_agree_have_one_design():
    def twice(system):
        return 2 * near(system)

    front = design.pareto(plain(), near, twice, {SENSITIVITY: (0, 2)})
    np.testing.assert_allclose(front.parameters[SENSITIVITY], [1.0], rtol=1e-6)
    assert str(front).startswith("One design is best by both criteria: near")


def test_one_criterion_with_other_settings_is_another():
    def power(system, to):
        return (system.routing.sensitivity - to) ** 2

    low, high = (functools.partial(power, to=to) for to in (0.25, 0.75))
    front = design.pareto(plain(), low, high, {SENSITIVITY: (0, 1)}, points=5)
    assert front.names == ("power(to=0.25)", "power(to=0.75)")
    assert set(front.rows()[0]) > set(front.names)
    # Rounding.
    np.testing.assert_allclose(front.present, [0.15**2, 0.65**2], rtol=1e-12)


def test_designs_that_lower_gains_make_unstable_are_flagged():
    """With these weights of five stages balance is unstable at gains from 13 to 38 1/s."""
    rule = lb.WeightedLogit(1.0, [0.0, 0.3049880790866727, 0.4352132846714637,
                                  0.7318272924825266, 1.0])  # fmt: skip
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 5), rule)
    front = design.pareto(
        system,
        lambda system: system.routing.sensitivity,
        lambda system: -system.routing.sensitivity,
        {SENSITIVITY: (5 / 15, 100 / 15)},
    )
    gains = 15 * front.parameters[SENSITIVITY]
    assert gains.min() < 13
    assert gains.max() > 38
    np.testing.assert_array_equal(front.conditional, gains > 38)
    assert "unstable at some lower sensitivity" in str(front)


def test_what_cannot_be_is_explained():
    one = {SENSITIVITY: (0, 1)}
    variance = design.linear_noise_variance
    with pytest.raises(ValueError, match=r"^`constraints` must be such that .* decay_rate >= 5"):
        design.pareto(plain(), design.decay_rate, variance, one, {design.decay_rate: (5, None)})
    free = {SENSITIVITY: (0, None), WEIGHTS: (None, None)}
    with pytest.raises(ValueError, match=r"^`parameters` must be bounded, or .*control_effort"):
        design.pareto(counting(), design.decay_rate, variance, free)
    complaint = "`parameters` must be bounded here: integrated_squared_error still improves at"
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        design.pareto(plain(1), design.integrated_squared_error, near, {SENSITIVITY: (0, None)})

    def late(system):
        return jnp.where(system.routing.sensitivity < 0.5, jnp.inf, -system.routing.sensitivity)

    with pytest.raises(ValueError, match=r"^`constraints` must be such that late has a value wh"):
        design.pareto(plain(), far, late, one)
    with pytest.raises(ValueError, match=r"^`points` must be an integer of at least 2, got 1"):
        design.pareto(plain(), near, far, one, points=1)
