"""Section 5: what the figures are said to show."""

from functools import cache

import jax.numpy as jnp
import numpy as np

from ... import fluid, stability
from ...model import Erlang, Logit, System
from .. import cases
from .claim import Claim, pair

# Amplitude of x on the limit cycle: harmonic balance with 256 harmonics, confirmed by shooting.
CYCLE_FIGURE_3 = 3.637615152396
CYCLE_FIGURE_5 = 1.359306571612
LONG = 80.0


def each_queue_oscillates_for_one_phase() -> Claim:
    """Turning points of the fluid queues of Figure 2."""
    queue, times = _fluid(1)[:, :, -1], _times()
    turns = [len(_extrema(times, queue[:, server])[0]) for server in (0, 1)]
    dip = _extrema(times, queue[:, 1])[0]
    return Claim(
        "5, Fig. 2",
        "With L = 1 the trajectories of q₁ and q₂ oscillate around the equilibrium.",
        f"turning points of the fluid limit on (0, 20): q₁ {turns[0]}, q₂ {turns[1]} "
        f"(at t = {dip[0]:.3f}); largest value {queue.max():.3f} of 15",
        "an oscillation around 15 would turn and cross 15 again and again",
        min(turns) > 2,
        {"turning_points_q1": turns[0], "turning_points_q2": turns[1], "dip_time": dip[0]},
        "What oscillates is the imbalance (next row), and the noise of the sample path; the queues "
        "themselves rise to 15 from below, since both start almost empty.",
    )


def imbalance_oscillates_with_decay_for_one_phase() -> Claim:
    """Extrema of x in Figure 2, and the roots of (19)."""
    x = _fluid(1)[:, 0, -1] - _fluid(1)[:, 1, -1]
    extrema = _extrema(_times(), x)[1][:3]
    roots = np.asarray(stability.exponential_roots(cases.queues(1)))
    return Claim(
        "5, Fig. 2",
        "With L = 1 the imbalance oscillates with decaying amplitude, as both roots of (19) have "
        "negative real parts.",
        f"first extrema of x: {_numbers(extrema)}; roots {pair(roots[0])}",
        "0.449, −0.199, 0.088 (Dormand–Prince 8(5,3) at 10⁻¹³); −1 ± √15 i",
        np.allclose(extrema, [0.449, -0.199, 0.088], atol=6e-4)
        and np.allclose(roots[0], -1 + 1j * np.sqrt(15)),
        {f"extremum_{n + 1}": value for n, value in enumerate(extrema)},
    )


def oscillation_grows_for_two_phases() -> Claim:
    """Growth of the swings of x in Figure 3, and where that of q_1 ends."""
    system = cases.queues(2)
    root = complex(stability.rightmost_root(system))
    bound = float(stability.two_stage_critical_gain(system))
    swings = np.abs(_extrema(_times(), _fluid(2)[:, 0, -1] - _fluid(2)[:, 1, -1])[1])[1:]
    late = np.abs(_extrema(_times(LONG), _fluid(2, LONG)[:, 0, -1])[1] - 15)[-1]
    return Claim(
        "5, Fig. 3",
        "With L = 2 condition (23) is met, the dominant pair has positive real part and the "
        "oscillation of each queue grows.",
        f"λθ = 15 > {bound:g}; roots {pair(root)}; |x| at its extrema {_numbers(swings[:6])}, …; "
        f"|q₁ − 15| in the end {late:.4f}",
        f"15 > 9; 0.30416 ± 3.36439 i; half the limit cycle's amplitude, {CYCLE_FIGURE_3 / 2:.4f}",
        np.all(np.diff(swings) > 0)
        and abs(root - (0.30415780666 + 3.36438909472j)) < 1e-9
        and abs(late - CYCLE_FIGURE_3 / 2) < 1e-3,
        {"abscissa": root.real, "frequency": root.imag, "final_amplitude": late},
        "It grows to a limit cycle and not beyond.",
    )


def peaks_pass_through_the_phases() -> Claim:
    """Order and lags of the peaks of z_11, z_12 and q_1 in Figure 4."""
    first, second = _lags(cases.queues(2), 100.0)
    omega = 2 * np.pi / 2.227550740353
    return Claim(
        "5, Fig. 4",
        "The peaks of z₁,₁, z₁,₂ and q₁ appear in this order, and the last lag is clearly longer.",
        f"on the limit cycle: z₁,₁ → z₁,₂ {first:.4f}, z₁,₂ → q₁ {second:.4f}",
        f"0.2691 and 0.4274 (Dormand–Prince 8(5,3) at 10⁻¹³); a sine of the cycle's frequency "
        f"would lag atan(ω/γ)/ω = {np.arctan(omega / 2) / omega:.4f} and "
        f"atan(ω/μ)/ω = {np.arctan(omega) / omega:.4f}",
        0 < first < second and abs(first - 0.26908) < 2e-3 and abs(second - 0.42743) < 2e-3,
        {"phase_lag": first, "server_lag": second},
    )


