"""The limit cycles that are timed, and true ones by shooting over half a period.

Systems of Figures 3 and 5, and of the random ones of `fluid_case` those past the Hopf point, where
lambda theta exceeds the critical gain: there s + mu + lambda theta / (1 + s D / L)^L = 0 at
s = i omega. Half a period later a cycle is its own negative.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import root_scalar

from .fluid_case import FluidCase, Integrator, right_side, start

PAPER = (1.0, 1.0, 15.0, 1.0, -1.0), (1.0, 4.0, 10.0, 1.0, -1.0)
PERIODS, SAMPLES = 60, 1000


@dataclass(frozen=True)
class CycleCase:
    """Systems of so many stages that have a cycle."""

    stages: int

    @property
    def numbers(self) -> np.ndarray:
        """As those of `FluidCase`, shape (lanes, 5)."""
        numbers = np.concatenate([PAPER, FluidCase(self.stages).numbers])
        return numbers[[excess(one, self.stages) > 0 for one in numbers]]

    @property
    def lanes(self) -> int:
        """How many there are."""
        return len(self.numbers)


def hopf_frequency(numbers: np.ndarray, stages: int) -> float:
    """omega, rad/s: where the delay and the service turn the phase by half a turn."""
    _, mean, _, service_rate, _ = numbers

    def turn(omega: float) -> float:
        return stages * np.arctan(omega * mean / stages) + np.arctan(omega / service_rate) - np.pi

    # From two stages on, the turn ends beyond half of one.
    highest = 100 * (stages / mean + service_rate)
    return root_scalar(turn, bracket=(0, highest), xtol=1e-14).root


def excess(numbers: np.ndarray, stages: int) -> float:
    """lambda theta over the critical gain, less one."""
    theta, mean, arrival_rate, service_rate, _ = numbers
    omega = hopf_frequency(numbers, stages)
    stage = np.hypot(1, omega * mean / stages)
    return theta * arrival_rate / (np.hypot(omega, service_rate) * stage**stages) - 1


def lsoda(case: CycleCase) -> Integrator:
    """Amplitude and period as read off SciPy's LSODA at 1e-8 after 60 periods of the Hopf point."""

    def one(numbers: np.ndarray) -> list[float]:
        period = 2 * np.pi / hopf_frequency(numbers, case.stages)
        end, y = PERIODS * period, start(numbers, case.stages)
        times = np.linspace(end - 2.5 * period, end, int(2.5 * SAMPLES) + 1)
        change = right_side(numbers, case.stages)
        found = solve_ivp(change, (0, end), y, "LSODA", times, rtol=1e-8, atol=1e-8)
        return _read(times, found.y[0])

    return lambda: np.array([one(numbers) for numbers in case.numbers])


def _read(times: np.ndarray, x: np.ndarray) -> list[float]:
    """The top of the parabola through the largest |x|, and the time between zeros of x."""
    top = int(np.argmax(np.abs(x[1:-1]))) + 1
    low, middle, high = np.abs(x[top - 1 : top + 2])
    amplitude = middle + (high - low) ** 2 / (8 * (2 * middle - low - high))
    at = np.flatnonzero(x[1:] * x[:-1] < 0)
    zeros = times[at] - x[at] * (times[at + 1] - times[at]) / (x[at + 1] - x[at])
    return [amplitude, 2 * np.diff(zeros).mean()]


def truth(numbers: np.ndarray, stages: int) -> np.ndarray:
    """Amplitude and period."""
    return _measures(numbers, stages, *_shoot(numbers, stages)[:2])


def true_slopes(numbers: np.ndarray, stages: int) -> np.ndarray:
    """Of amplitude and period in theta, D, lambda and mu, shape (2, 4), by central differences of
    sixth order; their steps are small beside the way to the Hopf point."""
    w, half, slope = _shoot(numbers, stages)
    size = min(2e-3, 0.01 * excess(numbers, stages))
    weights = np.array([-1, 9, -45, 45, -9, 1]) / 60
    slopes = []
    for unit in np.diag(size * np.abs(numbers))[:4]:
        moved = [numbers + shift * unit for shift in (-3, -2, -1, 1, 2, 3)]
        found = [_measures(one, stages, *_chords(one, stages, w, half, slope)) for one in moved]
        slopes.append(weights @ np.array(found) / unit.max())
    return np.transpose(slopes)


