"""Closed forms of the paper and of textbooks in NumPy and mpmath, written apart from `jaxlb`.

What takes `r` computes with 40 digits; Python and NumPy numbers enter as the doubles that they are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp
import numpy as np

Transform = Callable[[Any], Any]

# Not a block inside each function: mpmath's derivatives call them with more digits yet.
mp.mp.dps = 40


def exact(value: Any) -> Any:
    """`value` in mpmath, without loss."""
    if isinstance(value, mp.mpf | mp.mpc):
        return value
    number = complex(value)
    return mp.mpmathify(number if number.imag else number.real)


def erlang_transform(mean: Any, stages: int, r: Any) -> Any:
    """(1 + r D / L)^-L."""
    return (1 + exact(r) * exact(mean) / stages) ** -stages


def deterministic_transform(mean: Any, r: Any) -> Any:
    """exp(-r D)."""
    return mp.exp(-exact(r) * exact(mean))


def mixed_erlang_transform(mean: Any, weights: Sequence[Any], r: Any) -> Any:
    """Sum of weights[k - 1] (1 + r / rate)^-k, with the rate that gives the mean."""
    weights = [exact(weight) for weight in weights]
    per_stage = exact(mean) / sum(k * weight for k, weight in enumerate(weights, 1))
    return sum(weight * (1 + exact(r) * per_stage) ** -k for k, weight in enumerate(weights, 1))


def phase_type_transform(initial: Sequence[Any], generator: Any, r: Any) -> Any:
    """initial (r I - generator)^-1 exit rates."""
    phases = len(initial)
    rates = mp.matrix([[exact(rate) for rate in row] for row in np.asarray(generator)])
    leave = [-sum(rates[i, j] for j in range(phases)) for i in range(phases)]
    passed = mp.lu_solve(exact(r) * mp.eye(phases) - rates, mp.matrix(leave))
    return sum(exact(start) * passed[i] for i, start in enumerate(initial))


def mean_and_squared_cv(transform: Transform) -> tuple[float, float]:
    """From the first two derivatives of the transform at zero."""
    mean, second = -mp.diff(transform, 0), mp.diff(transform, 0, 2)
    return float(mean.real), float((second / mean**2 - 1).real)


def characteristic(transform: Transform, service_rate: Any, gain: Any, r: Any) -> Any:
    """Left-hand side of equation (17): r + mu + lambda theta f(r)."""
    return exact(r) + exact(service_rate) + exact(gain) * transform(r)


def root_near(transform: Transform, service_rate: Any, gain: Any, guess: Any) -> Any:
    """Root of equation (17) next to `guess`."""
    return mp.findroot(
        lambda r: characteristic(transform, service_rate, gain, r), exact(guess), tol=1e-70
    )


def rightmost_erlang_root(service_rate: Any, gain: Any, mean: Any, stages: int) -> Any:
    """Rightmost root of the polynomial (18), the upper one of a pair.

    In u = 1 + r / gamma: (gamma (u - 1) + mu) u^L + lambda theta.
    """
    stage = stages / exact(mean)
    inner = [mp.mpf(0)] * (stages - 1)
    ascending = [exact(gain), *inner, exact(service_rate) - stage, stage]
    roots = mp.polyroots(ascending, maxsteps=500, extraprec=200, asc=True)
    roots = [stage * (u - 1) for u in roots]
    # mpmath may give either of a pair with a real part larger by its last digit.
    root = max(roots, key=lambda r: r.real)
    return mp.mpc(root.real, abs(root.imag))


def rightmost_fixed_delay_root(service_rate: Any, gain: Any, mean: Any) -> Any:
    """Rightmost root of r + mu + lambda theta exp(-r D) by Lambert's W function."""
    service_rate, gain, mean = exact(service_rate), exact(gain), exact(mean)
    root = mp.lambertw(-gain * mean * mp.exp(service_rate * mean)) / mean - service_rate
    return mp.mpc(root.real, abs(root.imag))


def logit(sensitivity: float, load: Any) -> np.ndarray:
    """Equation (1)."""
    load = np.asarray(load)
    odds = np.exp(-sensitivity * (load - load.min()))
    return odds / odds.sum()


