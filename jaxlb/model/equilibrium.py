"""Symmetric equilibrium: where the fluid limit is at rest with every server alike."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .delays import AbstractPhaseDelay
from .system import System


def equilibrium(system: System) -> Float[Array, "servers compartments"]:
    """Jobs at balance per unit of scale: lambda times the time spent in each compartment.

    With an Erlang delay lambda D / L in each phase, and lambda / mu in service, whatever the rule.
    A delay without phases leaves the jobs in service only.

    **Raises:** `ValueError` unless all servers have one service rate; where the rates are traced
    and differ, the result is NaN.
    """
    rates = system.service_rates
    _checks.require("service_rate", rates, lambda v: v == v[0], "the same for every server", "1/s")
    service = jnp.where(rates == rates[0], 1 / rates, jnp.nan)
    delay = system.delay
    time = delay.occupancy() if isinstance(delay, AbstractPhaseDelay) else jnp.zeros(0)
    in_transit = jnp.broadcast_to(time, (system.num_servers, system.num_phases))
    return system.arrival_rate * jnp.concatenate([in_transit, service[:, None]], axis=1)