def last_lag_is_longer_because_of_the_service_rate() -> Claim:
    """The same lags with Figure 5's parameters, where gamma < mu."""
    first, second = _lags(cases.imbalance(2), 400.0)
    return Claim(
        "5, Fig. 4",
        "Taken as a rule beyond Figure 4: the step into the server takes longer than that between "
        "phases, for it is governed by the service rate.",
        f"with Figure 5's parameters, where γ = 0.5 < μ = 1: z₁,₁ → z₁,₂ {first:.3f}, "
        f"z₁,₂ → q₁ {second:.3f}",
        "0.988 and 0.757 (Dormand–Prince 8(5,3) at 10⁻¹³): the slower rate makes the longer lag",
        second > first,
        {"phase_lag": first, "server_lag": second},
        "True of Figure 4, where γ = 2 > μ = 1. With γ < μ the order of the lags is the reverse, "
        "as computed here: the rule is about the slower rate.",
    )


def spiral_turns_inward_for_one_phase() -> Claim:
    """Figure 5, left."""
    return _spiral(1, -0.625, 1.53602571593)


def spiral_turns_outward_for_two_phases() -> Claim:
    """Figure 5, right."""
    return _spiral(2, 0.02299454723533, 1.15912226988743)


def outward_spiral_needs_a_long_run() -> Claim:
    """When the trajectories of Figure 5, right, pass their starting radius, and where they end."""
    times = _times(LONG)
    pass_linear, pass_nonlinear = (
        _first_beyond(times, _imbalance(2, 0.5, linear, LONG)[:, 0], 0.5)
        for linear in (True, False)
    )
    end = np.abs(_extrema(_times(400.0), _imbalance(2, 0.5, False, 400.0)[:, 0])[1][-1])
    return Claim(
        "5, Fig. 5",
        "With L = 2 the trajectory does not converge: the amplitude of the oscillation grows.",
        f"the extrema of x pass the start, 0.5, at t = {pass_linear:.2f} (linear) and "
        f"{pass_nonlinear:.2f} (nonlinear); the nonlinear one ends with amplitude {end:.4f}",
        f"24.23 and 27.03 (Dormand–Prince 8(5,3) at 10⁻¹³); limit cycle {CYCLE_FIGURE_5:.4f}",
        abs(pass_linear - 24.2267) < 0.05
        and abs(pass_nonlinear - 27.0279) < 0.05
        and abs(end - CYCLE_FIGURE_5) < 1e-3,
        {"linear": pass_linear, "nonlinear": pass_nonlinear, "final_amplitude": end},
        "The growth rate is only 0.023: the trajectory first falls to 0.3 and up to t = 20 a plot "
        "shows hardly more than that.",
    )


def one_excursion_at_small_sensitivity() -> Claim:
    """Zero crossings of x above one per cent of its start, Figure 6 left."""
    sensitivities = (0.1, 0.2, 0.4)
    x = [_imbalance(1, 0.5, False, cases.IMBALANCE_HORIZON, s)[:, 0] for s in sensitivities]
    counts = [_crossings_above(values, 0.005) for values in x]
    omega = np.sqrt(4 * 0.25 * 10 * np.array(sensitivities) - 0.75**2) / 2
    shrink = np.exp(-0.625 * np.pi / omega)
    return Claim(
        "5, Fig. 6",
        "For θ = 0.1, 0.2, 0.4 each trajectory converges after a single excursion.",
        "sign changes of x with a swing above 1 % of the start: "
        + ", ".join(str(count) for count in counts)
        + "; first overshoot of x "
        + ", ".join(f"{values.min() / 0.5:.0%}" for values in x),
        "1, 1, 1 would be single excursions; all roots of (19) are complex, and from one swing to "
        f"the next x shrinks by exp(−0.625 π/ω) = {_numbers(shrink)}",
        counts == [1, 1, 1],
        {f"crossings_{n + 1}": count for n, count in enumerate(counts)},
        "True at this resolution for θ = 0.1 and 0.2, not for 0.4. Strictly each trajectory turns "
        "for ever; the damping hides it.",
    )