def _shoot(numbers: np.ndarray, stages: int) -> tuple[np.ndarray, float, np.ndarray]:
    """w where x is zero, half the period, and the Jacobian there of their equations."""
    w, half = _near(numbers, stages)
    for _ in range(12):
        slope = _slope(numbers, stages, w, half)
        move = np.linalg.solve(slope, _rest(numbers, stages, w, half))
        w, half = w - move[:-1], half - move[-1]
        if np.abs(move).max() < 1e-9 * np.abs(w).max():
            w, half = _chords(numbers, stages, w, half, slope)
            return w, half, slope
    raise AssertionError(f"Shooting has not converged: {numbers}, {stages} stages.")


def _chords(numbers, stages, w, half, slope):
    """By a Jacobian from nearby, until rounding is reached."""
    last = np.inf
    for _ in range(20):
        move = np.linalg.solve(slope, _rest(numbers, stages, w, half))
        size = np.abs(move).max() / np.abs(w).max()
        if size < 1e-11 and size > last / 4:
            return w, half
        w, half, last = w - move[:-1], half - move[-1], size
    return w, half


def _near(numbers: np.ndarray, stages: int) -> tuple[np.ndarray, float]:
    """From the oscillation at the Hopf point with about the right amplitude, 20 periods on."""
    theta, mean, _, service_rate, _ = numbers
    omega, beyond, gamma = hopf_frequency(numbers, stages), excess(numbers, stages), stages / mean
    # Of a small cycle, and of one with a switch for a rule.
    small, large = 4 * np.sqrt(beyond) / theta, 8 * (1 + beyond) / (np.pi * theta)
    waves = [min(small, large), min(small, large) * (1j * omega + service_rate) / gamma]
    for _ in range(stages - 1):
        waves.append(waves[-1] * (1j * omega + gamma) / gamma)
    y = np.real(-1j * np.array([waves[0], *waves[:0:-1]]))
    change, period = right_side(numbers, stages), 2 * np.pi / omega
    found = solve_ivp(
        change, (0, 20 * period), y, "LSODA", rtol=1e-8, atol=1e-8, events=lambda _, y: y[0]
    )
    assert found.t_events is not None
    assert found.y_events is not None
    return found.y_events[0][-1][1:], np.diff(found.t_events[0])[-1]


def _rest(numbers, stages, w, half) -> np.ndarray:
    """y(half) + y(0) from x(0) = 0; w comes first."""
    y = np.append(0.0, w)
    return np.roll(_end(right_side(numbers, stages), half, y) + y, -1)


def _slope(numbers, stages, w, half) -> np.ndarray:
    """Jacobian of `_rest` in w and half."""
    theta, mean, arrival_rate, service_rate, _ = numbers
    change, count, gamma = right_side(numbers, stages), stages + 1, stages / mean

    def both(time: float, flat: np.ndarray) -> np.ndarray:
        y, around = flat[:count], flat[count:].reshape(count, stages)
        flow = gamma * around
        flow[0] = -arrival_rate * theta / np.cosh(theta * y[0] / 2) ** 2 * around[0]
        x = flow[-1] - service_rate * around[0]
        return np.concatenate([change(time, y), x, (flow[:-1] - flow[1:]).ravel()])

    one = np.eye(count, stages, -1)
    flat = _end(both, half, np.concatenate([[0.0], w, one.ravel()]))
    around = flat[count:].reshape(count, stages) + one
    return np.roll(np.column_stack([around, change(half, flat[:count])]), -1, axis=0)


def _end(change, time: float, y: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """The state after so long; with times, x at these."""
    found = solve_ivp(change, (0, time), y, "DOP853", times, rtol=1e-13, atol=1e-13)
    return found.y[:, -1] if times is None else found.y[0]


def _measures(numbers, stages, w, half) -> np.ndarray:
    """Amplitude and period of the cycle through (0, w)."""
    change, y = right_side(numbers, stages), np.append(0.0, w)
    times = np.linspace(0, half, SAMPLES + 1)
    time = times[np.argmax(np.abs(_end(change, half, y, times)))]
    # Within a step a solution is good enough for a start only.
    for _ in range(3):
        speed = change(time, _end(change, time, y))
        time -= speed[0] / (stages / numbers[1] * speed[-1] - numbers[3] * speed[0])
    return np.array([abs(_end(change, time, y)[0]), 2 * half])
