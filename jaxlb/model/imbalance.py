"""The difference mode: how far two servers are apart.

With x = q_1 - q_2 and w_l = z_{1,l} - z_{2,l}, subtracting the fluid equations of two alike servers
leaves a closed system in (x, w), equations (6)-(8) of the paper. Linearised about balance it is
dy/dt = A_L y with y = (x, w_1, ..., w_L): equations (9)-(12). With N alike servers the linear
system holds for the difference of any two of them.

Arrays are ordered as the paper orders y: first x, then the phases.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from . import dynamics
from .equilibrium import equilibrium
from .routing import AbstractLogit
from .system import System


def difference(jobs: Float[Array, "servers compartments"]) -> Float[Array, " modes"]:
    """y = (x, w_1, ..., w_L) of the first two servers."""
    return jnp.roll(jobs[0] - jobs[1], 1)


def share_difference(routing: AbstractLogit, y: Float[Array, " modes"]) -> Float[Array, ""]:
    """p_1 - p_2 = -tanh(theta s / 2), identity (5), where s is the difference in load.

    Accurate to rounding relative to itself, however small the imbalance.
    """
    load = routing.load(y[:1], y[None, 1:])[0]
    return -jnp.tanh(routing.sensitivity * load / 2)


def require_closed(system: System) -> None:
    """Raise `ValueError` unless the nonlinear difference system is closed: there are two servers,
    not known to differ in service rate, and the rule is a logit rule."""
    if system.num_servers != 2:
        raise ValueError(f"`num_servers` must be 2 here, got {system.num_servers}.")
    system.require_servers_alike()
    if not isinstance(system.routing, AbstractLogit):
        raise ValueError(
            f"`routing` must be a logit rule here, got {type(system.routing).__name__}."
        )


def drift(system: System, y: Float[Array, " modes"]) -> Float[Array, " modes"]:
    """Right-hand side of the nonlinear difference system (6)-(8), jobs per unit of scale, per s.

    **Raises:** `ValueError` where it is not closed.
    """
    require_closed(system)
    routing: Any = system.routing
    inflow = 2 * system.arrival_rate * share_difference(routing, y)
    return _carry(system, y, inflow)


def feedback(system: System) -> Float[Array, " modes"]:
    """Gradient at balance of the routed inflow's difference with respect to y, 1/s.

    (-lambda theta, 0, ..., 0) for `Logit`; for any other rule by differentiating it at the
    symmetric equilibrium, NaN if the rule does not share alike there. **Raises:** `ValueError`
    unless there are two or more servers of one service rate.
    """
    system.require_two_alike()
    origin = jnp.zeros(system.num_phases + 1, system.arrival_rate.dtype)
    routing = system.routing
    if isinstance(routing, AbstractLogit):
        # Two servers or many: the gain of a difference is the same.
        gain = 2 * jax.grad(lambda y: share_difference(routing, y))(origin)
        return system.arrival_rate * gain
    balance = equilibrium(system)

    def difference_of_shares(y):
        half = jnp.roll(y, -1) / 2
        share = dynamics.shares(system, balance.at[0].add(half).at[1].add(-half))
        return share[0] - share[1]

    gain = system.num_servers * system.arrival_rate * jax.grad(difference_of_shares)(origin)
    # Only a rule that treats servers alike has its balance here.
    share = dynamics.shares(system, balance) * system.num_servers
    return jnp.where(jnp.all(jnp.abs(share - 1) < 1e-3), gain, jnp.nan)


def linearised_drift(system: System, y: Float[Array, " modes"]) -> Float[Array, " modes"]:
    """Right-hand side A_L y of the linear difference system (9)-(11)."""
    return _carry(system, y, feedback(system) @ y)


def matrix(system: System) -> Float[Array, "modes modes"]:
    """A_L of equation (12): the Jacobian of `drift` at balance, 1/s."""
    origin = jnp.zeros(system.num_phases + 1, system.arrival_rate.dtype)
    return jax.jacfwd(lambda y: linearised_drift(system, y))(origin)


def eigenvector(system: System, root: Complex[Array, ""]) -> Complex[Array, " modes"]:
    """Eigenvector of A_L at one of its eigenvalues, with first entry one: equation (16)."""
    gain = feedback(system)
    response = system.phase_delay("an eigenvector").phase_transform(root)
    inflow = gain[0] / (1 - gain[1:] @ response)
    return jnp.concatenate([jnp.ones_like(response, shape=(1,)), inflow * response])


def total_drift(
    system: System, total: Float[Array, " compartments"]
) -> Float[Array, " compartments"]:
    """Right-hand side of the sum mode, phases then service, for servers of one service rate.

    Shares sum to one, so the total does not depend on the routing rule.
    """
    inflow = system.num_servers * system.arrival_rate
    delay = system.phase_delay("the sum mode")
    rate = system.common_service_rate[None]
    return dynamics.net_change(delay, dynamics.event_rates(delay, rate, inflow[None], total[None]))[
        0
    ]


def _carry(system: System, y: Float[Array, " modes"], inflow: Float[Array, ""]):
    """Move the differences through the phases and service, with the given inflow."""
    delay = system.phase_delay("the difference system")
    rate = system.common_service_rate[None]
    jobs = jnp.roll(y, -1)[None]
    change = dynamics.net_change(delay, dynamics.event_rates(delay, rate, inflow[None], jobs))
    return jnp.roll(change[0], 1)
