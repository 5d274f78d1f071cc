"""Peers: the direct method and tau-leaping of GillesPy2, in C++."""

import importlib
from typing import Any

import numpy as np

from .case import Case, Simulator

# An extra, and without types.
gillespy2 = importlib.import_module("gillespy2")


def direct(case: Case) -> Simulator:
    """The direct method."""
    return _simulator(case, gillespy2.SSACSolver(model=_model(case)))


def leaping(case: Case) -> Simulator:
    """Tau-leaping with steps of its own choice, by its own tolerance of 0.03."""
    return _simulator(case, gillespy2.TauLeapingCSolver(model=_model(case)))


def fixed_leaping(case: Case) -> Simulator:
    """Tau-leaping with steps of 0.05 s."""
    step = {"constant_tau_stepsize": 0.05}
    return _simulator(case, gillespy2.TauLeapingCSolver(model=_model(case), **step), **step)


def _model(case: Case) -> Any:
    """The two servers as reactions."""
    model = gillespy2.Model(name="two_servers")
    names = [name for server in case.compartments for name in server]
    start = {case.compartments[1][-1]: case.scale}
    model.add_species(
        [
            gillespy2.Species(name=name, initial_value=start.get(name, 0), mode="discrete")
            for name in names
        ]
    )
    queues = [server[-1] for server in case.compartments]
    # Counts may be unsigned: their difference is only taken as a quotient of exponentials.
    weights = [f"exp({case.slope} * {queue})" for queue in queues]
    reactions = []
    for server, other in zip(case.compartments, reversed(weights), strict=True):
        share = f"{other} / ({weights[0]} + {weights[1]})"
        reactions.append(({}, {server[0]: 1}, f"{float(case.inflow)} * {share}"))
    for origin, target, rate in case.moves:
        reactions.append(({origin: 1}, {target: 1} if target else {}, f"{float(rate)} * {origin}"))
    model.add_reaction(
        [
            gillespy2.Reaction(
                name=f"event{k}", reactants=reactants, products=products, propensity_function=rate
            )
            for k, (reactants, products, rate) in enumerate(reactions)
        ]
    )
    model.timespan(gillespy2.TimeSpan(case.times))
    return model


def _simulator(case: Case, solver: Any, **options) -> Simulator:
    """Paths by a solver, which is compiled at its first run and kept."""
    queues = [server[-1] for server in case.compartments]

    def paths(seed: int, replicas: int) -> np.ndarray:
        # Seeds must be positive.
        found = solver.run(number_of_trajectories=replicas, seed=seed + 1, **options)
        return np.stack([np.stack([path[q] for q in queues], axis=1) for path in found])

    return paths
