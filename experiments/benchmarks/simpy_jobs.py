"""A peer for exact simulation: the paper's own way, job by job in SimPy."""

import numpy as np

from tests.oracles import simpy_paths

from .case import Case, Simulator


def jobs(case: Case) -> Simulator:
    """Processes of SimPy, one a job."""

    def paths(seed: int, replicas: int) -> np.ndarray:
        return simpy_paths(
            np.random.default_rng(seed),
            case.times,
            replicas=replicas,
            scale=case.scale,
            arrival_rate=case.arrival_rate,
            service_rate=case.service_rate,
            action_delay=case.action_delay,
            stages=case.stages,
            sensitivity=case.sensitivity,
        )[..., -1]

    return paths
