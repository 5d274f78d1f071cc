"""The least settling time that any dispatcher could have."""

import sys
from typing import Any

import jax
import numpy as np
import pytest
from scipy.optimize import brentq

import jaxlb as lb
from jaxlb import design


def of(delay, arrival_rate=15.0):
    return lb.System(arrival_rate, 1.0, delay, lb.Logit(1.0))


def assert_between(bound, truth):
    assert bound.least <= truth <= bound.attainable
    # A tenth of a percent to a quarter, as documented.
    assert bound.attainable - bound.least < 0.003 * truth


@pytest.mark.parametrize(("mean", "jobs"), [(1.0, 10.0), (0.01, 20.0), (4.0, 1.0)])
def test_a_constant_delay_settles_at_full_force_once_jobs_arrive(mean, jobs):
    level, bang = 0.05 * jobs, 30.0
    rest = jobs * np.exp(-mean)
    # Then x' = -x - 30, down to the level; or it settles by itself before.
    truth = mean + np.log((rest + bang) / (level + bang)) if rest > level else np.log(20)
    assert_between(design.settling_bound(of(lb.Deterministic(mean)), [0.0, jobs]), truth)


def test_without_a_delay_it_is_full_force_at_once():
    bound = design.settling_bound(of(lb.NoDelay()), [0.0, 10.0], tolerance=0.01)
    assert_between(bound, np.log(40 / 30.1))


def test_one_stage_settles_by_one_switch():
    """Full force one way, then the other, such that the level below zero is just touched."""
    level, stage, bang = 0.05, 2.0, 30.0

    def state(switch, time):
        """Imbalance and jobs in transit, of x' = 2 w - x and w' = u - 2 w."""
        x, w = 1.0, 0.0
        for force, span in ((-bang, min(switch, time)), (bang, max(time - switch, 0.0))):
            rest = force / stage
            slow = x - force + 2 * (w - rest)
            fast = -2 * (w - rest)
            x = force + slow * np.exp(-span) + fast * np.exp(-2 * span)
            w = rest + (w - rest) * np.exp(-2 * span)
        return x, w

    def lowest(switch):
        at = brentq(lambda t: np.subtract(*np.multiply([2, 1], state(switch, t)[::-1])), switch, 3)
        return state(switch, at)[0]

    switch: Any = brentq(lambda switch: lowest(switch) + level, 0.05, 0.5)
    truth = brentq(lambda t: state(switch, t)[0] - level, 0.05, switch + 0.1)
    assert_between(design.settling_bound(of(lb.Erlang(0.5, 1))), truth)


def test_no_inflow_keeps_a_level_below_its_bound():
    module = sys.modules["jaxlb.design.settling_bound"]
    responses = module._responses(of(lb.Deterministic(1.0)), np.array([10.0, 0.0]), 1 / 1600, 2600)
    found, bound = module._levels(*responses, 30.0, 1680, 50)
    # At 1.05 s, after full force for 0.05 s.
    truth = (10 * np.exp(-1) + 30) * np.exp(-0.05) - 30
    # Rounding; and the integral of the part of a step in which its integrand changes sign.
    assert 0.995 * truth < bound <= truth * (1 + 1e-9)
    assert truth * (1 - 1e-9) <= found < 1.005 * truth


# By an implementation that is not this one: rounded up to the next 50th of the mean delay.
@pytest.mark.parametrize(
    ("mean", "stages", "arrivals", "settled"),
    [(1.0, 2, 15.0, [0.44, 0.5]), (4.0, 10, 10.0, [2.16])],
)
def test_programmes_on_a_coarse_grid_were_right_but_for_its_step(mean, stages, arrivals, settled):
    system = of(lb.Erlang(mean, stages), arrivals)
    for tolerance, known in zip([0.05, 0.01], settled, strict=False):
        bound = design.settling_bound(system, tolerance=tolerance)
        assert known - mean / 50 < bound.least <= bound.attainable <= known


def test_jobs_in_transit_count():
    system = of(lb.PhaseType([0.5, 0.5], [[-1.0, 0.5], [0.0, -3.0]]))
    none = design.settling_bound(system, [0.0, 10.0]).least
    # Jobs on their way to the server that has fewer help.
    helped = design.settling_bound(system, [[2.0, 2.0, 0.0], [0.0, 0.0, 10.0]]).attainable
    assert helped < none


def test_what_has_settled_needs_no_time():
    bound = design.settling_bound(of(lb.Erlang(1.0, 2)), tolerance=1.5)
    assert bound == (0, 0)


def test_bad_arguments_are_named():
    system = of(lb.Erlang(1.0, 2))
    with pytest.raises(ValueError, match=r"^`num_servers` must be 2 here, got 3"):
        design.settling_bound(lb.System(1.0, 1.0, lb.NoDelay(), lb.Logit(1.0), 3))
    with pytest.raises(ValueError, match=r"^`delay` must have phases or be Deterministic here"):
        design.settling_bound(of(lb.QuantileDelay(lambda chance: 1 + chance)))
    with pytest.raises(ValueError, match=r"^`initial` must have an imbalance"):
        design.settling_bound(system, [1.0, 1.0])
    with pytest.raises(ValueError, match=r"^`tolerance` must be positive"):
        design.settling_bound(system, tolerance=0.0)
    with pytest.raises(ValueError, match=r"must be numbers here, got tracers"):
        jax.jit(lambda level: design.settling_bound(system, tolerance=level).least)(0.05)
