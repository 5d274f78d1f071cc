"""The systems that every integrator of the fluid limit is timed on, and their true solutions.

Differences of two servers, equations (6)-(8), from x = -1 with none in transit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.integrate import solve_ivp

# theta, D, lambda, mu, and x at time zero.
PARAMETERS = 5
RANGES = (0.1, 5.0), (0.2, 5.0), (1.0, 20.0), (0.5, 2.0)


@dataclass(frozen=True)
class FluidCase:
    """Systems drawn log-uniformly, and times at which x is wanted."""

    stages: int
    lanes: int = 64
    horizon: float = 20.0
    records: int = 201
    seed: int = 0

    @property
    def times(self) -> np.ndarray:
        """Of the records, evenly spaced from zero."""
        return np.linspace(0.0, self.horizon, self.records)

    @property
    def numbers(self) -> np.ndarray:
        """Parameters of each system, shape (lanes, 5)."""
        rng = np.random.default_rng(self.seed)
        drawn = [np.exp(rng.uniform(np.log(low), np.log(high), self.lanes)) for low, high in RANGES]
        return np.column_stack([*drawn, -np.ones(self.lanes)])


# Of every system x at all times, or the slopes of the mean of x^2 in each parameter.
Integrator = Callable[[], np.ndarray]


def right_side(numbers: np.ndarray, stages: int) -> Callable[[float, np.ndarray], np.ndarray]:
    """dy/dt of y = (x, w_1, ..., w_L)."""
    theta, mean, arrival_rate, service_rate = numbers[:4]
    gamma = stages / mean

    def change(_: float, y: np.ndarray) -> np.ndarray:
        flow = gamma * y
        flow[0] = -2 * arrival_rate * np.tanh(theta * y[0] / 2)
        found = np.empty_like(y)
        found[0] = flow[-1] - service_rate * y[0]
        found[1:] = flow[:-1] - flow[1:]
        return found

    return change


def start(numbers: np.ndarray, stages: int) -> np.ndarray:
    """y at time zero."""
    return np.append(numbers[4], np.zeros(stages))


def truth(numbers: np.ndarray, stages: int, times: np.ndarray) -> np.ndarray:
    """x at the times by DOP853 at 1e-13, anew from each to the next.

    What it interpolates inside its steps is wrong by up to 2e-6 where stability limits the steps.
    """
    change, y, found = right_side(numbers, stages), start(numbers, stages), [numbers[4]]
    for begin, end in pairwise(times):
        y = solve_ivp(change, (begin, end), y, "DOP853", rtol=1e-13, atol=1e-13).y[:, -1]
        found.append(y[0])
    return np.array(found)


def true_slopes(numbers: np.ndarray, stages: int, times: np.ndarray) -> np.ndarray:
    """Slopes of the mean of x^2 in each parameter, by central differences of fourth order."""
    slopes = []
    for unit in np.diag(3e-4 * np.abs(numbers)):
        means = [
            np.mean(truth(numbers + shift * unit, stages, times) ** 2) for shift in (-2, -1, 1, 2)
        ]
        slopes.append(np.dot(means, [1, -8, 8, -1]) / (12 * unit.max()))
    return np.array(slopes)


def lsoda(case: FluidCase) -> Integrator:
    """SciPy's LSODA at 1e-8."""

    def run() -> np.ndarray:
        return np.array([_lsoda(numbers, case) for numbers in case.numbers])

    return run


def _lsoda(numbers: np.ndarray, case: FluidCase) -> np.ndarray:
    change, y = right_side(numbers, case.stages), start(numbers, case.stages)
    ends = 0, case.horizon
    return solve_ivp(change, ends, y, "LSODA", case.times, rtol=1e-8, atol=1e-8).y[0]
