"""Observables of a trajectory: one number each, with its derivatives in what the system is made of.

When something happens is found from a trajectory without derivatives. Then the trajectory is made
once more for these times alone, with them. At a maximum its time does not matter to first order,
and where x(T) is at a level dT = -dx / x'.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model.system import System
from . import limit_cycle
from .spread import (
    DEGREE,
    Case,
    Course,
    Now,
    by_panel,
    case_of,
    clenshaw_curtis,
    course,
    crossing,
    held,
    lobes,
    nodes,
    panels_of,
    spread,
)
from .trajectory import solve

# By default, and of Newton's method: cubics give 4 digits of a time, each step doubles them at a
# crossing and adds 2 at a maximum, where the second derivative is the cubic's.
PANELS, REFINEMENTS = 32, 3


class AbstractObservation(eqx.Module):
    """What an observable gives: its value, and whether that means anything; its name and unit."""

    value: eqx.AbstractVar[Float[Array, ""]]
    valid: eqx.AbstractVar[Bool[Array, ""]]
    name: eqx.AbstractVar[str]
    unit: eqx.AbstractVar[str]


class Observation(AbstractObservation):
    """One number. `valid`: whether it was found; if not it is NaN. `name`, `unit`: static."""

    value: Float[Array, ""]
    valid: Bool[Array, ""]
    name: str = eqx.field(static=True)
    unit: str = eqx.field(static=True, default="")


class Peak(AbstractObservation):
    """The largest spread of the queues: `value`, jobs per unit of scale, at `time`, s, held."""

    value: Float[Array, ""]
    time: Float[Array, ""]
    valid: Bool[Array, ""]
    name: str = eqx.field(static=True, default="peak imbalance")
    unit: str = eqx.field(static=True, default="jobs")


class Integral(AbstractObservation):
    """The integral of the squared imbalance: `value`, jobs^2 s. `error_estimate`: how far a rule of
    half as many nodes is from it, relative to it; it is itself nearer by far."""

    value: Float[Array, ""]
    error_estimate: Float[Array, ""]
    valid: Bool[Array, ""]
    name: str = eqx.field(static=True, default="integrated imbalance")
    unit: str = eqx.field(static=True, default="jobs² s")


class Settling(AbstractObservation):
    """The last time that the spread of the queues exceeds a level.

    - `value`: s; zero if it never does, NaN if not `valid`.
    - `level`: jobs per unit of scale.
    - `crossed`: whether it ever does. `settled`: whether it does not at the horizon.
    - `valid`: whether it settled, and the solver reached the horizon.
    - `next_lobe`: by how much, relative to the level, the largest later maximum is below it. Where
      this is zero the time jumps up, to that maximum. One if there is none.
    - `last_lobe`: by how much, relative to the level, the maximum that it came down from is above
      it. Where this is zero the time jumps down. Infinite if it came down from the start.
    """

    value: Float[Array, ""]
    level: Float[Array, ""]
    crossed: Bool[Array, ""]
    settled: Bool[Array, ""]
    valid: Bool[Array, ""]
    next_lobe: Float[Array, ""]
    last_lobe: Float[Array, ""]
    name: str = eqx.field(static=True, default="settling time")
    unit: str = eqx.field(static=True, default="s")

    @property
    def cliff(self) -> Float[Array, "..."]:
        """The distance to the next jump, relative to the level: the smaller of the two."""
        return jnp.minimum(self.next_lobe, self.last_lobe)


def peak_imbalance(
    system: System, initial: Any = None, *, horizon: Any, panels: int = PANELS, **settings: Any
) -> Peak:
    """The largest spread of the queues, max_i q_i - min_i q_i, on [0, horizon]: |x| of two servers.

    **Arguments:** `initial`: as in `fluid.solve`. `horizon`: s, > 0. `panels`: static; the horizon
    is cut into so many, of 16 nodes each. What they do not resolve is not `valid`. `settings`:
    others of `fluid.solve`; its tolerances are those of the result.

    **Returns:** a `Peak`; differentiable once in the system and `initial`, in both modes where
    `fluid.solve` is; with Diffrax in reverse, or with `adjoint=diffrax.ForwardMode()` forward. The
    horizon is held.

    **Raises:** `ValueError` on a bad argument.
    """
    return _peak(*_checked(system, initial, horizon, panels, settings))


def integrated_imbalance(
    system: System, initial: Any = None, *, horizon: Any, panels: int = PANELS, **settings: Any
) -> Integral:
    """The integral over [0, horizon] of the sum over pairs of servers of (q_i - q_j)^2: of x^2 for
    two servers.

    Squared, not |x|: it is smooth where x is zero; and of the linear system with one job at one
    server, nothing in transit and no horizon it is the stationary variance of the imbalance, times
    4 lambda.

    **Arguments, Returns, Raises:** as `peak_imbalance`, of an `Integral`.

    **Accuracy:** by Clenshaw and Curtis on each panel; 1e-8 with two stages far from linear, and
    derivatives 1e-6, against quadrature of Dormand-Prince 8(5,3). The kinks of a deterministic
    delay are ends of panels unless it is shorter than a panel; then see `error_estimate`.
    """
    return _integral(*_checked(system, initial, horizon, panels, settings))


def settling_time(
    system: System,
    initial: Any = None,
    *,
    horizon: Any,
    tolerance: Any = None,
    level: Any = None,
    panels: int = PANELS,
    **settings: Any,
) -> Settling:
    """The last time on [0, horizon] that the spread of the queues exceeds a level.

    **Arguments:** `tolerance`: the level relative to the spread at time zero; or `level`: itself,
    jobs per unit of scale; > 0. The others as in `peak_imbalance`.

    **Returns:** a `Settling`; differentiable once, likewise, and in `tolerance` or `level`; its two
    distances too. It jumps, and has no derivative, where a maximum touches the level: see there.

    It tells nothing of what comes after the horizon, and a limit cycle smaller than the level has
    settled too: ask `stability.spectral_abscissa` as well.

    **Raises:** as `peak_imbalance`; `ValueError` unless one of `tolerance` and `level` is given.

    **Accuracy:** with two stages, from near linear to far: the time within 1e-9 of Dormand-Prince
    8(5,3) at 1e-13, derivatives within 1e-8 of the largest of its differences; 1e-4 in float32
    (`tests/fluid/test_sensitivity.py`). Within 1e-6 of a jump, 1e-6.

    **Cost:** on one core, float64, compiled, for two servers and a horizon of 20 s: 1.6 ms with 2
    stages and 2.3 ms with 50; gradients 1.8 and 3.2 ms (`experiments/benchmarks/fluid_costs.py`).
    """
    given = _checked(system, initial, horizon, panels, settings)
    if (tolerance is None) == (level is None):
        raise ValueError(
            f"`tolerance` or `level` must be given, and not both, got {tolerance!r} and {level!r}."
        )
    start = given[0].start[:, -1]
    if level is None:
        size = jnp.max(start) - jnp.min(start)
        level = _checks.positive("tolerance", tolerance) * size
    else:
        level = _checks.positive("level", level, "jobs")
    return _settling(*given, level.astype(start.dtype))


def cycle_amplitude(
    system: System,
    _initial: Any = None,
    *,
    harmonics: int | None = None,
    samples: int | None = None,
) -> Observation:
    """Amplitude of the limit cycle, jobs per unit of scale, by `limit_cycle.find`; whatever
    the jobs at time zero. Without a cycle it is zero, and not valid."""
    found = limit_cycle.find(system, harmonics, samples)
    return Observation(found.amplitude, found.valid, "cycle amplitude", "jobs")


def cycle_period(
    system: System,
    _initial: Any = None,
    *,
    harmonics: int | None = None,
    samples: int | None = None,
) -> Observation:
    """Period of the limit cycle, s, in the same way. Without a cycle it is NaN."""
    found = limit_cycle.find(system, harmonics, samples)
    return Observation(found.period, found.valid, "cycle period", "s")


def _checked(system, initial, horizon, panels, settings):
    case = case_of(system, initial, settings)
    horizon = _checks.positive("horizon", horizon, "s").astype(case.start.dtype)
    return case, jax.lax.stop_gradient(horizon), _checks.integer("panels", panels, 1)


@eqx.filter_jit
def _peak(case: Case, horizon, panels: int) -> Peak:
    seen = _course(case, horizon, panels)
    found = lobes(seen)
    # Of each interval within the horizon: its two ends, and its maximum.
    within = jnp.where(seen.begin < horizon, 0, -jnp.inf)
    inside = found.there & (found.time <= horizon)
    values = jnp.append(seen.value.T, jnp.where(inside, found.value, -jnp.inf)[None], axis=0)
    where, interval = jnp.unravel_index(jnp.argmax(values + within), values.shape)
    ends = seen.begin[interval] + jnp.stack([0, 1]) * seen.width[interval]
    about = jnp.append(ends, found.time[interval])[where][None]

    def step(now: Now):
        # At an end the time does not move.
        return jnp.where(where == 2, -now.velocity / _negative(found.curvature[interval]), 0)

    time = _refined(case, seen, about, horizon, step)
    now = spread(case, time)
    valid = seen.ok & now.ok
    value, time = (jnp.where(valid, part[0], jnp.nan) for part in (now.value, time))
    return Peak(value=value, time=time, valid=valid)


@eqx.filter_jit
def _integral(case: Case, horizon, panels: int) -> Integral:
    edges, within = panels_of(held(case.system), horizon, panels)
    solution = solve(case.system, nodes(edges), case.start, **case.settings)
    mean = solution.queue.mean(axis=1, keepdims=True)
    # Lagrange's identity: no difference of pair after pair.
    square = case.system.num_servers * jnp.sum((solution.queue - mean) ** 2, axis=1)
    square = by_panel(jnp.where(solution.ok, square, jnp.nan))
    length = jnp.where(jnp.arange(panels) < within, jnp.diff(edges), 0)
    fine, coarse = (
        length @ (square[:, :: DEGREE // degree] @ clenshaw_curtis(degree).astype(square.dtype))
        for degree in (DEGREE, DEGREE // 2)
    )
    error = jnp.abs(fine - coarse) / jnp.where(fine > 0, fine, 1)
    error = jax.lax.stop_gradient(error)
    return Integral(value=fine, error_estimate=error, valid=solution.ok)


class _Times(NamedTuple):
    """Of the settling time: whether it ever was above the level, and is at the horizon; the maximum
    before, the crossing and the maximum after: which there are, about when, and how they bend."""

    crossed: Bool[Array, ""]
    settled: Bool[Array, ""]
    there: Bool[Array, " 3"]
    about: Float[Array, " 3"]
    curvature: Float[Array, " 3"]


def _times(seen: Course, horizon, level) -> _Times:
    found = lobes(seen)
    maximum = found.there & (found.time <= horizon)
    highest = jnp.maximum(seen.value[:, 0], jnp.where(maximum, found.value, -jnp.inf))
    within = seen.begin < horizon
    above = (highest > level) & within
    interval = _last(above)
    crossed, settled = jnp.any(above), seen.value[_last(within), 1] <= level
    # Behind a maximum above the level, if there is one in the interval.
    risen = maximum[interval] & (found.value[interval] > level)
    fraction = (found.time - seen.begin)[interval] / seen.width[interval]
    down = crossing(seen, interval, jnp.where(risen, fraction, 0.0), level)
    down = jnp.where(crossed, down, 0.0)
    before = maximum & (found.time < down)
    later = jnp.where(maximum & (found.time > down), found.value, -jnp.inf)
    last, following = _last(before), jnp.argmax(later)
    there = jnp.stack([jnp.any(before), crossed & settled, jnp.any(later > 0)])
    spare = horizon * jnp.asarray([0.25, 0.5, 0.75], down.dtype)
    about = jnp.where(there, jnp.stack([found.time[last], down, found.time[following]]), spare)
    curvature = found.curvature[jnp.stack([last, interval, following])]
    return _Times(crossed, settled, there, about, curvature)


@eqx.filter_jit
def _settling(case: Case, horizon, panels: int, level) -> Settling:
    seen, height = _course(case, horizon, panels), jax.lax.stop_gradient(level)
    found = _times(seen, horizon, height)

    def step(now: Now):
        down = -(now.value[1] - height) / _negative(now.velocity[1])
        steps = (-now.velocity / _negative(found.curvature)).at[1].set(down)
        return jnp.where(found.there, steps, 0)

    time = _refined(case, seen, found.about, horizon, step)
    now = spread(case, time)
    slope = jax.lax.stop_gradient(_negative(now.velocity[1]))
    down = time[1] - (now.value[1] - level) / slope
    valid = seen.ok & now.ok & found.settled & (height >= 0)
    # Of servers in balance from the start the level may be zero.
    excess = now.value / jnp.where(height > 0, level, 1) - 1
    parts = (
        jnp.where(found.crossed, down, 0.0),
        jnp.where(found.there[2], -excess[2], 1.0),
        jnp.where(found.there[0], excess[0], jnp.inf),
    )
    value, next_lobe, last_lobe = (jnp.where(valid, part, jnp.nan) for part in parts)
    return Settling(
        value=value,
        level=level,
        crossed=found.crossed,
        settled=found.settled & seen.ok,
        valid=valid,
        next_lobe=next_lobe,
        last_lobe=last_lobe,
    )


def _course(case: Case, horizon, panels: int) -> Course:
    return course(case, panels_of(held(case.system), horizon, panels)[0])


def _refined(case: Case, seen: Course, about, horizon, step):
    """Times after some of Newton's steps, each within an interval of where it was."""
    last = len(seen.begin) - 1
    place = jnp.searchsorted(seen.begin, about, side="right") - 1
    early = seen.begin[jnp.maximum(place - 1, 0)]
    late = (seen.begin + seen.width)[jnp.minimum(place + 1, last)]
    still = held(case)

    def improve(_, times):
        return jnp.clip(times + step(spread(still, times)), early, jnp.minimum(late, horizon))

    return jax.lax.fori_loop(0, REFINEMENTS, improve, about)


def _last(where):
    """The last place where it is so, if there is one."""
    return len(where) - 1 - jnp.argmax(where[::-1])


def _negative(slope):
    """The same, where it is negative as it must be: what comes down, what bends down."""
    return jnp.where(slope < 0, slope, -1)
