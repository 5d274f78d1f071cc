"""The systems of a deterministic delay that are timed, and their true trajectories.

x' = -2 lambda tanh(theta x(t - D) / 2) - mu x, without the first term before t = D: those of
`fluid_case` with infinitely many stages.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.integrate import solve_ivp

from .fluid_case import FluidCase


@dataclass(frozen=True)
class DelayCase(FluidCase):
    """The same numbers and times; `tolerance`: of solvers that have one, relative and absolute."""

    stages: int = 0
    tolerance: float = 1e-8


def truth(numbers: np.ndarray, times: np.ndarray) -> np.ndarray:
    """x at the times by the method of steps, with DOP853 at 1e-13.

    In the k-th delay the unknowns are x of all k delays so far, each as a function of the time
    since its beginning: an ordinary system without interpolation. It starts anew at each multiple
    of the delay and at each record.
    """
    theta, lag, arrival_rate, service_rate, x = numbers
    number = np.minimum(times // lag, times[-1] // lag).astype(int)
    begun, found = [x], np.empty(len(times))

    def change(_: float, x: np.ndarray) -> np.ndarray:
        routed = -2 * arrival_rate * np.tanh(theta * x / 2)
        return np.append(0.0, routed[:-1]) - service_rate * x

    for k in range(number[-1] + 1):
        here, y = number == k, np.array(begun)
        since = np.unique(np.concatenate([[0], np.clip(times[here] - k * lag, 0, lag), [lag]]))
        path = [y]
        for begin, end in pairwise(since):
            y = solve_ivp(change, (begin, end), y, "DOP853", rtol=1e-13, atol=1e-13).y[:, -1]
            path.append(y)
        at = np.searchsorted(since, np.clip(times[here] - k * lag, 0, lag))
        found[here] = np.array(path)[at, -1]
        begun.append(y[-1])
    return found
