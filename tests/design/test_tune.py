"""Tuning: known optima, known traps, and what it says of each."""

from functools import partial

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb
from jaxlb import design

from .cases import A, closed_loop, erlang, gains_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCALE = 100.0
THETA = {"routing.sensitivity": (0.0, None)}
FREE = {"routing.sensitivity": (0.0, None), "routing.weights": (None, None)}
BOX = {"routing.sensitivity": (0.0, 100 / 15), "routing.weights": (0.0, 1.0)}


def weighted(stages, sensitivity=1 / 15):
    return erlang(A, stages, lb.WeightedLogit(sensitivity, jnp.full(stages, 0.5)))


def theta(found):
    return float(found.parameters["routing.sensitivity"])


def squared_gains(system):
    rule = system.routing
    return 0.01 * (15 * rule.sensitivity) ** 2 * (1 + jnp.sum(rule.weights**2))


def test_fastest_decay_over_the_sensitivity_is_the_closed_form():
    system = erlang(A, 2, lb.Logit(0.3))
    closed = design.tune(system, design.decay_rate, THETA)
    scanned = design.tune(system, design.decay_rate, THETA, method="scan")
    assert (closed.method, scanned.method) == ("closed", "scan")
    # kappa = 1 / 27, rate 4 / 3; a scan of a kink finds it to the tenth digit.
    assert 15 * theta(closed) == pytest.approx(1 / 27, rel=1e-14)
    assert 15 * theta(scanned) == pytest.approx(1 / 27, rel=1e-9)
    assert closed.double_root
    assert closed.converged
    assert "where roots meet" in closed.message
    bounded = design.tune(system, design.decay_rate, {"routing.sensitivity": (0.0, 0.001)})
    assert theta(bounded) == 0.001
    assert bounded.active == ("routing.sensitivity <= 0.001",)


def test_least_variance_over_the_sensitivity_is_where_its_slope_is_zero():
    # Two stages in case A: kappa = 1.5, 0.8 of the variance without feedback.
    system = erlang(A, 2, lb.Logit(0.03))
    for criterion, value in (
        (design.linear_noise_variance, 24.0),
        (design.integrated_squared_error, 0.4),
    ):
        found = design.tune(system, criterion, THETA)
        assert 15 * theta(found) == pytest.approx(1.5, rel=1e-9)
        assert found.value == pytest.approx(value, rel=1e-12)
        assert found.converged
        assert found.slope < 1e-9
        windows = found.unstable
        assert windows is not None
        np.testing.assert_allclose(windows.windows[0], [0.6, np.inf], rtol=1e-12)


def test_the_shortest_settling_time_is_at_the_edge_of_a_jump():
    system = erlang(A, 2, lb.Logit(0.03))
    found = design.tune(system, design.settling_time, {"routing.sensitivity": (0.0, 0.3)})
    # Where the next maximum of |x| touches a twentieth (`test_criteria` has the settling time).
    assert 0 <= found.cliff < 1e-6
    assert 15 * theta(found) == pytest.approx(0.593005, rel=1e-5)
    assert "on the edge of a jump" in found.message
    beyond = design.settling_time(system.with_routing(lb.Logit(theta(found) + 1e-6)))
    assert beyond.value > found.value + 1
    safe = design.tune(
        system,
        design.settling_time,
        {"routing.sensitivity": (0.0, 0.3)},
        {design.settling_cliff: (0.03, None)},
    )
    assert safe.cliff == pytest.approx(0.03, rel=1e-4)
    assert safe.active == ("settling_cliff >= 0.03",)


# Of the abscissa with 0.01 |k|^2: the optimum by a search among roots with 30 digits.
@pytest.mark.parametrize(("stages", "wanted"), [(2, -2.720621134488), (5, -4.597027387028)])
def test_joint_optima_are_found_among_roots(stages, wanted):
    found = design.tune(weighted(stages), design.decay_rate, FREE, penalty=squared_gains)
    assert found.method == "roots"
    least = float(squared_gains(found.system)) - found.value
    assert least == pytest.approx(wanted, abs=1e-8)
    assert found.double_root
    assert np.max(found.path.value) <= -least + 1e-6


def test_decay_in_a_box_is_better_than_by_gradients():
    found = design.tune(weighted(2), design.decay_rate, BOX)
    rate = -np.linalg.eigvals(closed_loop(A, 2, gains_of(found.system))).real.max()
    # Rounding of the coinciding roots; 8.25105 is what a prototype's descent found.
    assert rate == pytest.approx(found.value, rel=1e-5)
    assert rate > 8.36
    assert found.active == ("routing.sensitivity <= 6.66667",)
    assert "held by routing.sensitivity <= 6.66667" in found.message


