"""BFGS with a weak Wolfe line search: descent of a function that has kinks.

It learns where the function is steep and where it is smooth, and goes on down along a kink where
steepest descent would chatter across it.

**Source:** Lewis and Overton (2013), Mathematical Programming 141.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

# Of the method, and of each of its line searches.
STEPS, TRIES = 200, 30


class Point(NamedTuple):
    """A point, the function's value and gradient there, and what else was found with them."""

    at: np.ndarray
    value: float
    gradient: np.ndarray
    more: Any


def quasi_newton(
    function: Callable[[np.ndarray], tuple[float, np.ndarray, Any]],
    start: np.ndarray,
    steps: int = STEPS,
) -> Iterator[Point]:
    """Each point that it moves to, in turn; it ends where no step goes down.

    `function` gives a value, a gradient and anything else; infinity where there is no value.
    """
    at = start
    value, gradient, _ = function(at)
    inverse = np.eye(len(at)) / max(np.linalg.norm(gradient), 1e-300) / 10
    for _ in range(steps):
        step = -inverse @ gradient
        slope, low, high, length = gradient @ step, 0.0, np.inf, 1.0
        for _ in range(TRIES):
            there, turned, more = function(at + length * step)
            if not there <= value + 1e-4 * length * slope:
                high = length
            elif turned @ step < 0.5 * slope:
                low = length
            else:
                break
            length = 2 * low if np.isinf(high) else (low + high) / 2
        else:
            return
        moved, change = length * step, turned - gradient
        at, value, gradient = at + moved, there, turned
        yield Point(at, value, gradient, more)
        if not moved @ change > 0:
            return
        share = np.eye(len(at)) - np.outer(moved, change) / (moved @ change)
        inverse = share @ inverse @ share.T + np.outer(moved, moved) / (moved @ change)
