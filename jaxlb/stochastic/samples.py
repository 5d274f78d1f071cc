"""What paths give for the derivative of an expectation: numbers of each, their means and errors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .paths import Given

# What a path gives, with replicas as the last axis: f, a number for each parameter, and whether
# the path is valid.
Sample = tuple[
    Float[Array, " replicas"], Float[Array, "parameters replicas"], Bool[Array, " replicas"]
]

# What they give together: the mean of f, its standard error, those of each derivative, and how many
# valid paths there were.
Estimate = tuple[Array, Array, Array, Array, Array]

# The fewest replicas that fill the registers of a CPU.
FEWEST = 8


def observed(observable: Callable, jobs: Array, given: Given) -> Float[Array, " replicas"]:
    """The observable of these jobs, shape (servers, compartments, replicas)."""
    dtype = given.times.dtype
    return jax.vmap(lambda jobs: jnp.asarray(observable(jobs), dtype), -1)(jobs.astype(dtype))


def in_chunks(sample: Callable[[Any], Sample], replicas: int, lanes: int) -> Sample:
    """Samples of all replicas, some at a time; numbers in the widest type there is."""
    chunks = -(-replicas // lanes)
    ids = jnp.arange(chunks * -(-replicas // chunks), dtype=jnp.uint32).reshape(chunks, -1)
    values, slopes, valid = jax.lax.map(sample, ids)
    slopes = jnp.moveaxis(slopes, 0, 1).reshape(slopes.shape[1], -1)
    wide = jnp.result_type(float)
    values, slopes = (part[..., :replicas].astype(wide) for part in (values.ravel(), slopes))
    # What comes after must be done in one way, however many chunks there are.
    return jax.lax.optimization_barrier((values, slopes, valid.ravel()[:replicas]))


def mean_and_error(samples: Float[Array, "... replicas"], valid: Bool[Array, " replicas"]):
    """Mean over valid replicas and its standard error; NaN of less than one, and two."""
    count = valid.sum()
    average = jnp.where(valid, samples, 0.0).sum(axis=-1) / count
    excess = jnp.where(valid, samples - average[..., None], 0.0)
    return average, jnp.sqrt((excess**2).sum(axis=-1) / (count * (count - 1)))
