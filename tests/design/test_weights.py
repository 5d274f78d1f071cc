"""Weights on jobs in transit: closed forms, and the windows in which balance is unstable."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxlb as lb
from jaxlb import design

from .cases import A, B, closed_loop, erlang, gains_of, open_loop

pytestmark = pytest.mark.usefixtures("quick_compilation")

COXIAN = lb.PhaseType([0.7, 0.3, 0.0], [[-3.0, 2.7, 0.0], [0.0, -4.0, 3.2], [0.5, 0.0, -2.5]])


@pytest.mark.parametrize("delay", [lb.Erlang(0.8, 3), COXIAN])
def test_variance_with_all_jobs_counted_does_not_depend_on_the_law(delay):
    mean = float(delay.mean)
    for gain in (0.3, 6.0):
        system = lb.System(2.0, 0.7, delay, lb.Logit(gain / 2))
        system = system.with_routing(design.uniform(system, 1.0))
        wanted = 4 / 0.7 * (1 + gain * mean) / (1 + gain * (mean + 1 / 0.7))
        # Rounding of one Lyapunov equation.
        assert design.linear_noise_variance(system) == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize(("case", "stages"), [(A, 5), (B, 5)])
def test_predictor_takes_the_delay_out_of_the_loop(case, stages):
    if stages / case[2] <= case[1]:
        pytest.fail("the case is not one for a predictor")
    system = erlang(case, stages, lb.Logit(0.4))
    weights = np.append(1.0, design.predictor(system).weights)
    # s = weights . y obeys ds/dt = -mu s + u.
    np.testing.assert_allclose(weights @ open_loop(case, stages), -case[1] * weights, rtol=1e-12)


def test_predictor_is_the_mean_growth_until_service_for_any_phases():
    mu = 0.7
    system = lb.System(2.0, mu, COXIAN, lb.Logit(0.4))
    exits = -np.asarray(COXIAN.generator).sum(axis=1)
    times = np.linspace(0, 60, 60001)
    step = scipy.linalg.expm(np.asarray(COXIAN.generator) * times[1])
    density = [exits]
    for _ in times[1:]:
        density.append(step @ density[-1])
    growth = np.trapezoid(np.exp(mu * times)[:, None] * np.array(density), times, axis=0)
    # The rule of trapezoids is off by the square of its step.
    np.testing.assert_allclose(design.predictor(system).weights, growth, rtol=1e-5)
    chain = lb.Erlang(1.0, 3)
    alike = lb.PhaseType(chain.initial, chain.generator)
    both = [design.predictor(lb.System(2.0, 1.0, law, lb.Logit(1.0))) for law in (chain, alike)]
    np.testing.assert_allclose(both[0].weights, both[1].weights, rtol=1e-13)


def test_predictor_needs_phases_faster_than_service():
    slow = lb.System(2.0, 4.0, COXIAN, lb.Logit(0.4))
    with pytest.raises(ValueError, match=r"^`delay` must be with phases that are all faster"):
        design.predictor(slow)
    with pytest.raises(ValueError, match=r"^`delay` must be with phases that are all faster"):
        design.predictor(erlang((2.0, 3.0, 1.0), 2, lb.Logit(1.0)))


def test_roots_are_where_they_were_placed():
    roots = np.array([-1.5, -2.0 + 1.0j, -2.0 - 1.0j, -6.0, -4.0 + 3.0j, -4.0 - 3.0j])
    system = erlang(B, 5, lb.Logit(1.0))
    placed = system.with_routing(design.place(system, roots))
    found = np.linalg.eigvals(closed_loop(B, 5, gains_of(placed)))
    # Roots of a chain with gains of 1e3 between its stages.
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(roots), rtol=1e-8)


def test_roots_that_cannot_be_placed_are_refused():
    system = erlang(A, 2, lb.Logit(1.0))
    for roots, match in (
        ([1.0, -2.0, -3.0], "`roots` must be such that the gain, .* got a gain of -1 1/s"),
        ([-1.0, -2.0, -3.0], "`roots` must be such that the gain"),
        ([-1.5, -2.0, -3.0 + 1j], "`roots` must be in conjugate pairs"),
        ([-1.5, -2.0], r"`roots` must have shape \(3,\)"),
    ):
        with pytest.raises(ValueError, match=f"^{match}"):
            design.place(system, roots)
    with pytest.raises(ValueError, match=r"^`delay` must be Erlang to place roots"):
        design.place(lb.System(2.0, 0.7, COXIAN, lb.Logit(0.4)), [-1.0] * 4)


def windows(case, stages, weights, sensitivity=1.0):
    rule = lb.WeightedLogit(sensitivity, jnp.asarray(weights))
    return design.stable_for_every_sensitivity(erlang(case, stages, rule))


def test_half_a_job_is_enough_for_every_sensitivity_and_no_less_for_long_chains():
    # With two stages the threshold is known: 0.0716 in case A.
    stage, mu = 2.0, 1.0
    threshold = stage**2 / (
        mu**2 + 4 * mu * stage + 5 * stage**2
        + 2 * (mu + stage) * np.sqrt(2 * stage * (2 * stage + mu))
    )  # fmt: skip
    for weight, stable in (
        (threshold * (1 + 1e-4), True),
        (threshold * (1 - 1e-4), False),
        (0.5, True),
        (1.0, True),
    ):
        assert bool(windows(A, 2, [weight, weight]).stable_for_every) is stable
    system = lb.System(2.0, 0.7, COXIAN, lb.Logit(1.0))
    half = system.with_routing(design.uniform(system, 0.5))
    assert design.stable_for_every_sensitivity(half).stable_for_every
    # 0.46515 is the threshold of 50 stages; half a job is that of a constant delay.
    assert windows(A, 50, np.full(50, 0.466)).stable_for_every
    assert not windows(A, 50, np.full(50, 0.464)).stable_for_every


# Weights of least variance in a box, at kappa = 100: a window below that, or one on each side.
TRAPS = {
    "below": (A, [0.0, 0.3049880790866727, 0.4352132846714637, 0.7318272924825266, 1.0]),
    "both": (
        A,
        [0.0, 0.1388448460781073, 0.49901775778492247, 0.3918429712862145, 0.6116430148831754]
        + [1.0] * 5,
    ),
}


@pytest.mark.parametrize("name", TRAPS)
def test_unstable_windows_are_those_of_eigenvalues(name):
    case, weights = TRAPS[name]
    stages = len(weights)
    found = windows(case, stages, weights, 100.0 / case[0])
    ends = [end for end in np.asarray(found.windows).ravel() if np.isfinite(end)]
    assert len(ends) == (2 if name == "below" else 3)
    edges = [0.0, *(case[0] * end for end in ends), 1e5]

    def abscissa(gain):
        gains = gain * np.append(1.0, weights)
        return np.linalg.eigvals(closed_loop(case, stages, gains)).real.max()

    for end in ends:
        # Rounding of eigenvalues of a matrix with entries of 1e3.
        assert abs(abscissa(case[0] * end)) < 1e-8
    middles = [np.sqrt(max(low, 1e-3) * high) for low, high in itertools.pairwise(edges)]
    np.testing.assert_array_equal(
        [abscissa(gain) > 0 for gain in middles], [k % 2 == 1 for k in range(len(middles))]
    )
    assert found.stable
    assert found.conditional
    assert not found.stable_for_every
    assert "STABLE ONLY CONDITIONALLY: 6.667 is stable" in str(found)


def test_a_window_begins_at_the_hopf_point_of_the_papers_rule():
    system = erlang(A, 2, lb.Logit(0.7))
    closed = design.stable_for_every_sensitivity(system)
    searched = windows(A, 2, [0.0, 0.0], 0.7)
    for found in (closed, searched):
        # Equation (22), and its frequency sqrt(gamma (gamma + 2 mu)).
        np.testing.assert_allclose(found.windows[0], [0.6, np.inf], rtol=1e-12)
        assert found.periods[0] == pytest.approx(2 * np.pi / np.sqrt(8), rel=1e-12)
        assert np.isnan(found.windows[1:]).all()
        assert not found.stable
        assert not found.conditional
    assert str(closed) == "Unstable at sensitivities 0.6 to inf per job."
    # One stage is always stable.
    assert design.stable_for_every_sensitivity(erlang(A, 1, lb.Logit(1.0))).stable_for_every


def test_a_real_root_can_cross_too():
    # 1 + kappa (1 / mu - 3 / gamma) is zero at kappa = 1 / 2; at 2 / 3 a pair would cross.
    found = windows(A, 1, [-3.0])
    np.testing.assert_allclose(found.windows[0], [0.5 / 15, np.inf], rtol=1e-12)
    assert np.isinf(found.periods[0])


def test_ends_of_windows_are_differentiable():
    _, weights = TRAPS["below"]

    def ends(weight):
        return windows(A, 5, jnp.array(weights).at[2].set(weight)).windows[0]

    both = jax.jit(lambda weight: jax.jvp(ends, (weight,), (jnp.ones(()),)))
    _, slope = both(jnp.asarray(weights[2]))
    step = 1e-5
    above, below = (both(jnp.asarray(weights[2] + change))[0] for change in (step, -step))
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-6)


def test_wrong_rules_are_named():
    def half(queue):
        return 0.5 + 0 * queue

    own = lb.System(1.0, 1.0, lb.Erlang(1.0, 2), half)
    for function in (design.stable_for_every_sensitivity, design.predictor):
        with pytest.raises(ValueError, match=r"^`routing` must be a logit rule"):
            function(own)
    with pytest.raises(ValueError, match=r"^`weight` must be finite"):
        design.uniform(erlang(A, 2, lb.Logit(1.0)), np.nan)
    with pytest.raises(ValueError, match=r"^`delay` must have phases"):
        design.uniform(lb.System(1.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0)), 1.0)
