"""The score of exact paths: derivative of the log-likelihood of a path in every parameter.

With it, d E[f] = E[f d log L] = Cov(f, d log L), for the score has mean zero: no path is perturbed,
so that f need not be smooth. If event e of server i happens N times, at a rate u s that is the
product of a parameter's part u and the path's part s (a share, or a count of jobs),

    d log L = sum over i, e of (N - integral of u s dt) d log u + sum over arrivals of d log p,

where p is the share of the server chosen. Only the second sum needs the derivative of the rule, of
any form, at each arrival; for the first it is enough to keep the brackets.

A pair `init`, `step`, and `score`. Replicas are the last axis of every array.

Source: Glynn (1990), Communications of the ACM 33(10), 75-84.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..model import dynamics
from ..model.system import System
from . import exact


class ScoreState(NamedTuple):
    """An exact path and what its score is made of.

    - `jobs`, `time_left`: as in `exact.ExactState`.
    - `surplus`: events that happened less those expected from their rates.
    - `routing`: score of the decisions taken, one array for each of the rule.
    """

    jobs: Int[Array, "servers compartments replicas"]
    time_left: Float[Array, " replicas"]
    surplus: Float[Array, "servers events replicas"]
    routing: PyTree


def init(
    jobs: Int[Array, "servers compartments replicas"],
    time_left: Float[Array, " replicas"],
    system: System,
) -> ScoreState:
    """State before the first event, with the time until the record, s."""
    events = len(dynamics.routes(system.phase_delay("exact simulation"))[0])
    replicas = len(time_left)
    surplus = jnp.zeros((system.num_servers, events, replicas), time_left.dtype)
    rule, _ = _parts(system.routing)
    return ScoreState(
        jobs,
        time_left,
        surplus,
        jax.tree.map(lambda number: jnp.zeros((*number.shape, replicas), number.dtype), rule),
    )


def step(
    uniforms: Float[Array, "2 replicas"],
    state: ScoreState,
    scale: Float[Array, ""],
    system: System,
) -> tuple[ScoreState, exact.ExactInfo]:
    """One event, or none, exactly as in `exact.step`."""
    before = exact.init(state.jobs, state.time_left)
    after, info = exact.step(uniforms, before, scale, system)
    waited = state.time_left - after.time_left
    surplus = state.surplus + (info.events - info.rates * waited)
    is_arrival = dynamics.routes(system.phase_delay("exact simulation"))[0] == 0
    chosen = info.events[:, is_arrival].sum(axis=1) > 0
    increment = _routing_score(system, state.jobs, scale, chosen)
    routing = jax.tree.map(jnp.add, state.routing, increment)
    return ScoreState(after.jobs, after.time_left, surplus, routing), info


def score(state: ScoreState, system: System) -> PyTree:
    """Score in every floating-point array of the system, with replicas as the last axis.

    Events of rate zero leave no trace in a path, and so none here.
    """
    numbers, rest = _parts(system)
    logs, pull = jax.vjp(lambda numbers: _log_unit_rates(eqx.combine(numbers, rest)), numbers)
    (rates,) = jax.vmap(pull, -1, -1)(state.surplus.astype(logs.dtype))
    return eqx.tree_at(
        lambda part: part.routing, rates, state.routing, is_leaf=lambda node: node is None
    )


def _routing_score(system: System, jobs, scale, chosen) -> PyTree:
    """Derivative of the logarithm of the share of the server chosen; zero where none was."""
    rule, rest = _parts(system.routing)

    def of_replica(jobs, chosen):
        def shares(rule):
            routing = eqx.combine(rule, rest)
            whole = eqx.tree_at(lambda s: s.routing, system, routing)
            return dynamics.shares(whole, jobs, scale)

        share, pull = jax.vjp(shares, rule)
        (slope,) = pull(jnp.where(chosen, 1 / jnp.where(chosen, share, 1.0), 0.0))
        # A rule may have no derivative where nothing was decided.
        return jax.tree.map(lambda part: jnp.where(chosen.any(), part, 0.0), slope)

    return jax.vmap(of_replica, -1, -1)(jobs, chosen)


def _log_unit_rates(system: System) -> Float[Array, "servers events"]:
    """Logarithm of the part of each rate that is neither a share nor a count; zero for none."""
    delay = system.phase_delay("exact simulation")
    inflow = jnp.broadcast_to(system.arrival_rate, (system.num_servers,))
    one_each = jnp.ones((system.num_servers, delay.num_phases + 1), inflow.dtype)
    rates = dynamics.event_rates(delay, system.service_rates, inflow, one_each)
    positive = rates > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, rates, 1.0)), 0.0)


def _parts(tree: Any) -> tuple[PyTree, PyTree]:
    return eqx.partition(tree, eqx.is_inexact_array)
