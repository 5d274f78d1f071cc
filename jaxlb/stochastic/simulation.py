"""`simulate`: paths of one system by any method, in chunks of replicas, over all devices."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import dynamics
from ..model.delays import AbstractPhaseDelay
from ..model.system import System, require_one
from . import marks, paths, step_choice
from .ensemble import PARTS, Collector, Ensemble
from .langevin import langevin
from .paths import Given, Steps
from .step_choice import RINGS

# Counts are 32-bit integers. A mean at a quarter of their range leaves no chance of overflow.
MAX_MEAN_JOBS = 2.0**29
EXACT = "exact", "direct", "marks"
CLASSICAL = "poisson_leap", "binomial_leap", "langevin"
METHODS = *EXACT, "leap", "phase_leap", "ring_leap", "gaussian_leap", *CLASSICAL
# What does not count jobs in each phase.
WITHOUT_PHASES = "marks", *RINGS
# What leaves the form open: up to so many phases the first is faster, which follows each of them.
FORMS = {
    "exact": (2, "direct", "marks"),
    "leap": (6, "phase_leap", "ring_leap"),
    "gaussian_leap": (6, "gaussian_leap", "gaussian_ring_leap"),
}
# Phases up to which a program that follows each of them compiles within a minute or two.
MOST_FOLLOWED = {"phase_leap": 50, "gaussian_leap": 20}
LEVELS = 0.05, 0.25, 0.5, 0.75, 0.95
# Most numbers in the paths of one chunk.
CHUNK_NUMBERS = 2**24


def simulate(
    system: System,
    key: Any,
    times: Any,
    scale: Any = 1.0,
    replicas: int | Any = 1,
    initial: Any = None,
    method: str = "exact",
    step_size: Any = None,
    tolerance: Any = None,
    keep: str | Iterable[str] = "jobs",
    levels: Any = LEVELS,
    burn_in: Any = 0.0,
    chunk_size: int | None = None,
    progress: bool = False,
) -> Ensemble:
    """Independent paths of the Markov jump process from time zero, at the given times.

    **Arguments:**

    - `key`: a JAX random key. The path of replica k depends on `key` and k alone, to the last bit,
      not on how many replicas there are, in what order, in what chunks or on how many devices.
    - `times`: s, increasing, from 0 on, shape (times,).
    - `scale`: eta of the paper, > 0: jobs arrive at rate scale * num_servers * arrival_rate and the
      dispatcher sees counts divided by `scale`.
    - `replicas`: how many, integer >= 1: those numbered 0, 1, ...; or their numbers, shape
      (replicas,), to go on where another run has ended.
    - `initial`: counts at time zero: all, shape (servers, compartments), or those in service, shape
      (servers,), with none in transit. By default the paper's start: `scale` jobs in service at
      each server but the first.
    - `method`, exact ones:
      - "exact": the faster of the next two for this system, or the one that can do it.
      - "direct": Gillespie's direct method, event by event; any rule, unequal servers.
      - "marks": the times of all jobs first, then their servers (`jaxlb.stochastic.marks`): any
        delay that can be drawn and any number of phases, for alike servers and a rule that looks
        at the queues alone, or one with a memory (`jaxlb.model.memory`), which only this follows.

      By steps:
      - "leap": the trapezoidal exact leap, in the faster of its forms: jobs that are present move
        by their exact law, so that no count becomes negative, whatever the step. "phase_leap"
        counts jobs in each phase (`jaxlb.stochastic.leap`); "ring_leap" takes any delay, and a
        rule that looks at the queues alone (`jaxlb.stochastic.ring`).
      - "gaussian_leap": the same with normal numbers, which have derivatives.
      - "poisson_leap", "binomial_leap", "langevin": the classical methods, for comparison. See
        `jaxlb.stochastic.classical` and `jaxlb.stochastic.langevin` for what they do wrong.
    - `step_size`: s: each interval between records is cut into equal steps that are not longer.
      With a ring all steps are equal, so times must be multiples of one.
    - `tolerance`: instead of `step_size`, for "leap" and its forms: the longest step for which the
      estimate of the relative error in means and in the variance of the imbalance
      (`jaxlb.stochastic.step_choice`) is not above this.
    - `keep`: what of the paths to keep, one or more of "jobs", "final", "mean", "variance",
      "covariance", "quantiles", "time_average", "histogram", "autocorrelation"; see `Ensemble` and
      `Statistics`. Without "jobs" memory does not grow with the number of replicas, but for 5 bytes
      each, and "final".
    - `levels`: of the quantiles, each in (0, 1). `burn_in`: s; time averages, histogram and
      autocorrelation are over records from then on, the last for evenly spaced times.
    - `chunk_size`: replicas at a time; by default as many as are fast.
    - `progress`: whether to show a bar.

    Under `jit`, `vmap` and `grad` all replicas are one chunk, and only "jobs" and "final" are kept.

    **Returns:** an `Ensemble`. Counts jump, so they have no gradient; real numbers of jobs have one
    in forward mode (`jax.jvp`, `jax.jacfwd`). `expectation_gradient` does the rest.

    **Raises:** `ValueError` on a bad argument; where counts might not fit 32 bits, or float32; and
    where a method cannot do the system.

    **Accuracy:** exact methods are exact in law but for the rounding of the rates. In float32 an
    event whose rate is below 1e-7 of the total is drawn with a coarse probability, and waits are
    coarse if there are more than a million events between two records. "leap" is exact for
    sensitivity zero, and else of second order in the step h as long as lambda * theta * h is not
    much above one: in four small systems the variance of the imbalance is within 0.9 % where that
    is 0.3 to 0.75, within 1.3 % at 1 to 1.5, but for 5 % in one fast transient, and 1.5 to 11 % off
    at 2.5 and 3 (`experiments/leaping.py`). Draws have the right law to 1e-4 in total variation,
    those of a mean up to 12 to 1e-13 (`tests/stochastic/test_samplers.py`).

    **Cost:** see `experiments/benchmarks/stochastic.py`. An event of the direct method costs
    O(servers * phases), a job of the marks O(1) and what a memory costs, a leap
    O(servers * phases^2), or O(servers * delay / step) with a ring, whatever the number of events.

    **Source:** Gillespie (1977), J. Phys. Chem. 81(25), 2340-2361.
    """
    require_one(system)
    known = _checks.is_concrete(system, times, scale, initial)
    name = chosen(system, method, known)
    given = _given(system, key, times, scale, replicas, initial, name)
    steps, slots, error = _steps(given, name, method, step_size, tolerance)
    given = given._replace(possible=given.possible & (True if steps is None else steps.possible))
    size = marks.sizes(system, given.times, given.scale, given.start) if name == "marks" else None

    def run(numbers: Any) -> tuple[Any, Any]:
        return _paths(given._replace(replicas=numbers), name, steps, slots, size)

    keep, levels, burn_in = _wanted(keep, levels, burn_in, given.times)
    lengths = None if steps is None else steps.lengths
    parts = {"method": name, "step_size": lengths, "step_error": error}
    numbers = given.replicas
    if not _checks.is_concrete(given, steps):
        if set(keep) - {"jobs", "final"}:
            raise ValueError(f'`keep` must be "jobs" or "final" with traced numbers, got {keep}.')
        jobs, valid = run(numbers)
        final = jobs[:, -1] if "final" in keep else None
        jobs = jobs if "jobs" in keep else None
        return Ensemble(given.times, jobs, valid, numbers, final=final, **parts)
    collector = Collector(keep, np.asarray(given.times), len(numbers), levels, burn_in)
    flags = []
    for jobs, valid in _chunks(run, np.asarray(numbers), _chunk_size(given, chunk_size), progress):
        collector.add(jobs, valid)
        flags.append(valid)
    return Ensemble(
        given.times,
        collector.paths("jobs"),
        jnp.asarray(np.concatenate(flags)),
        numbers,
        final=collector.paths("final"),
        statistics=collector.statistics(),
        **parts,
    )


def chosen(system: System, method: str, known: bool = True) -> str:
    """The method by its own name; marks need numbers that are `known`, not traced."""
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    if system.looks_at_the_past:
        if method not in ("exact", "marks"):
            raise ValueError(
                f'`routing` must look at the present alone for method "{method}", got '
                f"{type(system.routing).__name__}."
            )
        return "marks"
    in_phases = isinstance(system.delay, AbstractPhaseDelay)
    asked = method
    if method in FORMS:
        most, following, other = FORMS[method]
        follow = system.num_phases <= most or not system.looks_at_queues_alone
        if method == "exact":
            follow = follow or not (system.are_alike and known)
        method = following if in_phases and follow else other
    if method in WITHOUT_PHASES and not system.looks_at_queues_alone:
        raise ValueError(
            f'`routing` must look at the queues alone for method "{asked}", such as Logit or a '
            f"function of one argument, got {type(system.routing).__name__}."
        )
    most = MOST_FOLLOWED.get(method, system.num_phases)
    if system.num_phases > most:
        raise ValueError(
            f"`delay` must have at most {most} phases to be followed through each of them by "
            f'method "{asked}" (a ring does not, for rules that look at queues alone), got '
            f"{system.num_phases}."
        )
    return method


def _given(
    system: System, key: Any, times: Any, scale: Any, replicas: Any, initial: Any, name: str
) -> Given:
    """What every method needs, checked."""
    key = _checks.key("key", key)
    times = _checks.times("times", times)
    scale = _checks.positive("scale", scale)
    # One dtype throughout, for the loop over events must carry what it began with.
    dtype = jnp.result_type(times, scale, *system.numbers)
    most = MAX_MEAN_JOBS if name in EXACT else 0.25 / float(jnp.finfo(dtype).eps)
    start, in_range = initial_counts(system, initial, scale, min(most, MAX_MEAN_JOBS), name)
    return Given(
        system,
        key,
        _numbers(replicas),
        times.astype(dtype),
        scale.astype(dtype),
        start.astype(dtype),
        in_range & system.valid,
    )


def _numbers(replicas: Any) -> Array:
    """The number of each replica."""
    numbered = "from 0 to 2^31 - 1"
    complaint = f"`replicas` must be an integer, or a vector of them, got {replicas!r:.200}."
    try:
        one = np.ndim(replicas) == 0
        numbers = replicas if one else jnp.asarray(replicas)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(complaint) from error
    if one:
        count = _checks.integer("replicas", numbers, 1)
        _checks.require("replicas", count, lambda v: v <= 2**31, f"numbered {numbered}")
        return jnp.arange(count, dtype=jnp.int32)
    if not jnp.issubdtype(numbers.dtype, jnp.integer) or numbers.ndim != 1 or not len(numbers):
        raise ValueError(complaint)
    _checks.require("replicas", numbers, lambda v: (v >= 0) & (v < 2**31), numbered)
    return numbers.astype(jnp.int32)


def initial_counts(
    system: System, initial: Any, scale: Float[Array, ""], most: float, name: str
) -> tuple[Float[Array, "servers compartments"], Bool[Array, ""]]:
    """Initial state, and whether counts will stay in range."""
    start = dynamics.initial_jobs(system, initial, jnp.round(scale))
    _checks.require("initial", start, lambda v: v == np.round(v), "whole numbers of jobs", "jobs")
    time_in_system = system.delay.mean + 1 / jnp.min(system.service_rates)
    offered = scale * system.num_servers * system.arrival_rate * time_in_system
    totals = {"scale": offered, "initial": start.sum()}
    for argument, total in totals.items():
        _checks.require(
            argument,
            total,
            lambda v: v <= most,
            f"such that the mean number of jobs stays below {most:.0f}",
            "jobs",
        )
    whole = jnp.all((start >= 0) & (start == jnp.round(start)))
    if name in RINGS:
        none = "without jobs in transit for a ring of steps"
        _checks.require("initial", start, lambda v: v[:, :-1] == 0, none, "jobs")
        whole = whole & jnp.all(start[:, :-1] == 0)
    in_range = whole & (start.sum() <= most) & (offered <= most)
    return jnp.where(in_range, start, 0), in_range


def _steps(
    given: Given, name: str, asked: str, step_size: Any, tolerance: Any
) -> tuple[Steps | None, int | None, Any]:
    """Steps of the method, slots of its ring, and the estimate of its error."""
    values = {"step_size": step_size, "tolerance": tolerance}
    if name in EXACT:
        for argument, value in values.items():
            if value is not None:
                raise ValueError(
                    f'`{argument}` must be left out with method "{asked}", got {value!r}.'
                )
        return None, None, None
    if name in CLASSICAL and tolerance is not None:
        raise ValueError(f'`tolerance` must be left out with method "{asked}", got {tolerance!r}.')
    if (step_size is None) == (tolerance is None):
        raise ValueError(
            f'One of `step_size` and `tolerance` must be given with method "{asked}", got '
            f"{step_size!r} and {tolerance!r}."
        )
    dtype = given.times.dtype
    if tolerance is None:
        step_size = _checks.positive("step_size", step_size, "s").astype(dtype)
        return step_choice.with_steps(given, name, step_size)
    tolerance = _checks.positive("tolerance", tolerance).astype(dtype)
    return step_choice.within(given, name, tolerance)


def _paths(given: Given, name: str, steps: Any, slots: Any, sizes: Any) -> tuple[Any, Any]:
    """Paths of the replicas given, and whether they are valid."""
    if name == "direct":
        return paths.direct(given)
    if name == "marks":
        start = given.start.astype(jnp.int32)
        return marks.paths(*given._replace(start=start), sizes)
    if name == "langevin":
        return langevin(given, steps)
    if slots is None:
        jobs, valid = paths.leaps(given, steps, name)
    else:
        kind = "normal" if name == "gaussian_ring_leap" else "counts"
        jobs, valid = paths.ring_leaps(given, steps, slots, kind)
    real = name in ("gaussian_leap", "gaussian_ring_leap")
    return (jobs if real else jobs.astype(jnp.int32)), valid


def _wanted(keep: Any, levels: Any, burn_in: Any, times: Any) -> tuple[tuple[str, ...], Any, float]:
    """What to keep, and of which levels and times."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        keep = (keep,)
    keep = tuple(keep)
    if not keep or not all(isinstance(part, str) and part in PARTS for part in keep):
        raise ValueError(f"`keep` must be one or more of {', '.join(PARTS)}, got {keep!r}.")
    with jax.ensure_compile_time_eval():
        levels = _checks.finite("levels", levels, shape=(None,))
        burn_in = _checks.not_negative("burn_in", burn_in, "s")
    one_or_more = "one or more numbers between 0 and 1"
    _checks.require("levels", levels, lambda v: v.size and (v > 0) & (v < 1), one_or_more)
    if {"time_average", "histogram", "autocorrelation"} & set(keep):
        last = times[-1]
        _checks.require("burn_in", burn_in, lambda v: v <= last, f"at most the last time, {last}")
    if "autocorrelation" in keep:
        late = np.diff(np.asarray(times)[np.asarray(times) >= float(burn_in)])
        if len(late) < 1 or np.ptp(late) > 1e-5 * late.max():
            raise ValueError('`times` must be evenly spaced to keep "autocorrelation".')
    return keep, np.asarray(levels), float(burn_in)


