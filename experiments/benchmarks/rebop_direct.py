"""A peer for exact simulation: Gillespie's direct method of rebop, in Rust."""

import importlib

import numpy as np

from .case import Case, Simulator

# An extra, and without types.
rebop = importlib.import_module("rebop")


def direct(case: Case) -> Simulator:
    """Rates of routing as expressions, all others by mass action."""
    model = rebop.Gillespie()
    queues = [names[-1] for names in case.compartments]
    for names, other in zip(case.compartments, reversed(queues), strict=True):
        excess = f"{case.slope} * ({names[-1]} - {other})"
        model.add_reaction(f"{case.inflow} / (1 + exp({excess}))", [], [names[0]])
    for origin, target, rate in case.moves:
        model.add_reaction(rate, [origin], [target] if target else [])
    start = {queues[1]: case.scale}

    def path(seed: list[int]) -> np.ndarray:
        # The sparse form is the faster one here.
        found = model.run(
            start, case.horizon, case.records - 1, rng=seed, sparse=True, var_names=queues
        )
        return np.stack([found[name].values for name in queues], axis=1)

    return lambda seed, replicas: np.stack([path([seed, k]) for k in range(replicas)])
