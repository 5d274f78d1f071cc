"""Many independent paths of one system, recorded on a time grid."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .. import _checks
from ..model import dynamics
from ..model.system import System
from . import exact

# Counts are 32-bit integers. A mean at a quarter of their range leaves no chance of overflow.
MAX_MEAN_JOBS = 2.0**29


class Ensemble(eqx.Module):
    """Paths of one stochastic system.

    - `times`: s, shape (times,).
    - `jobs`: counts, not divided by the scale, shape (replicas, times, servers, compartments),
      phases then service.
    - `valid`: shape (replicas,); false where the dispatcher's rule gave no probabilities (negative
      or not finite), or a traced time, scale or start was out of range: that path stays where it
      was, the others are unharmed.
    """

    times: Float[Array, " times"]
    jobs: Int[Array, "replicas times servers compartments"]
    valid: Bool[Array, " replicas"]

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
    method: Literal["exact"] = "exact",
) -> Ensemble:
    """Independent paths of the Markov jump process from time zero, at the given times.

    **Arguments:**

    - `key`: a JAX random key. Replica k has its own key made from `key` and k, so its path does not
      depend on how many replicas there are.
    - `times`: s, increasing, from 0 on, shape (times,).
    - `scale`: eta of the paper, > 0: jobs arrive at rate scale * num_servers * arrival_rate and the
      dispatcher sees counts divided by `scale`.
    - `replicas`: integer >= 1, static.
    - `initial`: counts at time zero: all, shape (servers, compartments), or those in service, shape
      (servers,), with none in transit. By default the paper's start: `scale` jobs in service at
      each server but the first.
    - `method`: "exact", the direct method of Gillespie.

    **Returns:** an `Ensemble` of counts. Counts jump, so they have no gradient.

    **Raises:** `ValueError` on a bad argument, or where counts might not fit 32 bits.

    **Accuracy:** exact in law but for the rounding of the rates. In float32 an event whose rate is
    below 1e-7 of the total is drawn with a coarse probability, and waits are coarse if there are
    more than a million events between two records.

    **Cost:** one core, float64: Figure 3 of the paper (230 000 events a path) 24 ms a path in
    batches of 128, 80 times faster than SimPy (`experiments/benchmarks/exact_simulation.py`). Each
    event costs O(servers * phases).

    **Source:** Gillespie (1977), J. Phys. Chem. 81(25), 2340-2361.
    """
    if method != "exact":
        raise ValueError(f'`method` must be "exact", got {method!r}.')
    _checks.kind("system", system, System)
    key = _checks.key("key", key)
    times = _checks.times("times", times)
    scale = _checks.positive("scale", scale)
    replicas = _checks.integer("replicas", replicas, 1)
    start, in_range = _counts(system, initial, scale)
    # One dtype throughout, for the loop over events must carry what it began with.
    dtype = jnp.result_type(times, scale, *system.numbers)
    jobs, valid = _ensemble(
        system, key, times.astype(dtype), scale.astype(dtype), replicas, start, in_range
    )
    return Ensemble(times, jobs, valid)


def _counts(
    system: System, initial: Any, scale: Float[Array, ""]
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
            lambda v: v <= MAX_MEAN_JOBS,
            f"such that the mean number of jobs stays below {MAX_MEAN_JOBS:.0f}",
            "jobs",
        )
    whole = jnp.all((start >= 0) & (start == jnp.round(start)))
    in_range = whole & (start.sum() <= MAX_MEAN_JOBS) & (offered <= MAX_MEAN_JOBS)
    return jnp.where(in_range, start, 0).astype(jnp.int32), in_range


@eqx.filter_jit
def _ensemble(system: System, key: Key[Array, ""], times, scale, replicas: int, start, in_range):
    keys = jax.vmap(lambda replica: jr.fold_in(key, replica))(jnp.arange(replicas))
    return jax.vmap(lambda key: _exact_path(system, key, times, scale, start, in_range))(keys)


def _exact_path(system: System, key: Key[Array, ""], times, scale, start, valid):
    """One path: counts at each time, shape (times, servers, compartments), and whether valid."""

    def one_event(carry):
        key, state, valid = carry
        key, key_step = jr.split(key)
        state, info = exact.step(key_step, state, scale, system)
        return key, state, valid & info.valid

    def to_next_record(carry, duration):
        key, jobs, valid = carry
        valid = valid & jnp.isfinite(duration) & (duration >= 0)
        # A path that is not valid has no event: it waits at every record.
        carry = key, exact.init(jobs, jnp.where(valid, duration, 0)), valid
        key, state, valid = jax.lax.while_loop(lambda c: c[1].time_left > 0, one_event, carry)
        return (key, state.jobs, valid), state.jobs

    durations = jnp.diff(times, prepend=0)
    (_, _, valid), jobs = jax.lax.scan(to_next_record, (key, start, valid), durations)
    return jobs, valid
