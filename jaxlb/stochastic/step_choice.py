"""The steps of a leap: equal ones between records, from a length or from a tolerance.

The error of a step is judged by two numbers. The first is the error of the mean: the leap of the
fluid limit, which has the same scheme without chance, is done with this step and with half of it,
and four thirds of their difference, over the offered load, is taken, the largest at any record. The
second is that of the variance of the imbalance, which the mean does not show near balance: a
hundredth of (lambda theta h)^2, found by comparison with exact variances
(`tests/stochastic/test_step_choice.py`). The error of the step is the larger. Where derivatives are
wanted, those of the mean are judged as the mean is: a rule that hardly looks at the queues has
derivatives although it makes no error.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks, _exponential
from ..model import dynamics
from ..model.system import System
from .frozen import frozen, longest_step
from .leap import arrivals
from .paths import Given, Steps, ring_leaps
from .residence import MOST_PHASES, num_slots

# Of methods that have a ring, and of those whose error is estimated.
RINGS = "ring_leap", "gaussian_ring_leap"
ESTIMATED = "phase_leap", "gaussian_leap", *RINGS
OF_VARIANCE = 0.01
MOST_TRIALS, MOST_STEPS = 30, 10**6
# Of the shortest interval, to fit all.
MOST_PARTS = 10_000


class Choice(NamedTuple):
    """Steps, slots of a ring of them or `None`, and the estimate of their error or `None`."""

    steps: Steps
    slots: int | None
    error: Float[Array, ""] | None


def equal_steps(times: Float[Array, " times"], step_size: Float[Array, ""]) -> Steps:
    """Each interval between records in as few equal steps as possible, not longer than this."""
    durations = jnp.diff(times, prepend=0)
    # Rounding must not add a step to an interval of a whole number of them.
    counts = jnp.ceil(durations / step_size * (1 - 4 * jnp.finfo(times.dtype).eps))
    possible = _checks.is_positive(step_size) & jnp.all(durations >= 0)
    possible = possible & jnp.all(counts < jnp.iinfo(jnp.int32).max)
    counts = jnp.where(possible & (durations > 0), counts, 0).astype(jnp.int32)
    lengths = jnp.where(counts > 0, durations / jnp.maximum(counts, 1), step_size)
    return Steps(counts, lengths, possible)


def common_steps(times: Any, step_size: Any) -> Steps:
    """Every interval in whole numbers of one step, the longest that is not longer than this.

    **Raises:** `ValueError` if there is none that is at most ten thousand times shorter than an
    interval, or if a number is traced.
    """
    if not _checks.is_concrete(times, step_size):
        raise ValueError("`times` and `step_size` must be concrete here, got traced values.")
    durations, always = np.diff(np.asarray(times, float), prepend=0), jnp.ones((), bool)
    least = durations[durations > 0].min(initial=np.inf)
    if np.isinf(least):
        return Steps(jnp.zeros(len(durations), jnp.int32), jnp.full_like(times, step_size), always)
    # What rounding may do to the last time.
    rounding = 8 * float(jnp.finfo(times.dtype).eps) * float(times[-1]) / least
    first = max(math.ceil(least / float(step_size) * (1 - rounding)), 1)
    for parts in range(first, MOST_PARTS + 1):
        counts = durations / least * parts
        if np.all(np.abs(counts - np.round(counts)) < rounding * parts):
            whole = jnp.asarray(np.round(counts), jnp.int32)
            return Steps(whole, jnp.full_like(times, least / parts), always)
    raise ValueError(
        "`times` must be multiples of one step for this method, such as evenly spaced ones, and "
        f"the step {float(step_size):.3g} s not too short for them, got {np.asarray(times)!s:.80}."
    )


def with_steps(given: Given, name: str, step_size: Float[Array, ""]) -> Choice:
    """Steps not longer than this for the method of this name, and their error."""
    if name in RINGS:
        steps = common_steps(given.times, step_size)
        slots = num_slots(given.system, steps.lengths[0])
    else:
        steps, slots = equal_steps(given.times, step_size), None
    if name in ESTIMATED and given.system.num_phases <= MOST_PHASES:
        step, longest = steps.lengths.max(), longest_step(given.system)
        if _checks.is_concrete(step, longest) and step > longest:
            raise ValueError(
                f"`step_size` must be at most {_exponential.LARGEST:.3g} over the fastest rate, "
                f"{longest:.3g} s, got {step:.3g} s."
            )
        steps = steps._replace(possible=steps.possible & (step <= longest))
    return Choice(steps, slots, step_error(given, steps, slots) if name in ESTIMATED else None)


def within(given: Given, name: str, tolerance: Float[Array, ""], slopes: bool = False) -> Choice:
    """The longest steps for which the estimate of their error, and with `slopes` that of the
    derivatives in the numbers of the system, is not above this.

    **Raises:** `ValueError` if a number is traced, or more than a million steps were needed.
    """
    if not _checks.is_concrete(given, tolerance):
        raise ValueError("`tolerance` must be concrete, with all other numbers, got traced values.")
    longest = jnp.diff(given.times, prepend=0).max()
    # As long as the variance allows at balance, if the rule has its largest slope there.
    stiffness = _gain(given.system, jnp.zeros_like(given.start)) / jnp.sqrt(tolerance / OF_VARIANCE)
    step_size = jnp.where(longest > 0, longest, 1.0)
    step_size = jnp.minimum(step_size, 0.999 / jnp.maximum(stiffness, 1e-30))
    step_size = jnp.minimum(step_size, longest_step(given.system))
    for _ in range(MOST_TRIALS):
        if float(given.times[-1] / step_size) > MOST_STEPS:
            break
        found = with_steps(given, name, step_size)
        error = float(found.error)  # pyright: ignore[reportArgumentType]
        if slopes and error <= float(tolerance):
            error = float(slope_error(given, found.steps, found.slots))
        if error <= float(tolerance):
            return found
        # Of second order; to a number of steps that is sure to be another one.
        shorter = 0.95 * math.sqrt(float(tolerance) / error) if math.isfinite(error) else 0.5
        step_size = found.steps.lengths.max() * min(max(shorter, 0.1), 0.9)
    raise ValueError(
        f"`tolerance` must be such that at most {MOST_STEPS} steps meet it, got "
        f"{float(tolerance):.3g}."
    )


def step_error(given: Given, steps: Steps, slots: int | None) -> Float[Array, ""]:
    """The error of these steps as above; `slots` for the form with a ring."""
    jobs, finer = _means(given, given.system, steps, slots)
    return _error(given.system, jobs, finer, steps.lengths.max())


@eqx.filter_jit
def slope_error(given: Given, steps: Steps, slots: int | None) -> Float[Array, ""]:
    """The largest error of a derivative of mean queues in the logarithm of a number of the system,
    or of each array together, relative to the largest such derivative; in a zero itself."""
    numbers, rest = eqx.partition(given.system, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(numbers)

    def queues(change):
        moved = [
            leaf + part * jnp.where(jnp.any(leaf != 0), leaf, 1.0)
            for leaf, part in zip(leaves, change, strict=True)
        ]
        system = eqx.combine(jax.tree.unflatten(tree, moved), rest)
        return [jobs[..., -1] for jobs in _means(given, system, steps, slots)]

    slopes, finer = jax.jacfwd(queues)(jnp.zeros(len(leaves), given.times.dtype))
    load = jnp.mean(given.system.offered_load)
    # Where a derivative is next to nothing, so is its error.
    size = jnp.maximum(jnp.abs(finer).max(axis=(0, 1)), 1e-3 * load)
    return jnp.max(4 / 3 * jnp.abs(slopes - finer).max(axis=(0, 1)) / size)


def _means(given: Given, system: System, steps: Steps, slots: int | None):
    """Jobs per unit of scale at records by the leaps without chance, with these steps and half."""
    fluid = given._replace(
        system=system,
        replicas=jnp.zeros(1, jnp.int32),
        scale=jnp.ones_like(given.scale),
        start=given.start / given.scale,
    )
    half = steps._replace(counts=2 * steps.counts, lengths=steps.lengths / 2)
    # Both forms have the same law.
    if slots is None or 0 < system.num_phases <= MOST_PHASES:
        return _fluid_leaps(fluid, steps), _fluid_leaps(fluid, half)
    whole = ring_leaps(fluid, steps, slots, "means")[0][0]
    return whole, ring_leaps(fluid, half, 2 * slots, "means")[0][0]


@eqx.filter_jit
def _error(system: System, jobs, finer, step_size) -> Float[Array, ""]:
    load = jnp.mean(system.offered_load)
    of_mean = 4 / 3 * jnp.abs(jobs - finer)[..., -1].max() / load
    # Where the path is, and where it would be balanced.
    seen = jnp.concatenate([jobs, jobs.mean(axis=1, keepdims=True) + 0 * jobs])
    stiffness = jax.vmap(lambda jobs: _gain(system, jobs))(seen).max() * step_size
    return jnp.maximum(of_mean, OF_VARIANCE * stiffness**2)


@eqx.filter_jit
def _fluid_leaps(given: Given, steps: Steps) -> Float[Array, "times servers compartments"]:
    """The means of the trapezoidal exact leap, without chance; on one replica."""
    system, shape = given.system, given.jobs.shape

    def to_next_record(jobs, interval):
        count, length = interval
        laws = frozen(system, length)
        # One product for all servers.
        stay = jax.scipy.linalg.block_diag(*laws.stay).T

        def one_step(_, jobs):
            kept = (stay @ jobs.ravel()).reshape(shape)
            new = arrivals(system, given.scale, jobs, kept, laws)
            return kept + new.early + new.late

        jobs = jax.lax.fori_loop(0, count, one_step, jobs)
        return jobs, jobs[..., 0]

    return jax.lax.scan(to_next_record, given.jobs, (steps.counts, steps.lengths))[1]


def _gain(system: System, jobs: Float[Array, "servers compartments"]) -> Float[Array, ""]:
    """Most that one more job at a server changes its inflow, over 1 - 1 / servers, 1/s.

    For `Logit`, with any number of servers, lambda theta at balance.
    """
    servers, phases = system.num_servers, system.num_phases
    # Where jobs in transit are not counted the rule does not look at them.
    jobs = jobs[:, -phases - 1 :]
    jobs = jnp.pad(jobs, ((0, 0), (phases + 1 - jobs.shape[1], 0)))

    def share_of(number):
        return jax.grad(lambda row: dynamics.shares(system, jobs.at[number].set(row))[number])(
            jobs[number]
        )

    slopes = jnp.stack([share_of(number) for number in range(servers)])
    return servers**2 / max(servers - 1, 1) * system.arrival_rate * jnp.abs(slopes).max()
