"""Limit cycles along a parameter: the branch that is born at a Hopf point."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ... import _checks
from ...model import imbalance
from ...model.system import System
from ...stability import hopf_frequency
from .cycle import MOST, TRACED, exists, find
from .floquet import floquet

# Members of a batch at a time; the tail beyond which a cycle is found again with more harmonics;
# halvings between a value with a cycle and one without.
BATCH, ENOUGH, HALVINGS = 16, 1e-11, 50


class Branch(NamedTuple):
    """Cycles along a parameter; numpy arrays of one length.

    - `values`: of the parameter, increasing: those asked for and the Hopf points between them.
    - `amplitude`, `period`, `valid`: as in `LimitCycle`. At a Hopf point the amplitude is zero and
      the period that of the oscillation that is born.
    - `multiplier`: the largest Floquet multiplier but 1; 1 at a Hopf point, NaN without a cycle.
    - `is_hopf`: which values are Hopf points.
    """

    values: Any
    amplitude: Any
    period: Any
    multiplier: Any
    valid: Any
    is_hopf: Any


def continuation(system_of: Callable[[Any], System], values: Any) -> Branch:
    """The limit cycle of `system_of(value)` for each value, and the Hopf points between values.

    **Arguments:** `system_of`: value of any parameter to a system as `find` takes; it is traced.
    `values`: shape (values,), increasing.

    **Returns:** a `Branch`. Each cycle is found by itself, all in batches: with the describing
    function as a start Newton's method takes 3 to 5 steps anywhere between the Hopf point and the
    relay limit (`relay_limit`), so that a neighbour would be no better start.

    **Cost:** 10 s on one core, nearly all of it compilation at each call, for 64 values up to three
    times the critical sensitivity of Figure 3; 50 s for the example below, where sharp rules need
    512 harmonics.

    **Raises:** `ValueError` on a bad argument, or where the difference system is not closed.

    **Example:** `continuation(lambda theta: System(15, 1, Erlang(1, 2), Logit(theta)),
    jnp.geomspace(0.5, 50, 100))`.
    """
    values = _checks.finite("values", values, shape=(None,))
    _checks.require("values", values, lambda v: np.all(np.diff(v) > 0), "increasing")
    imbalance.require_closed(system_of(values[0]))
    there = np.asarray(_each(lambda value: exists(system_of(value)), values))
    onsets = _onsets(system_of, np.asarray(values), there)
    periods = 2 * np.pi / np.asarray(_each(lambda value: hopf_frequency(system_of(value)), onsets))
    cycles = _cycles(system_of, values)
    at_hopf = 0 * periods, periods, 0 * periods + 1, periods > 0
    joined = [np.append(a, b) for a, b in zip(cycles, at_hopf, strict=True)]
    values = np.append(values, onsets)
    order = np.argsort(values)
    is_hopf = np.arange(len(values)) >= len(there)
    return Branch(*(array[order] for array in (values, *joined, is_hopf)))


def _each(function: Callable[[Any], Any], values: Any) -> Any:
    """`function` of each value, a batch at a time; numpy arrays."""
    mapped = jax.jit(lambda values: jax.lax.map(function, values, batch_size=BATCH))
    return jax.tree.map(np.array, mapped(jnp.asarray(values)))


def _cycles(system_of: Callable[[Any], System], values: Any):
    """Amplitude, period, multiplier and validity; sharp rules again with more harmonics."""

    def of(value, size):
        system = system_of(value)
        cycle = find(system, *size)
        largest = floquet(system, cycle).multipliers[0]
        largest = jnp.where(cycle.exists, largest, jnp.nan)
        return (cycle.amplitude, cycle.period, largest, cycle.valid), cycle.tail

    found, tail = _each(lambda value: of(value, TRACED), values)
    again = np.flatnonzero(tail > ENOUGH)
    if len(again):
        finer, _ = _each(lambda value: of(value, MOST), values[again])
        for array, better in zip(found, finer, strict=True):
            array[again] = better
    return found


def _onsets(system_of: Callable[[Any], System], values: np.ndarray, there: np.ndarray):
    """Where cycles come or go between neighbouring values, by halving."""
    at = np.flatnonzero(there[1:] != there[:-1])
    low, high, first = (jnp.asarray(array) for array in (values[at], values[at + 1], there[at]))

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        like_low = jax.lax.map(lambda value: exists(system_of(value)), middle, batch_size=BATCH)
        like_low = like_low == first
        return jnp.where(like_low, middle, low), jnp.where(like_low, high, middle)

    low, high = jax.lax.fori_loop(0, HALVINGS, halve, (low, high))
    return np.asarray(jnp.where(first, low, high))
