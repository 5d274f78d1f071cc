"""A peer for exact simulation: Gillespie's direct method in plain loops, compiled by Numba."""

import importlib
import math

import numpy as np

from .case import Case, Simulator

# An extra, and without types.
numba = importlib.import_module("numba")


def direct(case: Case) -> Simulator:
    """One path after the other."""
    numbers = case.scale, case.arrival_rate, case.service_rate, case.action_delay, case.stages

    def paths(seed: int, replicas: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        times, sensitivity = case.times, case.sensitivity
        return np.stack([path(rng, times, *numbers, sensitivity) for _ in range(replicas)])

    return paths


@numba.njit
def path(rng, times, scale, arrival_rate, service_rate, mean, stages, sensitivity):
    """Jobs in service of two servers at each time, from the paper's start."""
    jobs = np.zeros((2, stages + 1), np.int64)
    jobs[1, stages] = scale
    records = np.zeros((len(times), 2), np.int64)
    stage_rate, inflow = stages / mean, 2 * scale * arrival_rate
    now, record = 0.0, 0
    while record < len(times):
        waiting = jobs[0, :stages].sum() + jobs[1, :stages].sum()
        serving = jobs[0, stages] + jobs[1, stages]
        total = inflow + stage_rate * waiting + service_rate * serving
        now += rng.exponential(1 / total)
        while record < len(times) and times[record] < now:
            records[record, 0], records[record, 1] = jobs[0, stages], jobs[1, stages]
            record += 1
        draw = rng.random() * total
        if draw < inflow:
            excess = sensitivity * (jobs[0, stages] - jobs[1, stages]) / scale
            server = 0 if rng.random() * (1 + math.exp(excess)) < 1 else 1
            jobs[server, 0] += 1
            continue
        draw -= inflow
        for server in range(2):
            for stage in range(stages + 1):
                rate = jobs[server, stage] * (stage_rate if stage < stages else service_rate)
                if 0 <= draw < rate:
                    jobs[server, stage] -= 1
                    if stage < stages:
                        jobs[server, stage + 1] += 1
                draw -= rate
    return records
