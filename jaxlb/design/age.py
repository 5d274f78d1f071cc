"""Jobs in transit by their age: what a dispatcher that logs its own decisions knows of their phase.

A job of age a that has not arrived is in phase l with a chance proportional to p_l(a), the entries
of p(a) = initial exp(G a).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..model.delays import AbstractPhaseDelay
from ..model.memory import AgeLogit
from ..model.system import System, require_one
from ..stability.domain import flagged, is_valid
from .kalman import require_weights

# Ages looked at: from `FIRST` over the fastest rate on, so many octaves.
FIRST, OCTAVES = 2.0**-6, 22
# Points of the table in each. Terms of an exponential of size `FIRST`.
PER_OCTAVE, TERMS = 16, 6


def by_age(system: System) -> AgeLogit:
    """The rule of a dispatcher that logs when it sent each job, from one for phases that are seen.

    A job in transit counts the mean weight of the phases that a job of its age may be in. On
    average that is what the phases count, so that the fluid limit near balance, its roots and its
    decay rate are those of the given rule; only the noise differs.

    **Arguments:** `system`: with a delay with phases and a `WeightedLogit`.

    **Returns:** an `AgeLogit`; its weight is a table of ages with cubic interpolation, which costs
    the same for any number of phases.

    **Raises:** `ValueError` on a bad argument. Traced, NaN.

    **Accuracy:** of interpolation, 1e-8 with the weights of `jaxlb.design.lqr` for 2 stages, 1e-7
    for 10, 5e-7 for 50; with weights that rise and fall every few of 50 stages 2e-5. In float32
    1e-5. From 2^16 over the fastest rate on, the weight is constant (`tests/design/test_age.py`).

    **Cost:** on one core 4 ms up to 10 phases, 7 ms with 50
    (`experiments/benchmarks/design_costs.py`).
    """
    require_one(system)
    routing = require_weights(system)
    require_phases(system)
    with jax.default_matmul_precision("highest"):
        weight = flagged(is_valid(system), _table, system)
    return AgeLogit(routing.sensitivity, weight)


def require_phases(system: System) -> AbstractPhaseDelay:
    """The delay, if it has phases to be in; else `ValueError`."""
    delay = system.phase_delay("jobs of some age")
    if delay.num_phases == 0:
        raise ValueError("`delay` must keep jobs in transit for a time, got NoDelay.")
    return delay


class MeanWeight(eqx.Module):
    """From the age of a job, s, to its mean weight: values and slopes at `ages`, cubic between."""

    ages: Float[Array, " points"]
    values: Float[Array, " points"]
    slopes: Float[Array, " points"]

    def __call__(self, age: Float[Array, ""]) -> Float[Array, ""]:
        octave = jnp.log2(jnp.maximum(age / self.ages[1], 0.5))
        cell = jnp.floor(1 + PER_OCTAVE * octave).astype(jnp.int32)
        cell = jnp.clip(cell, 0, len(self.ages) - 2)
        start, value, slope = self.ages[cell], self.values[cell], self.slopes[cell]
        step, after = self.ages[cell + 1] - start, self.values[cell + 1]
        part = jnp.where(age < self.ages[-1], (age - start) / step, 1.0)
        rise = after - value
        first, last = step * slope - rise, step * self.slopes[cell + 1] - rise
        bend = (1 - part) * first - part * last
        return value + part * (rise + (1 - part) * bend)


@eqx.filter_jit
def _table(system: System) -> MeanWeight:
    delay: Any = system.delay
    weights = require_weights(system).weights
    found = ages(delay, PER_OCTAVE)
    values = found.phase @ weights
    # p' = p G, and what has left does not count.
    moved = found.phase @ delay.generator
    slopes = moved @ weights - moved.sum(axis=1) * values
    return MeanWeight(found.ages, values, slopes)


class Ages(NamedTuple):
    """Ages, s, from zero; the chances of each phase of a job that is still in transit then; and the
    chance that it is."""

    ages: Float[Array, " points"]
    phase: Float[Array, "points phases"]
    left: Float[Array, " points"]


def ages(delay: AbstractPhaseDelay, per_octave: int) -> Ages:
    """The law of a job at ages in equal ratios, that many in a factor of two."""
    law: Any = delay
    generator, initial = law.generator, law.initial
    first = FIRST / jnp.max(-jnp.diagonal(generator))
    ratios = 2 ** (jnp.arange(per_octave + 1, dtype=generator.dtype) / per_octave)
    steps = first * jnp.append(1.0, jnp.diff(ratios)).astype(generator.dtype)
    steps = steps[:, None, None] * generator
    identity = jnp.eye(len(generator), dtype=generator.dtype)
    moves = identity + 0 * steps
    for k in range(TERMS, 0, -1):
        moves = identity + steps / k @ moves

    def move(state, chances):
        phase, left = state
        after = phase @ chances
        total = jnp.sum(after)
        # After so long that none is left to rounding the phase is the one before.
        some = total > 0
        after = jnp.where(some, after / jnp.where(some, total, 1.0), phase)
        return (after, left * total), (after, left * total)

    def octave(state, _):
        moves, *job = state
        job, found = jax.lax.scan(move, tuple(job), moves)
        return (moves @ moves, *job), found

    start, _ = move((initial, jnp.ones_like(first)), moves[0])
    _, (phase, left) = jax.lax.scan(octave, (moves[1:], *start), length=OCTAVES)
    powers = 2.0 ** jnp.arange(OCTAVES, dtype=generator.dtype)
    later = (first * powers[:, None] * ratios[1:]).ravel()
    return Ages(
        jnp.concatenate([jnp.stack([0 * first, first]), later]),
        jnp.concatenate([jnp.stack([initial, start[0]]), phase.reshape(-1, len(initial))]),
        jnp.concatenate([jnp.stack([jnp.ones_like(first), start[1]]), left.ravel()]),
    )
