"""Paths by job marks and what is counted on them, for tests of more than one module."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from jaxlb.stochastic import marks

# One size for most, so that systems of one kind share a program.
REPLICAS, SIZES = 40_000, marks.Sizes(64, 64)


def paths(system, seed, times, scale, start, replicas=REPLICAS, sizes=SIZES):
    """Counts of valid paths, shape (replicas, times, servers, transit and service)."""
    times, start = jnp.asarray(times), jnp.asarray(start, jnp.int32)
    scale, ids = jnp.asarray(scale, times.dtype), jnp.arange(replicas)
    given = system, jr.key(seed), ids, times, scale, start, jnp.asarray(True), sizes
    jobs, valid = marks.paths(*given)
    assert valid.all()
    return np.asarray(jobs)


def imbalance(jobs):
    return jobs[..., 0, -1] - jobs[..., 1, -1]


def first_server(jobs):
    """Jobs in transit to the first server and in service there, as one number."""
    return jobs[..., 0, :-1].sum(axis=-1) + 64 * jobs[..., 0, -1]
