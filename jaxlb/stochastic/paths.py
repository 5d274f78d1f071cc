"""Paths of each method, from time zero to each record in turn, for any number of replicas at once.

Each function here is one compiled program: from what is `Given` to jobs, shape (replicas, times,
servers, compartments), and whether each path is valid. The random words of a replica depend on the
key, its number, the interval between records and the step in it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from ..model.system import System
from . import classical, exact, gaussian, leap, philox, ring
from .frozen import frozen
from .residence import residence
from .samplers import COUNTS, MEANS, NORMAL

# States kept of a loop that is differentiated in reverse; those between are made again.
CHECKPOINTS = 32

# Paths at once: on a CPU as many as its cache holds, else as many as keep the device busy.
CPU_LANES, DEVICE_LANES = 2**9, 2**16


def lanes() -> int:
    """How many paths are fast at once, on the device there is."""
    return CPU_LANES if jax.default_backend() == "cpu" else DEVICE_LANES


class Given(NamedTuple):
    """What every method needs.

    - `replicas`: their numbers, of which each path's random words depend.
    - `start`: jobs at time zero, as floats. `possible`: whether all numbers are in range, for all
      replicas or for each; without that, paths stay at the start.
    """

    system: System
    key: Key[Array, ""]
    replicas: Int[Array, " replicas"]
    times: Float[Array, " times"]
    scale: Float[Array, ""]
    start: Float[Array, "servers compartments"]
    possible: Bool[Array, "*replicas"]

    @property
    def jobs(self) -> Float[Array, "servers compartments replicas"]:
        """The start, for each replica."""
        return jnp.broadcast_to(self.start[..., None], (*self.start.shape, len(self.replicas)))

    @property
    def valid(self) -> Bool[Array, " replicas"]:
        """Whether each path is valid at the start."""
        return jnp.broadcast_to(self.possible, self.replicas.shape)


class Steps(NamedTuple):
    """Equal steps of each interval between records: how many, how long, s, and whether there are
    such steps."""

    counts: Int[Array, " times"]
    lengths: Float[Array, " times"]
    possible: Bool[Array, ""]


class Leaping(NamedTuple):
    """A method by steps: uniform numbers for one, what a step of some length needs, the step."""

    num_draws: Callable[..., Any]
    laws: Callable[..., Any]
    step: Callable[..., Any]


LEAPS = {
    "phase_leap": Leaping(leap.num_draws, frozen, leap.step),
    "gaussian_leap": Leaping(gaussian.num_draws, frozen, gaussian.step),
    "poisson_leap": Leaping(classical.num_draws, classical.step_size_alone, classical.poisson_step),
    "binomial_leap": Leaping(
        classical.num_draws, classical.step_size_alone, classical.binomial_step
    ),
}

KINDS = {"counts": COUNTS, "normal": NORMAL, "means": MEANS}


@eqx.filter_jit
def direct(given: Given) -> Any:
    """Exact paths, event by event; counts are 32-bit integers."""
    durations = jnp.diff(given.times, prepend=0)

    def to_next_record(carry, interval):
        jobs, valid = carry
        number, duration = interval
        stream = philox.stream(given.key, given.replicas, number)
        valid = valid & jnp.isfinite(duration) & (duration >= 0)
        # A path that is not valid has no event: it waits at every record.
        state = exact.init(jobs, jnp.where(valid, duration, 0.0))

        def one_event(carry):
            k, state, valid = carry
            uniforms = philox.uniforms(stream, k, exact.DRAWS, given.times.dtype)
            running = state.time_left > 0
            state, info = exact.step(uniforms, state, given.scale, given.system)
            return k + 1, state, valid & (info.valid | ~running)

        carry = jnp.uint32(0), state, valid
        _, state, valid = jax.lax.while_loop(
            lambda carry: jnp.any(carry[1].time_left > 0), one_event, carry
        )
        return (state.jobs, valid), state.jobs

    carry = given.jobs.astype(jnp.int32), given.valid
    intervals = jnp.arange(len(durations)), durations
    (_, valid), jobs = jax.lax.scan(to_next_record, carry, intervals)
    return jnp.moveaxis(jobs, -1, 0), valid


@eqx.filter_jit
def leaps(given: Given, steps: Steps, method: str, reversible: bool = False) -> Any:
    """Paths by one of `LEAPS`; differentiable forward, or if `reversible` in reverse."""
    num_draws, laws_of, step = LEAPS[method]
    draws = num_draws(given.system)

    def to_next_record(carry, interval):
        number, count, length = interval
        # A stream of its own for each interval.
        stream = philox.stream(given.key, given.replicas, number)
        laws = laws_of(given.system, length)

        def one_step(k, carry):
            state, valid = carry
            uniforms = philox.uniforms(stream, k, draws, given.times.dtype)
            after, info = step(uniforms, state, given.scale, given.system, laws)
            valid = valid & info.valid
            return leap.init(jnp.where(valid, after.jobs, state.jobs)), valid

        state, valid = _repeat(count, one_step, carry, reversible)
        return (state, valid), state.jobs

    intervals = jnp.arange(len(steps.counts)), steps.counts, steps.lengths
    carry = leap.init(given.jobs), given.valid
    (_, valid), jobs = jax.lax.scan(to_next_record, carry, intervals)
    return jnp.moveaxis(jobs, -1, 0), valid


@eqx.filter_jit
def ring_leaps(given: Given, steps: Steps, slots: int, kind: str, reversible: bool = False) -> Any:
    """Paths by leaps of any delay law; the steps of all intervals are equally long."""
    laws = residence(given.system, steps.lengths[0], slots)
    draws = KINDS[kind]

    def to_next_record(carry, interval):
        number, count = interval
        stream = philox.stream(given.key, given.replicas, number)

        def one_step(k, carry):
            state, valid = carry
            uniforms = philox.uniforms(stream, k, ring.num_draws(given.system), given.times.dtype)
            after, info = ring.step(uniforms, state, given.scale, given.system, laws, draws)
            valid = valid & info.valid
            return after._replace(queue=jnp.where(valid, after.queue, state.queue)), valid

        state, valid = _repeat(count, one_step, carry, reversible)
        return (state, valid), state.queue

    carry = ring.init(given.jobs[:, -1], slots), given.valid
    intervals = jnp.arange(len(steps.counts)), steps.counts
    (_, valid), queue = jax.lax.scan(to_next_record, carry, intervals)
    return jnp.moveaxis(queue, -1, 0)[..., None], valid


def _repeat(count: Int[Array, ""], step: Callable[..., Any], start: Any, reversible: bool) -> Any:
    """`step(k, state)` for each k below `count`; differentiable either forward or in reverse."""
    if not reversible:
        return jax.lax.fori_loop(0, count, step, start)

    def next_one(carry):
        k, state = carry
        return k + 1, step(k, state)

    # Equinox has no loop in its public part; this one is what Diffrax is built on.
    return eqx.internal.while_loop(
        lambda carry: carry[0] < count,
        next_one,
        (jnp.zeros_like(count), start),
        kind="checkpointed",
        checkpoints=CHECKPOINTS,
    )[1]
