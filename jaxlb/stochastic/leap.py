"""The trapezoidal exact leap: a step of any length, with counts that never become negative.

Over a step the network moves by its exact law (`jaxlb.stochastic.frozen`), with shares that change
linearly from those at the start to those predicted for the end. So arrivals are of two kinds, early
ones routed by the first shares and late ones by the last. The prediction begins with the jobs that
really stayed and the early arrivals that really came, as far as the rule sees them, so that it
knows what chance has done: by that the law is right to second order in the step, at hardly more
draws than a method of first order takes. Without feedback it is exact.

Replicas are the last axis of every array (`jaxlb.model.dynamics`).
"""

from collections.abc import Callable
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
    compartments = system.phase_delay("a leap").num_phases + 1
    seen = len(range(compartments)[seen_by_rule(system)])
    return system.num_servers * (_num_kept(system) + seen + compartments)


def _num_kept(system: System) -> int:
    """Binomial numbers that a server takes in a step."""
    return sum(map(len, destinations(system.phase_delay("a leap"))))


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
    ends = [_num_kept(system), uniforms.shape[1] - compartments]
    kept_by, early_by, rest_by = jnp.split(uniforms, ends, axis=1)

    def early_of(mean, _):
        # Else they are drawn again for each of their uses.
        return jax.lax.optimization_barrier(poisson(early_by, mean))

    kept = _kept(kept_by, state.jobs, system, frozen)
    new = arrivals(system, scale, state.jobs, kept, frozen, early_of)
    seen = seen_by_rule(system)
    # Apart from the draws, for a loop that also picks parts of arrays is not vectorised.
    mean = jax.lax.optimization_barrier(new.late + new.early.at[:, seen].set(0.0))
    rest = jax.lax.optimization_barrier(poisson(rest_by, mean))
    known = jnp.zeros_like(kept).at[:, seen].set(new.known)
    return LeapState(kept + known + rest), LeapInfo(new.valid)


class Arrivals(NamedTuple):
    """Jobs that arrive in a step and are in each compartment at its end.

    `early`, `late`: means of those routed by the first and by the last shares. `known`: the early
    ones in compartments that the rule looks at, as the prediction took them; given these the others
    are independent Poisson numbers. `valid`: whether the shares were probabilities.
    """

    early: Float[Array, "servers compartments replicas"]
    known: Float[Array, "servers seen replicas"]
    late: Float[Array, "servers compartments replicas"]
    valid: Bool[Array, " replicas"]


def arrivals(
    system: System,
    scale: Float[Array, ""],
    jobs: Float[Array, "servers compartments replicas"],
    kept: Float[Array, "servers compartments replicas"],
    frozen: Frozen,
    early_of: Callable[[Array, Array], Array] = lambda early, _: early,
) -> Arrivals:
    """Arrivals of a step from `jobs`, of which those in `kept` are there at its end.

    `early_of`: what the prediction takes for the early arrivals that the rule looks at, from their
    means and those of late ones if the shares stay as they are.
    """
    inflow = scale * system.num_servers * system.arrival_rate
    seen, before = seen_by_rule(system), dynamics.shares(system, jobs, scale)
    early = before[:, None] * (inflow * frozen.early[..., None])
    per_share = inflow * frozen.late[..., None]
    late = before[:, None] * per_share
    known = early_of(early[:, seen], late[:, seen])
    after = dynamics.shares(system, kept + early.at[:, seen].set(known) + late, scale)
    valid = dynamics.are_shares(before) & dynamics.are_shares(after)
    return Arrivals(early, known, after[:, None] * per_share, valid)


def seen_by_rule(system: System) -> slice:
    """The compartments that the rule looks at."""
    return slice(-1, None) if system.looks_at_queues_alone else slice(None)


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
