"""Symmetric equilibrium: where the fluid limit is at rest with every server alike."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .delays import AbstractPhaseDelay
from .system import System


def equilibrium(system: System) -> Float[Array, "servers compartments"]:
    """Jobs at balance per unit of scale: lambda times the time spent in each compartment.

    With an Erlang delay lambda D / L in each phase, and lambda / mu in service, whatever the rule.
    A delay without phases leaves the jobs in service only.

    **Raises:** `ValueError` unless all servers have one service rate; where the rates are traced
    and differ, the result is NaN.
    """
    delay = system.delay
    in_transit = delay.occupancy() if isinstance(delay, AbstractPhaseDelay) else jnp.zeros(0)
    time = jnp.append(in_transit, 1 / system.common_service_rate)
    return jnp.broadcast_to(system.arrival_rate * time, (system.num_servers, len(time)))
