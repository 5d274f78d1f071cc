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
    """`happened`: whether an event fell before the record. `valid`: whether the rates were finite
    and non-negative, and the shares summed to one; the path stops where not."""

    happened: Bool[Array, " replicas"]
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
    delay = system.phase_delay("exact simulation")
    inflow = scale * system.num_servers * system.arrival_rate
    share = dynamics.shares(system, state.jobs, scale)
    rates = dynamics.event_rates(delay, system.service_rates, inflow * share, state.jobs)
    # XLA would find them again for each of their uses.
    rates = jax.lax.optimization_barrier(rates)
    flat = rates.reshape(-1, rates.shape[-1])
    # One after the other, so that the sums rise with every event whose rate is positive, and with
    # no other: one of rate zero never happens.
    total, sums = jax.lax.scan(
        lambda total, rate: (total + rate, total + rate), jnp.zeros_like(flat[0]), flat, unroll=64
    )
    valid = dynamics.are_shares(share) & jnp.isfinite(total)
    time_left = state.time_left + log(uniforms[0]) / total
    happened = valid & (time_left > 0)
    target = jax.lax.optimization_barrier(jnp.where(happened, uniforms[1] * total, jnp.inf))
    reached = target < sums
    chosen = reached & ~jnp.pad(reached[:-1], ((1, 0), (0, 0)))
    events = chosen.reshape(rates.shape).astype(jnp.int32)
    time_left = jnp.where(happened, time_left, 0.0)
    jobs = state.jobs + dynamics.net_change(delay, events)
    return ExactState(jobs, time_left), ExactInfo(happened, valid)
