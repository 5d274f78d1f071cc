"""Exact paths of several systems of one shape that stay close: the split coupling.

Event k of the joint process comes at the largest of its rates r in the chains, and happens in
those whose r is above a uniform share of that. Each chain alone is then an exact path, and for any
two of them both move at min(r, r'), and one alone at what its rate is larger by: the coupling of
Anderson, of which finite differences keep a variance of order 1 / step, not 1 / step^2.

A pair `init`, `step`. Chains are the first axis of every array, and replicas the last.

Source: Anderson (2012), SIAM J. Numerical Analysis 50(5), 2237-2258.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from .._logarithms import log
from ..model import dynamics
from ..model.system import System
from . import exact


class CoupledState(NamedTuple):
    """`jobs`: counts of each chain. `time_left`: s until the record, one for all chains."""

    jobs: Int[Array, "chains servers compartments replicas"]
    time_left: Float[Array, " replicas"]


class CoupledInfo(NamedTuple):
    """`valid`: whether the rates of every chain were; the replica stops where not."""

    valid: Bool[Array, " replicas"]


def init(
    jobs: Int[Array, "servers compartments replicas"],
    time_left: Float[Array, " replicas"],
    chains: int,
) -> CoupledState:
    """State before the first event: the same in every chain."""
    return CoupledState(jnp.broadcast_to(jobs, (chains, *jobs.shape)), time_left)


def step(
    uniforms: Float[Array, "2 replicas"],
    state: CoupledState,
    scale: Float[Array, ""],
    systems: System,
) -> tuple[CoupledState, CoupledInfo]:
    """One event in one chain or more, or none; floating-point arrays of `systems` have the axis of
    chains first."""
    rates_of = eqx.filter_vmap(exact.rates_of, in_axes=(_axis, 0, None))
    rates, are_shares = rates_of(systems, state.jobs, scale)
    total, sums = exact.running_sums(rates.max(axis=0))
    valid = are_shares.all(axis=0) & jnp.isfinite(total)
    time_left = state.time_left + log(uniforms[0]) / total
    happened = valid & (time_left > 0)
    target = jax.lax.optimization_barrier(jnp.where(happened, uniforms[1] * total, jnp.inf))
    # The sum before an event and its largest rate make the sum with it, to the last bit.
    before = jnp.pad(sums.reshape(-1, len(target))[:-1], ((1, 0), (0, 0))).reshape(sums.shape)
    moves = exact.first_above(sums, target) & (target < before + rates)
    net_change = eqx.filter_vmap(_net_change, in_axes=(_axis, 0))
    change = net_change(systems, moves.astype(jnp.int32))
    time_left = jnp.where(happened, time_left, 0.0)
    return CoupledState(state.jobs + change, time_left), CoupledInfo(valid)


def perturbed(
    system: System, relative_step: Float[Array, ""]
) -> tuple[System, Float[Array, " parameters"]]:
    """The system, then each number of it in turn raised, then each lowered; and by how much both.

    A number that cannot move one way, being at the end of its domain, moves the other way only.
    """
    numbers, rest = eqx.partition(system, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(numbers)
    steps, _ = ravel_pytree(jax.tree.map(_size, numbers))
    steps = relative_step.astype(flat.dtype) * steps
    count = len(flat)

    def kept(change):
        moved = flat + change
        inside = _in_domain(eqx.combine(unravel(moved), rest))
        return jnp.where(inside, moved, flat)

    changes = jnp.concatenate([jnp.diag(steps), -jnp.diag(steps)])
    moved = jax.vmap(kept)(changes)
    widths = jnp.diagonal(moved[:count]) - jnp.diagonal(moved[count:])
    chains = jnp.concatenate([flat[None], moved])
    return eqx.combine(jax.vmap(unravel)(chains), rest), widths


def _size(numbers: Float[Array, "..."]) -> Float[Array, "..."]:
    """Of each number, what its step is relative to: for zero the size of its array, or one."""
    typical = jnp.sqrt(jnp.mean(numbers**2))
    typical = jnp.where(typical > 0, typical, 1.0)
    return jnp.where(numbers == 0, typical, jnp.abs(numbers))


def _in_domain(system: System) -> Bool[Array, ""]:
    """Whether no rate is negative; probabilities need not sum to one."""
    delay: Any = system.phase_delay("exact simulation")
    positive = jnp.all(system.service_rates > 0) & (system.arrival_rate > 0)
    positive = positive & jnp.all(delay.initial >= 0)
    return positive & _checks.is_sub_generator(delay.generator)


def _net_change(system: System, events) -> Int[Array, "servers compartments replicas"]:
    delay = system.phase_delay("exact simulation")
    return dynamics.net_change(delay, events)


def _axis(leaf: Any) -> int | None:
    """Where chains are: whole numbers in a system are the same for all."""
    return 0 if eqx.is_inexact_array(leaf) else None
