"""The network over one step with the dispatcher's shares held, or changing linearly: exact laws.

Jobs then move independently. With G the generator of one job, from phases to service and out, one
present in compartment c at the start is in c' at the end with probability exp(h G)[c, c']. Arrivals
of the step, routed by shares that go from p to p' linearly, leave independent Poisson counts of
means N eta lambda (p early + p' late), where

    late = h e phi_2(h G),    early + late = h e phi_1(h G),

e is where a job starts, phi_1(z) = (exp(z) - 1) / z and phi_2(z) = (exp(z) - 1 - z) / z^2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _exponential
from ..model import dynamics
from ..model.delays import AbstractPhaseDelay
from ..model.system import System


class Frozen(NamedTuple):
    """Laws of one step.

    - `stay`: chance to be in each compartment (last axis) at the end, from each.
    - `conditional`: chance that a job of a compartment is in the one of this rank among its
      `destinations`, given that it is in none before.
    - `early`, `late`: s.
    """

    stay: Float[Array, "servers compartments compartments"]
    conditional: Float[Array, "servers ranks compartments"]
    early: Float[Array, "servers compartments"]
    late: Float[Array, "servers compartments"]


def frozen(system: System, step_size: Float[Array, ""]) -> Frozen:
    """Laws of one step of this length, s > 0."""
    delay = system.phase_delay("a leap")
    places = destinations(delay)
    ranks = max(map(len, places))
    # A rank that a compartment does not have points to itself, with chance zero.
    order = np.array([[*row, *[c] * (ranks - len(row))] for c, row in enumerate(places)])
    there = np.array([np.arange(ranks) < len(row) for row in places])

    def of_server(service_rate):
        stay, gone, early, late = _laws(delay, service_rate, step_size)
        chance = jnp.take_along_axis(stay, order, axis=1) * there
        # That, or a later one, or gone: sums of chances, so that nothing cancels.
        rest = gone[:, None] + jnp.cumsum(chance[:, ::-1], axis=1)[:, ::-1]
        some = rest > 0
        conditional = jnp.where(some, chance, 0.0) / jnp.where(some, rest, 1.0)
        return stay, conditional.T, early, late

    return Frozen(*jax.vmap(of_server)(system.service_rates))


def longest_step(system: System) -> Float[Array, ""]:
    """The longest step for which `frozen` is right, s."""
    fastest = jnp.max(system.service_rates)
    if system.num_phases:
        delay: Any = system.delay
        fastest = jnp.maximum(fastest, jnp.max(-jnp.diag(delay.generator)))
    return _exponential.LARGEST / fastest


def destinations(delay: AbstractPhaseDelay) -> list[list[int]]:
    """Compartments that a job of each compartment can be in later, its own first."""
    source, target = dynamics.routes(delay)
    compartments = delay.num_phases + 1
    reached = np.eye(compartments, dtype=bool)
    inside = (source > 0) & (target < compartments)
    reached[source[inside] - 1, target[inside]] = True
    # Twice as many moves each time.
    for _ in range(compartments.bit_length()):
        reached = reached @ reached
    return [
        [c, *(int(d) for d in np.flatnonzero(reached[c]) if d != c)] for c in range(compartments)
    ]


def _laws(delay: Any, service_rate, step_size):
    """Chances of each compartment and of having left, from each; `early` and `late`."""
    phases = delay.num_phases
    # Without phases a job is in service at once.
    start = jnp.append(delay.initial, 0.0 if phases else 1.0)
    to_service = delay.exit_rates()
    # Two states more before, for the integrals, and one after, for jobs that have left.
    dtype = jnp.result_type(delay.generator, service_rate, step_size)
    rates = jnp.zeros((phases + 4, phases + 4), dtype)
    rates = rates.at[0, 1].set(1 / step_size).at[1, 2:-1].set(start)
    rates = rates.at[2:-2, 2:-2].set(delay.generator).at[2:-2, -2].set(to_service)
    rates = rates.at[-2, -2].set(-service_rate).at[-2, -1].set(service_rate)
    power = _exponential.of_generator(step_size * rates)
    late = power[0, 2:-1]
    return power[2:-1, 2:-1], power[2:-1, -1], jnp.maximum(power[1, 2:-1] - late, 0.0), late
