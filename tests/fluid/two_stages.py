"""Two stages by another solver: the imbalance, when it settles, its largest values, slopes."""

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

import jaxlb as lb

NAMES = ["arrival_rate", "service_rate", "delay.mean", "routing.sensitivity"]
HORIZON = 20.0
# lambda, mu, D, theta for L = 2, and x at time zero: one falls to the level at once, one comes back
# twice, one is far from linear.
CASES = [
    ((15.0, 1.0, 1.0, 0.55 / 15), 1.0),
    ((15.0, 1.0, 1.0, 0.2), 1.0),
    ((15.0, 1.2, 0.8, 0.2), 20.0),
]


def system(numbers, delay: Any, *stages):
    arrival_rate, service_rate, mean, theta = numbers
    return lb.System(arrival_rate, service_rate, delay(mean, *stages), lb.Logit(theta))


def velocity(numbers, y):
    """The difference system (6)-(8) with two stages."""
    arrival_rate, service_rate, mean, theta = numbers
    stage, (x, w_1, w_2) = 2 / mean, y
    inflow = -2 * arrival_rate * np.tanh(theta * x / 2)
    return stage * w_2 - service_rate * x, inflow - stage * w_1, stage * (w_1 - w_2)


def path(numbers, start, end):
    """y on [0, end] by another solver, to 1e-12 at the end and 1e-10 before."""
    return solve_ivp(
        lambda _, y: velocity(numbers, y),
        (0, end),
        [start, 0, 0],
        "DOP853",
        rtol=1e-13,
        atol=1e-15 * abs(start),
        dense_output=True,
    )


def seen(numbers, start):
    times = np.linspace(0, HORIZON, 20_001)
    return times, np.abs(path(numbers, start, HORIZON).sol(times)[0])


def settling(numbers, start, level):
    """Newton's method on the last crossing, each step from time zero."""
    times, x = seen(numbers, start)
    time = times[np.flatnonzero(x > level)[-1]]
    for _ in range(4):
        y = path(numbers, start, time).y[:, -1]
        time -= (abs(y[0]) - level) / (np.sign(y[0]) * velocity(numbers, y)[0])
    return time


def peak(numbers, start, near):
    """|x| at its maximum there; its own time matters to second order."""
    solution = path(numbers, start, near + 0.3).sol
    time = brentq(lambda t: velocity(numbers, solution(t))[0], near - 0.2, near + 0.2, xtol=1e-9)
    return abs(path(numbers, start, time).y[0, -1])


def tops(x):
    """Where samples have their local maxima."""
    return 1 + np.flatnonzero((x[1:-1] >= x[:-2]) & (x[1:-1] > x[2:]))


def slopes_of(function, numbers):
    """Central differences of steps 1e-3 and 2e-3, relative, and Richardson's combination."""
    slopes = []
    for k, number in enumerate(numbers):
        step = 1e-3 * number * np.eye(len(numbers))[k]
        fine, coarse = (
            (function(numbers + m * step) - function(numbers - m * step)) / (2e-3 * m * number)
            for m in (1, 2)
        )
        slopes.append((4 * fine - coarse) / 3)
    return np.array(slopes)


def columns(found):
    rows = {row.name: row for row in found.rows()}
    return np.array([rows[name].derivative for name in NAMES]), rows
