"""Many independent paths of one system, recorded on a time grid."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .. import _checks
from ..model import dynamics
from ..model.system import System
from . import exact, leap, philox
from .frozen import frozen

# Counts are 32-bit integers. A mean at a quarter of their range leaves no chance of overflow.
MAX_MEAN_JOBS = 2.0**29

METHODS = "exact", "leap"


class Ensemble(eqx.Module):
    """Paths of one stochastic system.

    - `times`: s, shape (times,).
    - `jobs`: counts, not divided by the scale, shape (replicas, times, servers, compartments),
      phases then service.
    - `valid`: shape (replicas,); false where the dispatcher's rule gave no probabilities (negative,
      not finite, or with another sum than one), or a traced time, scale, step or start was out of
      range: that path stays where it was, the others are unharmed.
    - `step_size`: s, shape (times,), of the leaps before each record; `None` for exact paths.
    """

    times: Float[Array, " times"]
    jobs: Int[Array, "replicas times servers compartments"]
    valid: Bool[Array, " replicas"]
    step_size: Float[Array, " times"] | None = None

    @property
    def queue(self) -> Int[Array, "... times servers"]:
        """Jobs in service, Q."""
        return self.jobs[..., -1]

    @property
    def in_transit(self) -> Int[Array, "... times servers phases"]:
        """Jobs in each delay phase, Z."""
        return self.jobs[..., :-1]


def simulate(
    system: System,
    key: Any,
    times: Any,
    scale: Any = 1.0,
    replicas: int = 1,
    initial: Any = None,
    method: Literal["exact", "leap"] = "exact",
    step_size: Any = None,
) -> Ensemble:
    """Independent paths of the Markov jump process from time zero, at the given times.

    **Arguments:**

    - `key`: a JAX random key. The path of replica k depends on `key` and k alone, to the last bit,
      not on how many replicas there are.
    - `times`: s, increasing, from 0 on, shape (times,).
    - `scale`: eta of the paper, > 0: jobs arrive at rate scale * num_servers * arrival_rate and the
      dispatcher sees counts divided by `scale`.
    - `replicas`: integer >= 1, static.
    - `initial`: counts at time zero: all, shape (servers, compartments), or those in service, shape
      (servers,), with none in transit. By default the paper's start: `scale` jobs in service at
      each server but the first.
    - `method`: "exact", the direct method of Gillespie; "leap", the trapezoidal exact leap
      (`jaxlb.stochastic.leap`), which is not the classical tau-leaping: jobs that are present move
      by their exact law, so that no count becomes negative, whatever the step.
    - `step_size`: s, of leaps: each interval between records is cut into equal steps that are not
      longer.

    **Returns:** an `Ensemble` of counts. Counts jump, so they have no gradient.

    **Raises:** `ValueError` on a bad argument, or where counts might not fit 32 bits, or float32.

    **Accuracy:** "exact" is exact in law but for the rounding of the rates. In float32 an event
    whose rate is below 1e-7 of the total is drawn with a coarse probability, and waits are coarse
    if there are more than a million events between two records. "leap" is exact for sensitivity
    zero, and else of second order in the step h as long as lambda * theta * h is not above one:
    variances of the imbalance in small systems are within 1 % up to 0.6, and 6 % off at 2.5
    (`tests/stochastic/test_leap.py`). Draws have the right law to 1e-4 in total variation, those
    of a mean up to 12 to 1e-13 (`tests/stochastic/test_samplers.py`).

    **Cost:** one core, float64, Figure 3 of the paper (230 000 events a path), a path among 512:
    exact 8 ms, 200 times faster than SimPy; leaps of 0.05 s 0.2 ms, 6000 times
    (`experiments/benchmarks/stochastic.py`). Each event costs O(servers * phases), each leap
    O(servers * phases^2) whatever the number of events.

    **Source:** Gillespie (1977), J. Phys. Chem. 81(25), 2340-2361.
    """
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    if (step_size is None) != (method == "exact"):
        wanted = "given" if step_size is None else "left out"
        raise ValueError(f'`step_size` must be {wanted} with method "{method}", got {step_size!r}.')
    _checks.kind("system", system, System)
    key = _checks.key("key", key)
    times = _checks.times("times", times)
    scale = _checks.positive("scale", scale)
    replicas = _checks.integer("replicas", replicas, 1)
    # One dtype throughout, for the loop over events must carry what it began with.
    dtype = jnp.result_type(times, scale, *system.numbers)
    most = MAX_MEAN_JOBS if method == "exact" else 0.25 / float(jnp.finfo(dtype).eps)
    start, in_range = initial_counts(system, initial, scale, min(most, MAX_MEAN_JOBS))
    given = system, key, times.astype(dtype), scale.astype(dtype), replicas, start, in_range
    if method == "exact":
        return Ensemble(times, *_ensemble(*given))
    step_size = _checks.positive("step_size", step_size, "s").astype(dtype)
    return Ensemble(times, *_leaps(*given, step_size))


def initial_counts(
    system: System, initial: Any, scale: Float[Array, ""], most: float
) -> tuple[Int[Array, "servers compartments"], Bool[Array, ""]]:
    """Initial state as 32-bit counts, and whether counts will stay in range."""
    start = dynamics.initial_jobs(system, initial, jnp.round(scale))
    _checks.require("initial", start, lambda v: v == np.round(v), "whole numbers of jobs", "jobs")
    time_in_system = system.delay.mean + 1 / jnp.min(system.service_rates)
    offered = scale * system.num_servers * system.arrival_rate * time_in_system
    totals = {"scale": offered, "initial": start.sum()}
    for name, total in totals.items():
        _checks.require(
            name,
            total,
            lambda v: v <= most,
            f"such that the mean number of jobs stays below {most:.0f}",
            "jobs",
        )
    whole = jnp.all((start >= 0) & (start == jnp.round(start)))
    in_range = whole & (start.sum() <= most) & (offered <= most)
    return jnp.where(in_range, start, 0).astype(jnp.int32), in_range


@eqx.filter_jit
def _ensemble(system: System, key: Key[Array, ""], times, scale, replicas: int, start, in_range):
    """Exact paths, and whether they are valid."""
    durations = jnp.diff(times, prepend=0)

    def to_next_record(carry, interval):
        jobs, valid = carry
        number, duration = interval
        stream = philox.stream(key, jnp.arange(replicas), number)
        valid = valid & jnp.isfinite(duration) & (duration >= 0)
        # A path that is not valid has no event: it waits at every record.
        state = exact.init(jobs, jnp.where(valid, duration, 0.0))

        def one_event(carry):
            k, state, valid = carry
            uniforms = philox.uniforms(stream, k, exact.DRAWS, times.dtype)
            running = state.time_left > 0
            state, info = exact.step(uniforms, state, scale, system)
            return k + 1, state, valid & (info.valid | ~running)

        carry = jnp.uint32(0), state, valid
        _, state, valid = jax.lax.while_loop(
            lambda carry: jnp.any(carry[1].time_left > 0), one_event, carry
        )
        return (state.jobs, valid), state.jobs

    jobs = jnp.broadcast_to(start[..., None], (*start.shape, replicas))
    carry = jobs, jnp.broadcast_to(in_range, (replicas,))
    (_, valid), jobs = jax.lax.scan(to_next_record, carry, (jnp.arange(len(times)), durations))
    return jnp.moveaxis(jobs, -1, 0), valid


@eqx.filter_jit
def _leaps(
    system: System, key: Key[Array, ""], times, scale, replicas: int, start, in_range, step_size
):
    """Paths by leaps, whether they are valid, and the length of their steps."""
    draws = leap.num_draws(system)
    durations = jnp.diff(times, prepend=0)
    # Rounding must not add a step to an interval of a whole number of them.
    counts = jnp.ceil(durations / step_size * (1 - 4 * jnp.finfo(times.dtype).eps))
    possible = in_range & _checks.is_positive(step_size) & jnp.all(durations >= 0)
    possible = possible & jnp.all(counts < jnp.iinfo(jnp.int32).max)
    counts = jnp.where(possible & (durations > 0), counts, 0).astype(jnp.int32)
    lengths = jnp.where(counts > 0, durations / jnp.maximum(counts, 1), step_size)

    def to_next_record(carry, interval):
        number, count, length = interval
        # A stream of its own for each interval.
        stream = philox.stream(key, jnp.arange(replicas), number)
        laws = frozen(system, length)

        def one_step(k, carry):
            state, valid = carry
            uniforms = philox.uniforms(stream, k, draws, times.dtype)
            after, info = leap.step(uniforms, state, scale, system, laws)
            valid = valid & info.valid
            return leap.init(jnp.where(valid, after.jobs, state.jobs)), valid

        state, valid = jax.lax.fori_loop(0, count, one_step, carry)
        return (state, valid), state.jobs

    jobs = jnp.broadcast_to(start.astype(times.dtype)[..., None], (*start.shape, replicas))
    carry = leap.init(jobs), jnp.broadcast_to(possible, (replicas,))
    intervals = jnp.arange(len(counts)), counts, lengths
    (_, valid), jobs = jax.lax.scan(to_next_record, carry, intervals)
    return jnp.moveaxis(jobs, -1, 0).astype(jnp.int32), valid, lengths
