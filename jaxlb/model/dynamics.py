"""Dynamics: the rates of events and their net effect. The only statement of the model.

`jobs[i, c]` counts jobs bound for server i in compartment c: the delay phases in order, then
service. Every event moves one job of one server: from the dispatcher into a compartment, between
compartments, or out when served. With a chain of stages, event c fills compartment c and event
c + 1 empties it, so that the fluid limit is

    d jobs[i, c] / dt = propensities[i, c] - propensities[i, c + 1],

equations (2)-(4) of the paper. The fluid, the difference mode and every stochastic method call
these functions; none restates them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from .. import _checks
from .delays import AbstractPhaseDelay
from .routing import AbstractLogit
from .system import System

# How far shares may be from one in total: the rounding of a rule in single precision.
SHARES_TOLERANCE = 1e-5


def routes(delay: AbstractPhaseDelay) -> tuple[np.ndarray, np.ndarray]:
    """Source and target of each event of a server; the same for every server.

    Source 0 is the dispatcher and source c + 1 compartment c; target c is compartment c, and the
    last one is completion.
    """
    source, target = delay.routes()
    service = delay.num_phases
    return np.append(source, service + 1), np.append(target, service + 1)


def stoichiometry(delay: AbstractPhaseDelay) -> np.ndarray:
    """Change of each compartment (column) by each event (row)."""
    source, target = routes(delay)
    change = np.zeros((len(source), delay.num_phases + 3), int)
    np.add.at(change, (np.arange(len(source)), source), -1)
    np.add.at(change, (np.arange(len(source)), target + 1), 1)
    return change[:, 1:-1]


def event_rates(
    delay: AbstractPhaseDelay,
    service_rates: Float[Array, " servers"],
    inflow: Float[Array, "servers *replicas"],
    jobs: Num[Array, "servers compartments *replicas"],
) -> Float[Array, "servers events *replicas"]:
    """Rate of each event, 1/s, given what the dispatcher sends to each server; linear in both."""
    moves = delay.rates().astype(inflow.dtype)
    moves = jnp.broadcast_to(moves, (len(service_rates), len(moves)))
    per_unit = jnp.concatenate([moves, service_rates[:, None]], axis=1)
    supply = jnp.concatenate([inflow[:, None], jobs.astype(inflow.dtype)], axis=1)
    if not _is_chain(delay):
        supply = supply[:, routes(delay)[0]]
    return per_unit.reshape(*per_unit.shape, *[1] * (supply.ndim - 2)) * supply


def net_change(
    delay: AbstractPhaseDelay, events: Num[Array, "servers events *replicas"]
) -> Num[Array, "servers compartments *replicas"]:
    """Change of each compartment by events, as rates or as counts."""
    if _is_chain(delay):
        return events[:, :-1] - events[:, 1:]
    return jnp.einsum("se...,ec->sc...", events, stoichiometry(delay).astype(events.dtype))


def shares(
    system: System, jobs: Num[Array, "servers compartments *replicas"], scale: Any = 1.0
) -> Any:
    """Share of arrivals that each server gets, shape (servers, *replicas).

    Raises `ValueError` if the system's rule returns another shape.
    """
    seen = jobs / scale
    rule = system.routing
    if not isinstance(rule, AbstractLogit):
        # Any other rule looks at one replica.
        for _ in seen.shape[2:]:
            rule = jax.vmap(rule, -1, -1)
    return as_shares(rule(seen[:, -1], seen[:, :-1]), seen[:, -1])


def as_shares(found: Any, queue: Float[Array, "servers *replicas"]) -> Any:
    """What a rule has returned, one number for each queue; else `ValueError`."""
    try:
        # A rule may compute in a wider type than the state it is shown.
        share = jnp.asarray(found, queue.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`routing` must return an array of shares, got {found!r}.") from error
    if share.shape != queue.shape:
        shape = share.shape[: share.ndim - (queue.ndim - 1)]
        raise ValueError(
            f"`routing` must return shares of shape ({len(queue)},), got shape {shape}."
        )
    return share


def are_shares(share: Float[Array, "servers *replicas"]) -> Bool[Array, "*replicas"]:
    """Whether these are probabilities: none negative, and together one."""
    return (share >= 0).all(axis=0) & (jnp.abs(share.sum(axis=0) - 1) <= SHARES_TOLERANCE)


def propensities(
    system: System, jobs: Num[Array, "servers compartments *replicas"], scale: Any = 1.0
) -> Float[Array, "servers events *replicas"]:
    """Rate of every event, 1/s; `jobs` are counts of a system of the given scale.

    The order of events is that of `routes`: routing, moves among phases, completion.
    """
    inflow = scale * system.num_servers * system.arrival_rate * shares(system, jobs, scale)
    delay = system.phase_delay("jobs to move through")
    return event_rates(delay, system.service_rates, inflow, jobs)


def drift(
    system: System, jobs: Float[Array, "servers compartments"]
) -> Float[Array, "servers compartments"]:
    """Right-hand side of the fluid limit, jobs per unit of scale and second: (2)-(4)."""
    delay = system.phase_delay("the fluid limit")
    return net_change(delay, propensities(system, jobs))


def initial_jobs(
    system: System, initial: Any, scale: Any = 1.0
) -> Float[Array, "servers compartments"]:
    """Jobs at time zero.

    `initial` is either all of them, shape (servers, compartments), or those in service, shape
    (servers,), with nothing in transit. `None` is the paper's start: `scale` jobs in service at
    each server but the first, none elsewhere. A delay without phases has one compartment for jobs
    in transit, which must be empty, for nobody knows how long they have been there. Raises
    `ValueError` on another shape or a bad value.
    """
    in_phases = isinstance(system.delay, AbstractPhaseDelay)
    servers, phases = system.num_servers, system.num_phases if in_phases else 1
    if initial is None:
        dtype = jnp.result_type(scale, *system.numbers)
        initial = jnp.full((servers,), scale, dtype).at[0].set(0)
    in_service = _checks.ndim("initial", initial) == 1
    shape = (servers,) if in_service else (servers, phases + 1)
    jobs = _checks.not_negative("initial", initial, "jobs", shape)
    if not (in_phases or in_service):
        none = "without jobs in transit, for the delay has no phases"
        _checks.require("initial", jobs, lambda v: v[:, 0] == 0, none, "jobs")
    return jnp.pad(jobs[:, None], ((0, 0), (phases, 0))) if in_service else jobs


def _is_chain(delay: AbstractPhaseDelay) -> bool:
    source, target = delay.routes()
    chain = np.arange(delay.num_phases + 1)
    return np.array_equal(source, chain) and np.array_equal(target, chain)
