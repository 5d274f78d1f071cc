"""Peers in JAX: the direct method and tau-leaping of stochastix."""

import importlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .case import Case, Simulator

# An extra, and without types.
stochastix = importlib.import_module("stochastix")
kinetics = importlib.import_module("stochastix.kinetics")


class Routing(kinetics.AbstractKinetics):
    """Jobs a second to the server whose queue is the first of two named."""

    inflow: float
    slope: float
    places: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, queues, inflow, slope, places=()):
        self._requires_species = queues
        self.inflow, self.slope, self.places = inflow, slope, places

    def _bind_to_network(self, species_map):
        places = tuple(species_map[name] for name in self._requires_species)
        return Routing(self._requires_species, self.inflow, self.slope, places)

    def propensity_fn(self, x, reactants, t=None, volume=1.0):
        """Events a second."""
        own, other = (x[place] for place in self.places)
        return self.inflow * jax.nn.sigmoid(self.slope * (other - own))

    def ode_rate_fn(self, x, reactants, t=None, volume=1.0):
        """As stochastic: its class demands one."""
        return self.propensity_fn(x, reactants, t, volume)


def direct(case: Case) -> Simulator:
    """The direct method."""
    return _simulator(case, stochastix.DirectMethod())


def leaping(case: Case) -> Simulator:
    """Tau-leaping with steps of its own choice, by its own tolerance of 0.03."""
    return _simulator(case, stochastix.TauLeaping())


def _network(case: Case):
    queues = [server[-1] for server in case.compartments]
    reactions = []
    for server, other in zip(case.compartments, reversed(queues), strict=True):
        rule = Routing((server[-1], other), case.inflow, case.slope)
        reactions.append(stochastix.Reaction(f"0 -> {server[0]}", rule))
    for origin, target, rate in case.moves:
        law = kinetics.MassAction(rate)
        reactions.append(stochastix.Reaction(f"{origin} -> {target or 0}", law))
    return stochastix.ReactionNetwork(reactions)


def _simulator(case: Case, solver) -> Simulator:
    """Paths from record to record, as its fast form keeps but the last state; one path at a time,
    which is faster on a core than several together."""
    network = _network(case)
    queues = [server[-1] for server in case.compartments]
    places = np.array([network.species.index(name) for name in queues])
    start = jnp.zeros(len(network.species)).at[places[1]].set(case.scale)
    times = jnp.asarray(case.times)

    def leg(state, given):
        key, begin, end = given
        found = stochastix.faststochsimsolve(
            key, network, state, begin, end, 10**8, solver, save_propensities=False
        )
        return found.x[-1], found.x[-1][places]

    @jax.jit
    def path(key):
        keys = jax.random.split(key, len(times) - 1)
        _, records = jax.lax.scan(leg, start, (keys, times[:-1], times[1:]))
        return jnp.concatenate([start[places][None], records])

    def paths(seed: int, replicas: int) -> np.ndarray:
        keys = jax.random.split(jax.random.key(seed), replicas)
        return np.stack([np.asarray(path(key)) for key in keys])

    return paths
