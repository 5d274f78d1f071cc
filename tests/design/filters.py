"""Linear noise of rules with a memory, event by event in NumPy, written apart from `jaxlb`.

All are differences of two servers, per unit of scale; events of both come at twice the rate.
"""

import numpy as np
from scipy.linalg import null_space, solve_continuous_lyapunov


def stationary(matrix, noise, load, queue, gain):
    """Variance of the queue and standard deviation of the inflow, but for modes that never move."""
    moving = null_space(null_space(matrix.T, rcond=1e-12).T)
    if moving.size:
        found = solve_continuous_lyapunov(moving.T @ matrix @ moving, -moving.T @ noise @ moving)
        covariance = moving @ found @ moving.T
    else:
        covariance = solve_continuous_lyapunov(matrix, -noise)
    return covariance[queue, queue], gain * np.sqrt(load @ covariance @ load)


def moves(initial, generator, arrival_rate):
    """Rate, phase left and phase entered of each event on the way; -1 is outside."""
    leave = -generator.sum(axis=1)
    present = 2 * arrival_rate * np.linalg.solve(-generator.T, initial)
    for phase, chance in enumerate(initial):
        yield 2 * arrival_rate * chance, -1, phase
        yield present[phase] * leave[phase], phase, -1
        for other, rate in enumerate(generator[phase]):
            if other != phase:
                yield present[phase] * rate, phase, other


def filtered(initial, generator, believed, gains, weights, log, gain, arrival_rate):
    """State: phases, queue, estimates of a filter that takes the delay for `believed`."""
    initial, generator = np.asarray(initial), np.asarray(generator)
    start, rates = (np.asarray(part) for part in believed)
    phases, guesses = len(initial), len(start)
    size = phases + 1 + guesses
    load = np.concatenate([np.zeros(phases), [1], weights])
    matrix, noise = np.zeros((size, size)), np.zeros((size, size))
    matrix[:phases, :phases] = generator.T
    matrix[phases, :phases] = -generator.sum(axis=1)
    matrix[phases, phases] = -1.0
    matrix[phases + 1 :, :phases] = np.outer(gains, -generator.sum(axis=1))
    matrix[phases + 1 :, phases + 1 :] = rates.T + np.outer(gains, rates.sum(axis=1))
    matrix -= gain * np.outer(np.concatenate([initial, [0], start]), load)
    for rate, left, entered in [
        *moves(initial, generator, arrival_rate),
        (2 * arrival_rate, -2, -2),
    ]:
        step = np.zeros(size)
        if left == -2:
            step[phases] = -1
        elif left == -1:
            step[entered] = 1
            step[phases + 1 :] = log * start
        elif entered == -1:
            step[left], step[phases] = -1, 1
            step[phases + 1 :] = gains
        else:
            step[left], step[entered] = -1, 1
        noise += rate * np.outer(step, step)
    return stationary(matrix, noise, load, phases, gain)


def fading(initial, generator, level, decay, gain, arrival_rate):
    """A job of age t in transit counts level exp(-decay t): a state of phases, queue, and what the
    jobs in each phase count together."""
    initial, generator = np.asarray(initial), np.asarray(generator)
    phases = len(initial)
    identity = np.eye(phases)
    matrix = np.zeros((2 * phases + 1, 2 * phases + 1))
    matrix[:phases, :phases] = generator.T
    matrix[phases, :phases], matrix[phases, phases] = -generator.sum(axis=1), -1.0
    matrix[phases + 1 :, phases + 1 :] = generator.T - decay * identity
    load = np.concatenate([np.zeros(phases), np.ones(phases + 1)])
    matrix -= gain * np.outer(np.concatenate([initial, [0], level * initial]), load)

    def mean(power):
        """Of that power of what a job in each phase counts."""
        present = np.linalg.solve(-generator.T, initial)
        return (
            level**power
            * np.linalg.solve(power * decay * identity - generator.T, initial)
            / present
        )

    once, twice = mean(1), mean(2)
    queue = np.zeros(2 * phases + 1)
    queue[phases] = 1
    noise = 2 * arrival_rate * np.outer(queue, queue)
    for rate, left, entered in moves(initial, generator, arrival_rate):
        jobs, counted = np.zeros(2 * phases + 1), np.zeros(2 * phases + 1)
        if left == -1:
            jobs[entered], counted[phases + 1 + entered] = 1, 1
            first, second = level, level**2
        else:
            jobs[left], counted[phases + 1 + left] = -1, -1
            first, second = once[left], twice[left]
            if entered == -1:
                jobs += queue
            else:
                jobs[entered], counted[phases + 1 + entered] = 1, 1
        both = first * np.outer(jobs, counted)
        noise += rate * (np.outer(jobs, jobs) + both + both.T + second * np.outer(counted, counted))
    return stationary(matrix, noise, load, phases, gain)