def _chunk_size(given: Given, wanted: int | None) -> int:
    """Replicas at a time."""
    if wanted is not None:
        return _checks.integer("chunk_size", wanted, 1)
    fitting = CHUNK_NUMBERS // (len(given.times) * given.start.size)
    return max(min(paths.lanes(), fitting), 16)


def _chunks(run: Any, numbers: np.ndarray, size: int, progress: bool) -> Iterator[tuple[Any, Any]]:
    """Paths of all replicas in turn, spread over the devices there are."""
    # It takes a while to import, and is not needed for what is quick.
    from tqdm import tqdm

    size = min(size, len(numbers))
    devices = jax.local_devices()
    sharding = None
    if len(devices) > 1 and len(numbers) >= len(devices):
        size = -(-size // len(devices)) * len(devices)
        mesh = jax.sharding.Mesh(np.array(devices), ("replicas",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("replicas"))
    with tqdm(total=len(numbers), unit="path", disable=not progress) as bar:
        for begin in range(0, len(numbers), size):
            part = numbers[begin : begin + size]
            # The last chunk is filled up, so that it needs no program of its own.
            filled = np.concatenate([part, np.repeat(part[-1:], size - len(part))])
            jobs, valid = run(jax.device_put(jnp.asarray(filled), sharding))
            yield np.asarray(jobs)[: len(part)], np.asarray(valid)[: len(part)]
            bar.update(len(part))
