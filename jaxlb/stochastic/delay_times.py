"""Random delays: how long jobs are on their way.

A job draws its uniform numbers by attempts: number a takes those of the stream's use plus a. So its
delay depends on its own numbers alone, however many attempts the jobs beside it need.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Integer

from .._logarithms import log, log1p
from ..model.delays import (
    AbstractDelay,
    AbstractPhaseDelay,
    Deterministic,
    Erlang,
    MixedErlang,
    NoDelay,
)
from ..model.quantile import QuantileDelay
from . import philox
from .samplers import normal_quantile

# Stages up to which exponential times are added: products of so many numbers do not underflow.
FEW = 5

# Jobs of which one at a time is tried again.
GROUP = 128


def require_times(delay: AbstractDelay) -> None:
    """Raise `ValueError` unless times of this delay can be drawn."""
    if not isinstance(delay, Deterministic | QuantileDelay | AbstractPhaseDelay):
        raise ValueError(
            "`delay` must have phases or a quantile function for its times to be drawn, "
            f"got {type(delay).__name__}: use QuantileDelay instead."
        )


def delay_times(
    delay: AbstractDelay, stream: philox.Stream, job: Integer[Array, "..."], dtype: Any
) -> Float[Array, "..."]:
    """Delays of new jobs, s.

    **Arguments:** `stream`: whose replica is that of each job, and whose use is the first that the
    jobs may take; attempts take those that follow. `job`: the number of each job, of one shape
    with the replicas.

    **Raises:** `ValueError` for a delay that has neither phases nor a quantile function.

    **Accuracy:** exact in law but for rounding and the granularity of uniform numbers, of 52 bits
    or 23; for an Erlang delay of more than five stages to 1e-7 in total variation, from the normal
    numbers that it begins with.
    """
    require_times(delay)
    if isinstance(delay, Erlang | NoDelay):
        return times_left(delay, stream, job, jnp.zeros(job.shape, jnp.int32), dtype)
    if isinstance(delay, AbstractPhaseDelay):
        (choice,) = philox.uniforms(stream, job, 1, dtype)
        levels, _ = _jumps(delay, dtype)
        phase = _passed(choice, levels[0])
        return times_left(delay, _after(stream, 1), job, phase, dtype)
    if isinstance(delay, QuantileDelay):
        return delay.at(philox.uniforms(stream, job, 1, dtype)[0]).astype(dtype)
    return jnp.broadcast_to(delay.mean, job.shape).astype(dtype)


def times_left(
    delay: AbstractPhaseDelay,
    stream: philox.Stream,
    job: Integer[Array, "..."],
    phase: Int[Array, "..."],
    dtype: Any,
) -> Float[Array, "..."]:
    """Times until service of jobs that are in these phases now, s; as `delay_times`."""
    if isinstance(delay, NoDelay):
        return jnp.zeros(job.shape, dtype)
    if not isinstance(delay, Erlang | MixedErlang):
        return _chain_times(delay, stream, job, phase, dtype)
    stages = delay.num_phases - phase
    if delay.num_phases <= FEW:
        uniforms = philox.uniforms(stream, job, delay.num_phases, dtype)
        product = jnp.ones(job.shape, dtype)
        for passed in range(delay.num_phases):
            product = product * jnp.where(passed < stages, uniforms[passed], 1.0)
        turns = -log(product)
    else:
        turns = jnp.where(stages > 0, _gamma(jnp.maximum(stages, 1), stream, job, dtype), 0.0)
    return (turns / delay.stage_rate).astype(dtype)


def _gamma(stages, stream: philox.Stream, job, dtype):
    """Sums of so many standard exponential times, by rejection from the cube of a normal number.

    Marsaglia and Tsang (2000), ACM Transactions on Mathematical Software 26(3), 363-372.
    """
    shape = job.shape
    members = math.gcd(job.size, GROUP)
    replica = jnp.broadcast_to(stream.replica, shape)
    stages, job, replica = (v.reshape(members, -1) for v in (stages, job, replica))
    times, taken = _one_gamma(stages, stream._replace(replica=replica), job, dtype)
    member = jnp.arange(members)[:, None]

    def first_rejected(taken):
        return jnp.min(jnp.where(taken, members, member), axis=0)

    def again(carry):
        times, taken, who, attempt = carry
        theirs = [
            jnp.take_along_axis(v, who[None], 0, mode="clip")[0] for v in (stages, job, replica)
        ]
        new = _after(stream._replace(replica=theirs[2]), attempt)
        time, success = _one_gamma(theirs[0], new, theirs[1], dtype)
        done = (member == who) & success
        taken = taken | done
        following = first_rejected(taken)
        attempt = jnp.where(following == who, attempt + 1, 1)
        return jnp.where(done, time, times), taken, following, attempt

    who = first_rejected(taken)
    carry = times, taken, who, jnp.ones(who.shape, jnp.uint32)
    times, *_ = jax.lax.while_loop(lambda carry: jnp.any(carry[2] < members), again, carry)
    return times.reshape(shape)


def _one_gamma(stages, stream: philox.Stream, job, dtype):
    """One attempt, and whether it is to be taken."""
    uniforms = philox.uniforms(stream, job, 2, dtype)
    x = normal_quantile(uniforms[0])
    d = stages.astype(dtype) - 1 / 3
    y = x / jnp.sqrt(9 * d)
    # log(1 + y) without the first three terms of its series, which cancel in the usual form.
    near = jnp.abs(y) < 0.1
    small, tail = jnp.where(near, y, 0.0), jnp.zeros_like(y)
    for power in range(12, 3, -1):
        tail = tail * small + (-1) ** (power + 1) / power
    large = jnp.where(near | (y <= -1), 0.5, y)
    far = log1p(large) - large * (1 - large * (0.5 - large / 3))
    beyond = jnp.where(near, small**4 * tail, far)
    taken = (y > -1) & (log(uniforms[1]) < 3 * d * beyond)
    return d * (1 + y) ** 3, taken


def _chain_times(delay: AbstractPhaseDelay, stream: philox.Stream, job, phase, dtype):
    """Times until a Markov chain on the phases reaches service."""
    levels, leave = (values[1:] for values in _jumps(delay, dtype))

    def one_move(carry):
        times, phase, attempt = carry
        waiting, choice = philox.uniforms(_after(stream, attempt), job, 2, dtype)
        inside = phase < delay.num_phases
        here = jnp.where(inside, phase, 0)
        times = jnp.where(inside, times - log(waiting) / leave[here], times)
        following = _passed(choice, levels.T[:, here])
        return times, jnp.where(inside, following, phase), attempt + 1

    carry = jnp.zeros(job.shape, dtype), phase, jnp.uint32(0)
    times, *_ = jax.lax.while_loop(
        lambda carry: jnp.any(carry[1] < delay.num_phases), one_move, carry
    )
    return times


def _jumps(delay: AbstractPhaseDelay, dtype: Any) -> tuple[Array, Array]:
    """Chances that the next phase is this or one before, and rates: of a new job, then from each
    phase."""
    size = delay.num_phases + 1
    rates = jnp.zeros((size, size), dtype).at[delay.routes()].add(delay.rates().astype(dtype))
    sums = jnp.cumsum(rates, axis=1)
    return sums[:, :-1] / sums[:, -1:], sums[:, -1]


def _passed(choice, levels):
    """How many of its levels each number has reached."""
    number = jnp.zeros(choice.shape, jnp.int32)
    for level in levels:
        number = number + (choice >= level)
    return number


def _after(stream: philox.Stream, uses: Any) -> philox.Stream:
    return stream._replace(use=stream.use + jnp.asarray(uses).astype(jnp.uint32))
