"""Exact simulation of the Markov jump process: Gillespie's direct method, replicas in lock-step.

A pair `init`, `step`. One step waits an exponential time in each replica, then lets one event
happen with probability in proportion to its rate. The time left until the next record is carried
instead of the time passed, so that single precision loses nothing over a long run. Replicas are the
last axis of every array (`jaxlb.model.dynamics`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._logarithms import log
from ..model import dynamics
from ..model.system import System

# Uniform numbers for one step of one replica.
DRAWS = 2


class ExactState(NamedTuple):
    """`jobs`: counts. `time_left`: s until the next record."""

    jobs: Int[Array, "servers compartments replicas"]
    time_left: Float[Array, " replicas"]


class ExactInfo(NamedTuple):
    """What happened in one step.

    - `events`: one for the event, zero for the others; all zero if none fell before the record.
    - `rates`: of all events while the replica waited, 1/s.
    - `valid`: whether those were finite and non-negative, and the shares summed to one; the path
      stops where not.
    """

    events: Int[Array, "servers events replicas"]
    rates: Float[Array, "servers events replicas"]
    valid: Bool[Array, " replicas"]


def init(
    jobs: Int[Array, "servers compartments replicas"], time_left: Float[Array, " replicas"]
) -> ExactState:
    """State before the first event, with the time until the first record, s."""
    return ExactState(jobs, time_left)


def step(
    uniforms: Float[Array, "2 replicas"],
    state: ExactState,
    scale: Float[Array, ""],
    system: System,
) -> tuple[ExactState, ExactInfo]:
    """One event, or none if it would fall after the record: then the state waits there.

    What is left of the waiting time is forgotten, as an exponential time may be.
    """
    rates, valid = rates_of(system, state.jobs, scale)
    total, sums = running_sums(rates)
    valid = valid & jnp.isfinite(total)
    time_left = state.time_left + log(uniforms[0]) / total
    happened = valid & (time_left > 0)
    target = jax.lax.optimization_barrier(jnp.where(happened, uniforms[1] * total, jnp.inf))
    events = first_above(sums, target).astype(jnp.int32)
    jobs = state.jobs + dynamics.net_change(system.phase_delay("exact simulation"), events)
    time_left = jnp.where(happened, time_left, 0.0)
    return ExactState(jobs, time_left), ExactInfo(events, rates, valid)


def rates_of(
    system: System, jobs: Int[Array, "servers compartments replicas"], scale: Float[Array, ""]
) -> tuple[Float[Array, "servers events replicas"], Bool[Array, " replicas"]]:
    """Rate of every event, 1/s, and whether the rule gave probabilities."""
    delay = system.phase_delay("exact simulation")
    share = dynamics.shares(system, jobs, scale)
    inflow = scale * system.num_servers * system.arrival_rate * share
    rates = dynamics.event_rates(delay, system.service_rates, inflow, jobs)
    # XLA would find them again for each of their uses.
    return jax.lax.optimization_barrier(rates), dynamics.are_shares(share)


def running_sums(
    rates: Float[Array, "servers events replicas"],
) -> tuple[Float[Array, " replicas"], Float[Array, "servers events replicas"]]:
    """Their total, and the sum of the rates up to and with each."""
    flat = rates.reshape(-1, rates.shape[-1])
    # One after the other, so that the sums rise with every event whose rate is positive, and with
    # no other: one of rate zero never happens.
    total, sums = jax.lax.scan(
        lambda total, rate: (total + rate, total + rate), jnp.zeros_like(flat[0]), flat, unroll=64
    )
    return total, sums.reshape(rates.shape)


def first_above(
    sums: Float[Array, "servers events replicas"], target: Float[Array, " replicas"]
) -> Bool[Array, "servers events replicas"]:
    """Which event's running sum is the first above the target; none for an infinite one."""
    reached = target < sums.reshape(-1, sums.shape[-1])
    return (reached & ~jnp.pad(reached[:-1], ((1, 0), (0, 0)))).reshape(sums.shape)
