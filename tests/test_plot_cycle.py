"""Pictures of limit cycles by what is drawn in them."""

import numpy as np
import pytest

import jaxlb as lb
from jaxlb import plot
from jaxlb.fluid import limit_cycle

pytestmark = pytest.mark.usefixtures("quick_compilation")

SYSTEM = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))


def drawn(ax, label):
    """Data of the line whose label begins so."""
    (line,) = [line for line in ax.lines if str(line.get_label()).startswith(label)]
    return line, np.array(line.get_data(), float)


def test_trajectories_from_within_and_without_end_on_the_cycle():
    ax = plot.phase_portrait(SYSTEM)
    _, cycle = drawn(ax, "limit cycle")
    # By shooting, elsewhere; a point of 400 is at most 3e-5 of it below the peak.
    np.testing.assert_allclose(abs(cycle[0]).max(), 3.637615152396, rtol=4e-5)
    for start in ("from $q_1 - q_2$ = 0.18", "from $q_1 - q_2$ = 5.8"):
        _, path = drawn(ax, start)
        end = path[:, -1]
        # Points of the cycle are 1 % of its size apart; .35^10 of the start is left.
        assert np.min(np.hypot(*(cycle - end[:, None]))) < 0.2
        assert path[1, 0] == 0
    assert drawn(ax, "balance, unstable")[0].get_markerfacecolor() == "white"


def test_a_fixed_delay_has_its_cycle_and_its_jobs_in_transit():
    system = lb.System(15.0, 1.0, lb.Deterministic(1.0), lb.Logit(1.0))
    ax = plot.phase_portrait(system, [1.0])
    _, cycle = drawn(ax, "limit cycle")
    _, path = drawn(ax, "from $q_1 - q_2$ = 1")
    # Never more than 2 lambda D, and nearly that: all jobs go to one server for most of a delay.
    assert 29 < abs(cycle[1]).max() < 30
    late = path[:, -300:]
    apart = np.hypot(*(cycle[:, :, None] - late[:, None])).min(axis=0)
    # Points of the cycle are .6 apart at most.
    assert apart.max() < 0.35


def test_without_a_cycle_balance_is_a_full_point():
    ax = plot.phase_portrait(lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(0.3)))
    assert drawn(ax, "balance, stable")[0].get_markerfacecolor() != "white"
    assert not [line for line in ax.lines if line.get_label() == "limit cycle"]


def test_starts_that_empty_a_server_are_refused():
    with pytest.raises(ValueError, match="`starts` must be at most 30, twice the offered load"):
        plot.phase_portrait(SYSTEM, [31.0])


# Two values without a cycle, the Hopf point, two cycles.
BRANCH = limit_cycle.Branch(
    values=np.array([0.2, 0.5, 0.6, 0.7, 1.0]),
    amplitude=np.array([0, 0, 0, 2.4, 3.6]),
    period=np.array([np.nan, np.nan, 2.221, 2.222, 2.228]),
    multiplier=np.array([np.nan, np.nan, 1, 0.7, 0.35]),
    valid=np.array([False, False, True, True, True]),
    is_hopf=np.array([False, False, True, False, False]),
)


def test_a_branch_is_drawn_from_its_hopf_point_on():
    ax = plot.bifurcation_diagram({"two": BRANCH})
    _, curve = drawn(ax, "two")
    np.testing.assert_array_equal(curve[:, np.isfinite(curve[1])], [[0.6, 0.7, 1.0], [0, 2.4, 3.6]])
    _, stable = drawn(ax, "balance, stable")
    np.testing.assert_array_equal(stable[0][np.isfinite(stable[1])], [0.2, 0.5, 0.6])
    _, unstable = drawn(ax, "balance, unstable")
    np.testing.assert_array_equal(unstable[0][np.isfinite(unstable[1])], [0.6, 0.7, 1.0])


def test_relay_limits_are_dotted_lines():
    limits = {"two": limit_cycle.relay_limit(SYSTEM)}
    ax = plot.bifurcation_diagram({"two": BRANCH}, limits, "period")
    _, curve = drawn(ax, "two")
    np.testing.assert_array_equal(curve[1][2:], [2.221, 2.222, 2.228])
    flat = [np.unique(np.array(line.get_data(), float)[1]) for line in ax.lines]
    assert any(level == pytest.approx([2.2552000359032465]) for level in flat)
    with pytest.raises(ValueError, match="`quantity` must be one of amplitude, period, got 'x'"):
        plot.bifurcation_diagram({"two": BRANCH}, quantity="x")


def test_peaks_of_the_waveforms_come_in_the_order_of_passage():
    """Lags of Figure 4's cycle: .26908 and .42743 s, by an ODE solver elsewhere."""
    ax = plot.waveforms(SYSTEM, limit_cycle.find(SYSTEM))
    dots = [np.array(line.get_data(), float) for line in ax.lines if line.get_marker() == "o"]
    at = 2.2275507403534602 * np.ravel([dot[0] for dot in dots])
    # The grid has 400 points a period.
    np.testing.assert_allclose(np.diff(at), [0.26908, 0.42743], atol=0.006)


def test_of_many_phases_some_are_shown_times_their_number():
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 20), lb.Logit(1.0))
    cycle = limit_cycle.find(system, 16, 512)
    ax = plot.waveforms(system, cycle)
    lines = {str(line.get_label()): np.array(line.get_data(), float) for line in ax.lines}
    start = cycle.imbalance([0.0])[0]
    for phase in (1, 7, 14, 20):
        line = lines[f"20$w_{{{phase}}}$, phase {phase}"]
        np.testing.assert_allclose(line[1, 0], 20 * start[phase], rtol=1e-9)
    np.testing.assert_allclose(lines["$x$, in service"][1, 0], start[0], rtol=1e-9)
    assert sum("phase" in name for name in lines) == 4
    # The peak in service is one of the next period.
    dots = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert np.all(np.diff(np.ravel(np.array(dots, float))) > 0)


def test_a_cycle_that_does_not_exist_has_no_waveform():
    still = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(0.3))
    with pytest.raises(ValueError, match="`cycle` must be valid"):
        plot.waveforms(still, limit_cycle.find(still))