def excursion_grows_with_the_sensitivity() -> Claim:
    """Minimum of w_1 in Figure 6 left, and its ratio to theta as theta falls."""
    dips = [_dip(sensitivity) for sensitivity in (0.1, 0.2, 0.4)]
    slope = _dip(1e-4) / 1e-4
    # x decays as 0.5 exp(-t) and w_1 = -lambda theta (x filtered with gamma = 1/4), lowest at the
    # time where exp(-t) = exp(-t/4) / 4.
    t = np.log(4) / 0.75
    truth = -10 * 0.5 * (np.exp(-t / 4) - np.exp(-t)) / 0.75
    return Claim(
        "5, Fig. 6",
        "The excursion of w₁ grows with θ, and w₁ is only weakly coupled to the queues as θ → 0.",
        f"lowest w₁: {_numbers(dips, 5)}; per θ at θ = 10⁻⁴: {slope:.4f}",
        "−0.28184, −0.52020, −0.92439 (Dormand–Prince 8(5,3) at 10⁻¹³); "
        f"{truth:.4f} in closed form",
        np.allclose(dips, [-0.28184, -0.52020, -0.92439], atol=1e-5)
        and abs(slope / truth - 1) < 1e-3,
        {"slope": slope},
    )


def large_sensitivity_spirals_over_several_turns() -> Claim:
    """Figure 6, right: theta = 10."""
    root = complex(stability.rightmost_root(cases.imbalance(1, 10.0)))
    turns = {
        name: _crossings_above(
            _imbalance(1, 0.5, linear, cases.IMBALANCE_HORIZON, 10.0)[:, 0], 0.005
        )
        / 2
        for name, linear in (("linear", True), ("nonlinear", False))
    }
    dips = [_dip(10.0, linear) for linear in (True, False)]
    return Claim(
        "5, Fig. 6",
        "At θ = 10 the roots are a complex pair with negative real part and the trajectory spirals "
        "into the equilibrium over several revolutions.",
        f"roots {pair(root)}; revolutions above 1 % of the start: {turns['linear']:g} (linear), "
        f"{turns['nonlinear']:g} (nonlinear); lowest w₁ {_numbers(dips, 2)}",
        "−0.62500 ± 4.98592 i; lowest w₁ −8.30 (linear) and −6.10 (nonlinear)",
        abs(root - (-0.625 + 0.5j * np.sqrt(100 - 0.5625))) < 1e-9
        and turns["nonlinear"] >= 2
        and np.allclose(dips, [-8.30, -6.10], atol=6e-3),
        {"revolutions_nonlinear": turns["nonlinear"], "lowest_nonlinear": dips[1]},
        "The linear system overstates the first swing of w₁ by a third: at θx = 5 the hyperbolic "
        "tangent is saturated.",
    )


def imbalance_is_damped_or_grows() -> Claim:
    """Figure 7."""
    times = _times(LONG)
    damped = np.abs(_imbalance(1, 1.0, False, LONG)[1000:, 0]).max()
    exceeds = [
        _first_beyond(times, _imbalance(2, 1.0, linear, LONG)[:, 0], 1.0)
        for linear in (True, False)
    ]
    return Claim(
        "5, Fig. 7",
        "With L = 1 the imbalance is damped to zero; with L = 2 it grows.",
        f"L = 1: |x| ≤ {damped:.0e} after t = 40; L = 2: an extremum of x first exceeds its start "
        f"at t = {exceeds[0]:.2f} (linear), {exceeds[1]:.2f} (nonlinear)",
        "0; 24.23 and 38.29 (Dormand–Prince 8(5,3) at 10⁻¹³)",
        damped < 1e-9 and abs(exceeds[0] - 24.2267) < 0.05 and abs(exceeds[1] - 38.2884) < 0.05,
        {"linear": exceeds[0], "nonlinear": exceeds[1]},
        "With L = 2, |x| first falls to 0.6; the growth is seen on a longer horizon only.",
    )


def imbalance_stays_bounded() -> Claim:
    """Largest |x| over parameters far past the boundary, against 2 lambda / mu."""
    # The inflow never exceeds 2 lambda in size, and the phases and the server only smooth it.
    largest = max(
        float(jnp.abs(_solve(2, 1.0, False, 200.0, sensitivity, arrival)[:, 0]).max()) / arrival
        for sensitivity in (1.0, 1e2, 1e6)
        for arrival in (10.0, 100.0)
    )
    return Claim(
        "5, Fig. 7",
        "The nonlinear feedback is bounded by 2λ, so that the imbalance stays bounded.",
        f"largest |x| μ/λ over θ = 1, 10², 10⁶ and λ = 10, 100 on [0, 200]: {largest:.3f}",
        "at most 2, since |x| ≤ 2λ/μ after a start inside",
        largest <= 2,
        {"largest": largest},
    )


CLAIMS = (
    each_queue_oscillates_for_one_phase,
    imbalance_oscillates_with_decay_for_one_phase,
    oscillation_grows_for_two_phases,
    peaks_pass_through_the_phases,
    last_lag_is_longer_because_of_the_service_rate,
    spiral_turns_inward_for_one_phase,
    spiral_turns_outward_for_two_phases,
    outward_spiral_needs_a_long_run,
    one_excursion_at_small_sensitivity,
    excursion_grows_with_the_sensitivity,
    large_sensitivity_spirals_over_several_turns,
    imbalance_is_damped_or_grows,
    imbalance_stays_bounded,
)


