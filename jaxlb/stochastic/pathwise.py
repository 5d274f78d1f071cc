"""Derivatives along the paths of the Gaussian leap: forward in few numbers, in reverse in many.

Forward, each number costs a path beside that of the values, and each replica gives derivatives of
its own. In reverse all numbers together cost about ten paths, but the derivatives are summed over a
group of replicas, and their errors are told from the spread of groups.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from .paths import Given, Steps, leaps, ring_leaps
from .samples import FEWEST, Estimate, Sample, in_chunks, mean_and_error, observed

# Numbers up to which forward is faster; groups of replicas, at least.
FEW, GROUPS = 10, 64


def pathwise(
    given: Given,
    observable: Callable,
    steps: Steps,
    slots: int | None,
    replicas: int,
    lanes: int,
) -> Estimate:
    """The expectation and its derivatives in all numbers of the system; `slots` of a ring, if any.

    `lanes`: paths at a time.
    """
    count = sum(number.size for number in given.system.numbers)
    by = _forward if count <= FEW else _reverse
    given = given._replace(possible=given.possible & steps.possible)
    return by(given, observable, steps, slots, replicas, lanes)


@eqx.filter_jit
def _forward(given: Given, observable, steps, slots, replicas: int, lanes: int) -> Estimate:
    flat, values_of = _values(given, observable, steps, slots)

    def sample(ids) -> Sample:
        def values(flat):
            value, valid = values_of(flat, ids, given.possible)
            return value, (value, valid)

        slopes, (value, valid) = jax.jacfwd(values, has_aux=True)(flat)
        return value, slopes.T, valid & (ids < replicas)

    values, slopes, valid = in_chunks(sample, replicas, max(lanes // (1 + len(flat)), FEWEST))
    return (*mean_and_error(values, valid), *mean_and_error(slopes, valid), valid.sum())


@eqx.filter_jit
def _reverse(given: Given, observable, steps, slots, replicas: int, lanes: int) -> Estimate:
    flat, values_of = _values(given, observable, steps, slots, reversible=True)

    def group(ids):
        # Paths that will fail do not begin, for 0 times NaN would be NaN for all of the group.
        valid = values_of(flat, ids, given.possible)[1] & (ids < replicas)

        def total(flat):
            value, _ = values_of(flat, ids, valid)
            value = jnp.where(valid, value, 0.0)
            return value.sum(), value

        slope, value = jax.grad(total, has_aux=True)(flat)
        return value, slope, valid

    size = min(-(-replicas // GROUPS), lanes)
    ids = jnp.arange(-(-replicas // size) * size, dtype=jnp.uint32).reshape(-1, size)
    values, slopes, valid = jax.lax.map(group, ids)
    value, value_error = mean_and_error(values.ravel(), valid.ravel())
    count, groups = valid.sum(axis=1), valid.any(axis=1).sum()
    slope = slopes.sum(axis=0) / count.sum()
    excess = slopes - count[:, None] * slope
    slope_error = jnp.sqrt((excess**2).sum(axis=0) * groups / (groups - 1)) / count.sum()
    return value, value_error, slope, slope_error, count.sum()


def _values(given: Given, observable, steps: Steps, slots: int | None, reversible: bool = False):
    """All numbers of the system, and the function from these, replicas and which of them are
    possible to the observable and whether it is valid."""
    numbers, rest = eqx.partition(given.system, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(numbers)

    def values(flat, ids, possible):
        system = eqx.combine(unravel(flat), rest)
        moved = given._replace(system=system, replicas=ids, possible=possible)
        if slots is None:
            jobs, valid = leaps(moved, steps, "gaussian_leap", reversible)
        else:
            jobs, valid = ring_leaps(moved, steps, slots, "normal", reversible)
        return observed(observable, jnp.moveaxis(jobs[:, 0], 0, -1), given), valid

    return flat, values
