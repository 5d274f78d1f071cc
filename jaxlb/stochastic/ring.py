"""The trapezoidal exact leap for any delay law: jobs in service, and what is on its way to them.

The shares of past steps say how many jobs will begin service in each step to come: given the past,
independent Poisson numbers, by thinning of Poisson arrivals. So a step keeps only the means of
those to come, in a ring of as many slots as the longest delay has steps, and draws counts for one
slot: a cost that does not depend on the number of phases. Jobs in transit are never counted.

Within the step the shares change linearly: for a delay with phases the law is that of
`jaxlb.stochastic.leap`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..model import dynamics
from ..model.system import System
from .leap import LeapInfo
from .residence import Residence
from .samplers import COUNTS, Draws


class RingState(NamedTuple):
    """`queue`: jobs in service, whole numbers as floats. `ahead`: mean number of jobs that begin
    service in each of the steps to come and are there at its end. `number`: of the step."""

    queue: Float[Array, "servers replicas"]
    ahead: Float[Array, "slots servers replicas"]
    number: Int[Array, ""]


def init(queue: Float[Array, "servers replicas"], slots: int) -> RingState:
    """State before the first step, with nobody in transit."""
    return RingState(queue, jnp.zeros((slots, *queue.shape), queue.dtype), jnp.zeros((), jnp.int32))


def num_draws(system: System) -> int:
    """Uniform numbers that one step of one replica takes."""
    return 3 * system.num_servers


def step(
    uniforms: Float[Array, "draws replicas"],
    state: RingState,
    scale: Float[Array, ""],
    system: System,
    laws: Residence,
    draws: Draws = COUNTS,
) -> tuple[RingState, LeapInfo]:
    """One step of the length that `laws` were made for; `num_draws` uniform numbers."""
    kept_by, begun_by, new_by = uniforms.reshape(3, *state.queue.shape)
    slots = len(state.ahead)
    slot = state.number % slots
    waiting = jax.lax.dynamic_index_in_dim(state.ahead, slot, keepdims=False)
    inflow = scale * system.num_servers * system.arrival_rate
    early, late = inflow * laws.early[..., None], inflow * laws.late[..., None]
    before = _shares(system, state.queue, scale)
    kept = draws.binomial(kept_by, state.queue, laws.stay[:, None])
    begun = draws.poisson(begun_by, waiting + before * early[0])
    # Else they are drawn again for each of their uses.
    present = sum(jax.lax.optimization_barrier((kept, begun)))
    after = _shares(system, present + before * late[0], scale)
    new = draws.poisson(new_by, after * late[0])
    place = (jnp.arange(slots) - slot) % slots
    others = (place != 0)[:, None, None]
    ahead = jnp.where(others, state.ahead + early[place] * before + late[place] * after, 0.0)
    valid = dynamics.are_shares(before) & dynamics.are_shares(after)
    return RingState(present + new, ahead, state.number + 1), LeapInfo(valid)


def _shares(
    system: System, queue: Float[Array, "servers replicas"], scale: Float[Array, ""]
) -> Float[Array, "servers replicas"]:
    """Shares by a rule that looks at the queue alone."""
    none = jnp.zeros((queue.shape[0], system.num_phases, queue.shape[1]), queue.dtype)
    return dynamics.shares(system, jnp.concatenate([none, queue[:, None]], axis=1), scale)
