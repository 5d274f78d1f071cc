"""The two systems of these tests, and their linearised imbalance written apart from `jaxlb`."""

import numpy as np

import jaxlb as lb

# Arrival rate, service rate, mean delay.
A, B = (15.0, 1.0, 1.0), (10.0, 1.0, 4.0)


def erlang(case, stages, rule):
    """A system with an Erlang delay."""
    arrival_rate, service_rate, mean = case
    return lb.System(arrival_rate, service_rate, lb.Erlang(mean, stages), rule)


def open_loop(case, stages):
    """Equation (12) without feedback, in (x, w_1, ..., w_L)."""
    _, service_rate, mean = case
    stage = stages / mean
    matrix = np.zeros((stages + 1, stages + 1))
    matrix[0, 0], matrix[0, -1] = -service_rate, stage
    matrix[1:, 1:] = stage * (np.eye(stages, k=-1) - np.eye(stages))
    return matrix


def noise(case, stages):
    """Of the differences of two servers at balance, where every flow is lambda at each."""
    flows = np.zeros((stages + 2, stages + 1))
    for event in range(stages + 2):
        # Into stage 1, from stage to stage, into service, out.
        if event > 0:
            flows[event, event if event <= stages else 0] -= 1
        if event <= stages:
            flows[event, event + 1 if event < stages else 0] += 1
    return 2 * case[0] * flows.T @ flows


def closed_loop(case, stages, gains):
    """With u = -gains . y."""
    matrix = open_loop(case, stages)
    matrix[1] -= gains
    return matrix


def gains_of(system):
    """kappa (1, alpha) of a weighted rule."""
    rule = system.routing
    return float(system.arrival_rate * rule.sensitivity) * np.append(1.0, rule.weights)