def test_optax_finds_the_least_variance_in_a_box_and_reports_the_trap():
    for method in ("lbfgs", "adam"):
        found = design.tune(
            weighted(5, 0.3), design.linear_noise_variance, BOX, method=method, steps=300
        )
        # 0.3795066 by a prototype; Adam comes near.
        exact = {"lbfgs": 1e-5, "adam": 2e-2}[method]
        assert found.value / 30 == pytest.approx(0.379506639, rel=exact)
        assert found.unstable is not None
        assert found.unstable.conditional
        assert "STABLE ONLY CONDITIONALLY" in found.message


def test_limits_are_kept_and_named():
    effort = partial(design.control_effort, scale=SCALE)
    limit = 0.1 * float(design.relay_effort(weighted(2), SCALE))
    found = design.tune(weighted(2), design.linear_noise_variance, FREE, {effort: (None, limit)})
    best = design.lqr(weighted(2), 0.1, SCALE)
    assert found.method == "slsqp"
    # Limits are kept to 1e-6, and the variance is flat about the optimum.
    assert theta(found) == pytest.approx(float(best.sensitivity), rel=1e-3)
    least = design.linear_noise_variance(weighted(2).with_routing(best))
    assert found.value == pytest.approx(float(least), rel=1e-5)
    assert found.active == (f"control_effort <= {limit:.6g}",)
    faster = design.tune(weighted(2), design.decay_rate, FREE, {effort: (None, limit)})
    assert faster.method == "roots"
    # Anderson and Moore's rules of this effort come to 4.32.
    assert faster.value > 4.9
    assert effort(faster.system) <= limit * (1 + 1e-6)


def test_a_worst_case_is_better_kept_by_its_own_optimum():
    worst = partial(design.worst_decay_rate, error=0.2)
    nominal = design.tune(weighted(2), design.decay_rate, FREE, penalty=squared_gains)
    robust = design.tune(weighted(2), worst, FREE, penalty=squared_gains, steps=40)
    assert robust.method == "smoothed"

    def total(found):
        return float(worst(found.system) - squared_gains(found.system))

    assert total(robust) > total(nominal) + 0.05
    assert robust.value == pytest.approx(float(worst(robust.system)), rel=1e-12)


def test_an_unstable_start_is_mended_or_explained():
    system = erlang(A, 2, lb.WeightedLogit(3.0, jnp.zeros(2)))
    assert design.decay_rate(system) < 0
    found = design.tune(system, design.linear_noise_variance, BOX, steps=50)
    assert np.isfinite(found.value)
    held = {"routing.weights": (0.0, 0.01)}
    with pytest.raises(ValueError, match=r"^`system` must start where linear_noise_variance has a"):
        design.tune(system, design.linear_noise_variance, held)


def test_what_cannot_be_is_said_in_a_sentence():
    system = weighted(2)
    effort = partial(design.control_effort, scale=SCALE)
    with pytest.raises(
        ValueError, match=r"design\.control_effort: with weights free decay_rate has"
    ):
        design.tune(system, design.decay_rate, FREE)
    impossible = {effort: (None, 1e-4), design.decay_rate: (1.5, None)}
    with pytest.raises(ValueError, match=r"^`constraints` must be such that some point .* widen"):
        design.tune(system, design.linear_noise_variance, BOX, impossible, steps=20)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((design.decay_rate, {"routing.gain": (0, 1)}), "`parameters` must name numbers"),
        ((design.decay_rate, {"num_servers": (0, 1)}), "`parameters` must name real numbers"),
        ((design.decay_rate, {"routing.weights": (1, 0)}), r".* must have lower <= upper, got \(1"),
        ((design.decay_rate, {"routing.weights": 1}), r".* must be a pair \(lower, upper\)"),
        ((design.decay_rate, {}), "`parameters` must map what is free"),
        (("decay_rate", BOX), "`criterion` must map a System to a number"),
        ((design.decay_rate, BOX, {"effort": (0, 1)}), "`constraints` must map functions"),
    ],
)
def test_wrong_arguments_are_named(arguments, match):
    with pytest.raises(ValueError, match=f"^{match}"):
        design.tune(weighted(2), *arguments)


def test_methods_that_cannot_are_refused():
    for method, what in (
        ("closed", "the decay rate over the sensitivity"),
        ("scan", "one number"),
        ("lbfgs", "problems without constraints"),
    ):
        with pytest.raises(ValueError, match=f"^`method` must be another here, '{method}' is for"):
            design.tune(
                weighted(2), design.decay_rate, BOX, {design.decay_rate: (0, None)}, method=method
            )
        assert what
    with pytest.raises(ValueError, match=r"^`method` must be one of auto, closed"):
        design.tune(weighted(2), design.decay_rate, BOX, method="newton")


def test_other_numbers_and_other_delays_can_be_tuned():
    # The best mean delay at a fixed sensitivity has a closed form.
    system = erlang(A, 2, lb.Logit(0.02))
    found = design.tune(system, design.decay_rate, {"delay.mean": (0.1, 10.0)})
    best = lb.stability.best_delay(system)
    assert float(found.parameters["delay.mean"]) == pytest.approx(float(best.value), rel=1e-7)
    assert eqx.tree_equal(found.system.routing, system.routing)