def chain_drift(
    arrival_rate: float,
    service_rates: Sequence[float],
    mean: float,
    stages: int,
    sensitivity: float,
    jobs: np.ndarray,
) -> np.ndarray:
    """Equations (2)-(4), for any number of servers; phases in order, then service."""
    servers, stage = len(jobs), stages / mean
    share = logit(sensitivity, jobs[:, -1])
    change = np.empty_like(jobs)
    for i in range(servers):
        change[i, 0] = servers * arrival_rate * share[i] - stage * jobs[i, 0]
        for phase in range(1, stages):
            change[i, phase] = stage * jobs[i, phase - 1] - stage * jobs[i, phase]
        change[i, -1] = stage * jobs[i, stages - 1] - service_rates[i] * jobs[i, -1]
    return change


def phase_type_drift(
    arrival_rate: float,
    service_rates: Sequence[float],
    initial: np.ndarray,
    generator: np.ndarray,
    sensitivity: float,
    jobs: np.ndarray,
    weights: np.ndarray | float = 0.0,
) -> np.ndarray:
    """z_i' = N lambda p_i initial + z_i generator; q_i' = z_i . exit rates - mu_i q_i.

    `weights`: of jobs in each phase, in what the rule compares.
    """
    servers, leave = len(jobs), -generator.sum(axis=1)
    load = jobs[:, -1] + (jobs[:, :-1] * weights).sum(axis=1)
    inflow = servers * arrival_rate * logit(sensitivity, load)
    change = np.empty_like(jobs)
    for i in range(servers):
        change[i, :-1] = inflow[i] * initial + jobs[i, :-1] @ generator
        change[i, -1] = jobs[i, :-1] @ leave - service_rates[i] * jobs[i, -1]
    return change


def difference_matrix(gain: float, service_rate: float, mean: float, stages: int) -> np.ndarray:
    """A_L of equation (12), entry by entry; `gain` is lambda theta."""
    stage = stages / mean
    matrix = np.zeros((stages + 1, stages + 1))
    matrix[0, 0], matrix[0, stages] = -service_rate, stage
    matrix[1, 0] = -gain
    for phase in range(1, stages + 1):
        matrix[phase, phase] = -stage
        if phase > 1:
            matrix[phase, phase - 1] = stage
    return matrix


def queue_variance(arrival_rate: Any, service_rate: Any, gain: Any, mean: Any, stages: int) -> Any:
    """Stationary variance of the imbalance by linear noise: 4 lambda times the integral of x(t)^2.

    x starts at one with nothing under way, so that its transform is (r + gamma)^L / p(r), p being
    the polynomial (18); by Parseval the integral is a sum over the roots of p.
    """
    arrival_rate, service_rate, gain = exact(arrival_rate), exact(service_rate), exact(gain)
    stage = stages / exact(mean)
    inner = [mp.mpf(0)] * (stages - 1)
    ascending = [gain, *inner, service_rate - stage, stage]
    roots = mp.polyroots(ascending, maxsteps=500, extraprec=400, asc=True)

    def value(u):
        return (stage * (u - 1) + service_rate) * u**stages + gain

    def slope(u):
        return stage * u**stages + (stage * (u - 1) + service_rate) * stages * u ** (stages - 1)

    # With u = 1 + r / gamma, so that -r is at 2 - u.
    residues = [stage * u**stages * (2 - u) ** stages / slope(u) / value(2 - u) for u in roots]
    return 4 * arrival_rate * mp.re(mp.fsum(residues))


def counting_all_variance(arrival_rate: Any, service_rate: Any, gain: Any, mean: Any) -> Any:
    """The same where jobs in transit count in full, whatever the delay's law."""
    least = 1 + gain * mean
    return 2 * arrival_rate / service_rate * least / (least + gain / service_rate)


def imbalance_noise(arrival_rate: float, stages: int) -> np.ndarray:
    """Noise of (x, w_1, ..., w_L) at balance: every event of either server has rate lambda."""
    change = np.zeros((stages + 2, stages + 1))
    filled = [*range(1, stages + 1), 0]
    for event in range(stages + 1):
        change[event, filled[event]] += 1
        change[event + 1, filled[event]] -= 1
    return 2 * arrival_rate * change.T @ change