def _spiral(stages: int, abscissa: float, frequency: float) -> Claim:
    system = cases.imbalance(stages)
    root = complex(stability.rightmost_root(system))
    y = _imbalance(stages, 0.5, True, LONG)
    x, w = y[:, 0], y[:, stages]
    # Turning rate of the angle in the plane of the figure; negative is clockwise.
    turning = np.median(np.diff(np.unwrap(np.arctan2(w, x)))[:1000])
    extrema = np.abs(_extrema(_times(LONG), x)[1])[:8]
    ratio = float(np.exp(np.mean(np.diff(np.log(extrema)))))
    expected = np.exp(abscissa * np.pi / frequency)
    inward = abscissa < 0
    return Claim(
        "5, Fig. 5",
        f"With L = {stages} the dominant roots are a complex pair with "
        f"{'negative' if inward else 'positive'} real part: the trajectory spirals "
        f"{'inward to a stable focus' if inward else 'outward'}.",
        f"roots {pair(root)}; |x| changes by a factor {ratio:.4f} from one extremum to the next; "
        f"the spiral turns {'clockwise' if turning < 0 else 'anticlockwise'}",
        f"{pair(complex(abscissa, frequency))} (characteristic polynomial); exp(απ/ω) = "
        f"{expected:.4f}; clockwise, since w′ < 0 where x > 0 = w",
        abs(root - complex(abscissa, frequency)) < 1e-9
        and abs(ratio / expected - 1) < 0.01
        and turning < 0,
        {"abscissa": root.real, "frequency": root.imag, "ratio": ratio},
    )


def _times(horizon: float = cases.HORIZON) -> np.ndarray:
    return np.asarray(cases.grid(horizon))


@cache
def _fluid(stages: int, horizon: float = cases.HORIZON) -> np.ndarray:
    times = cases.grid(horizon)
    return np.asarray(fluid.solve(cases.queues(stages), times, rtol=1e-10, atol=1e-10).jobs)


def _imbalance(stages, start, linear, horizon, sensitivity=1.0) -> np.ndarray:
    return _solve(stages, start, linear, horizon, sensitivity, 10.0)


@cache
def _solve(stages, start, linear, horizon, sensitivity, arrival_rate) -> np.ndarray:
    system = System(arrival_rate, 1.0, Erlang(4.0, stages), Logit(sensitivity))
    times = cases.grid(horizon)
    solution = fluid.solve_imbalance(system, times, start, linear=linear, rtol=1e-10, atol=1e-12)
    return np.asarray(solution.y)


def _dip(sensitivity: float, linear: bool = False) -> float:
    w = _imbalance(1, 0.5, linear, cases.IMBALANCE_HORIZON, sensitivity)[:, 1]
    return _extrema(_times(cases.IMBALANCE_HORIZON), w)[1].min()


def _lags(system: System, horizon: float) -> tuple[float, float]:
    """Mean lags between the peaks of z_11, z_12 and q_1 over the end of a long run."""
    times = jnp.concatenate([jnp.zeros(1), jnp.linspace(0.9 * horizon, horizon, cases.GRID - 1)])
    jobs = np.asarray(fluid.solve(system, times, rtol=1e-10, atol=1e-10).jobs)[1:, 0]
    first, second, third = (
        _peaks(np.asarray(times[1:]), jobs[:, compartment]) for compartment in range(3)
    )
    second = np.array([second[second > peak][0] for peak in first if (second > peak).any()])
    third = np.array([third[third > peak][0] for peak in second if (third > peak).any()])
    return (
        float((second - first[: len(second)]).mean()),
        float((third - second[: len(third)]).mean()),
    )


def _peaks(times: np.ndarray, values: np.ndarray) -> np.ndarray:
    place, height = _extrema(times, values)
    return place[height > values.mean()]


def _extrema(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times and values of the interior extrema, by a parabola through three points."""
    before, middle, after = values[:-2], values[1:-1], values[2:]
    turn = (middle - before) * (after - middle) < 0
    slope, bend = (after - before) / 2, after - 2 * middle + before
    shift = -slope[turn] / bend[turn]
    step = times[1] - times[0]
    return times[1:-1][turn] + shift * step, middle[turn] + slope[turn] * shift / 2


def _first_beyond(times: np.ndarray, x: np.ndarray, start: float) -> float:
    """Time of the first extremum of |x| above the start."""
    place, height = _extrema(times, x)
    return float(place[np.abs(height) > start][0])


def _crossings_above(x: np.ndarray, level: float) -> int:
    """Sign changes of x that are followed by a swing beyond `level`."""
    swings = np.sign(x[np.abs(x) > level])
    return int(np.sum(swings[1:] != swings[:-1]))


def _numbers(values, digits: int = 3) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)
