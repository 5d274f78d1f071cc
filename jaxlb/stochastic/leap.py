"""The trapezoidal exact leap: a step of any length, with counts that never become negative.

Over a step the network moves by its exact law (`jaxlb.stochastic.frozen`), with shares that change
linearly from those at the start to those predicted for the end. The prediction begins with the jobs
that really stayed, so that it knows how chance has moved them: by that the law is right to second
order in the step, at the draws of a method of first order. Without feedback it is exact.

Replicas are the last axis of every array (`jaxlb.model.dynamics`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..model import dynamics
from ..model.system import System
from .frozen import Frozen, destinations
from .samplers import binomial, poisson


class LeapState(NamedTuple):
    """`jobs`: whole numbers as floats."""

    jobs: Float[Array, "servers compartments replicas"]


class LeapInfo(NamedTuple):
    """`valid`: whether the shares were probabilities at both ends of the step; else the new state
    means nothing."""

    valid: Bool[Array, " replicas"]


def init(jobs: Float[Array, "servers compartments replicas"]) -> LeapState:
    """State before the first step."""
    return LeapState(jobs)


def num_draws(system: System) -> int:
    """Uniform numbers that one step of one replica takes."""
    places = destinations(system.phase_delay("a leap"))
    return system.num_servers * (sum(map(len, places)) + len(places))


def step(
    uniforms: Float[Array, "draws replicas"],
    state: LeapState,
    scale: Float[Array, ""],
    system: System,
    frozen: Frozen,
) -> tuple[LeapState, LeapInfo]:
    """One step of the length that `frozen` was made for; `num_draws` uniform numbers."""
    servers, compartments, replicas = state.jobs.shape
    uniforms = jax.lax.optimization_barrier(uniforms.reshape(servers, -1, replicas))
    kept = _kept(uniforms[:, :-compartments], state.jobs, system, frozen)
    mean, valid = arrivals(system, scale, state.jobs, kept, frozen)
    return LeapState(kept + poisson(uniforms[:, -compartments:], mean)), LeapInfo(valid)


def arrivals(
    system: System,
    scale: Float[Array, ""],
    jobs: Float[Array, "servers compartments replicas"],
    kept: Float[Array, "servers compartments replicas"],
    frozen: Frozen,
) -> tuple[Float[Array, "servers compartments replicas"], Bool[Array, " replicas"]]:
    """Means of the jobs that arrive in the step and are in each compartment at its end, and
    whether the shares were probabilities.

    `jobs`: at the start of the step. `kept`: those of them that are there at its end, and where.
    """
    inflow = scale * system.num_servers * system.arrival_rate
    early, late = inflow * frozen.early[..., None], inflow * frozen.late[..., None]
    before = dynamics.shares(system, jobs, scale)
    predicted = kept + before[:, None] * (early + late)
    after = dynamics.shares(system, predicted, scale)
    mean = before[:, None] * early + after[:, None] * late
    return mean, dynamics.are_shares(before) & dynamics.are_shares(after)


def _kept(uniforms, jobs, system: System, frozen: Frozen):
    """Where the jobs present are at the end of the step."""
    places = destinations(system.phase_delay("a leap"))
    arrived = [[] for _ in places]
    left, used = jobs, 0
    for rank in range(max(map(len, places))):
        rows = np.array([c for c, row in enumerate(places) if rank < len(row)])
        drawn_by = uniforms[:, used : used + len(rows)]
        moved = binomial(drawn_by, left[:, rows], frozen.conditional[:, rank, rows, None])
        # Else it is drawn again for each of its uses.
        moved = jax.lax.optimization_barrier(moved)
        left = left.at[:, rows].add(-moved)
        used += len(rows)
        for number, c in enumerate(rows):
            arrived[places[c][rank]].append(moved[:, number])
    return jnp.stack([sum(parts) for parts in arrived], axis=1)
