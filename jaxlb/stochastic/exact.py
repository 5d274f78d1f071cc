"""Exact simulation of the Markov jump process: Gillespie's direct method, a path at a time.

A pair `init`, `step`. One step waits an exponential time, then lets one event happen with
probability in proportion to its rate. The time left until the next record is carried instead of
the time passed, so that single precision loses nothing over a long run.
"""

from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, Key

from ..model import dynamics
from ..model.system import System


class ExactState(NamedTuple):
    """`jobs`: counts, shape (servers, compartments). `time_left`: s until the next record."""

    jobs: Int[Array, "servers compartments"]
    time_left: Float[Array, ""]


class ExactInfo(NamedTuple):
    """`happened`: whether an event fell before the record. `valid`: whether the rates were finite
    and non-negative; the path stops where they are not."""

    happened: Bool[Array, ""]
    valid: Bool[Array, ""]


def init(jobs: Int[Array, "servers compartments"], time_left: Float[Array, ""]) -> ExactState:
    """State before the first event, with the time until the first record, s."""
    return ExactState(jobs, time_left)


def step(
    key: Key[Array, ""], state: ExactState, scale: Float[Array, ""], system: System
) -> tuple[ExactState, ExactInfo]:
    """One event, or none if it would fall after the record: then the state waits there.

    What is left of the waiting time is forgotten, as an exponential time may be.
    """
    rates = dynamics.propensities(system, state.jobs, scale)
    cumulative = jnp.cumsum(rates.ravel())
    total = cumulative[-1]
    valid = jnp.isfinite(total) & jnp.all(rates >= 0)
    wait_draw, event_draw = jr.uniform(key, (2,), rates.dtype)
    time_left = state.time_left + jnp.log1p(-wait_draw) / total
    happened = valid & (time_left > 0)
    # The first event whose cumulative rate exceeds the draw. The sums are rounded in any order, so
    # that one of rate zero may seem to exceed it first: it never happens.
    reached = (cumulative > event_draw * total) & (rates.ravel() > 0)
    number = jnp.arange(len(cumulative), dtype=jnp.int32)
    chosen = (number == jnp.min(jnp.where(reached, number, len(number)))) & happened
    change = dynamics.net_change(
        system.phase_delay("exact simulation"), chosen.reshape(rates.shape).astype(jnp.int32)
    )
    jobs = state.jobs + change
    return ExactState(jobs, jnp.where(happened, time_left, 0.0)), ExactInfo(happened, valid)
