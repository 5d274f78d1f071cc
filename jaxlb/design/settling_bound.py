"""The least settling time that any dispatcher could have, by linear programmes.

The difference u of the inflows of two servers is all that a dispatcher decides, and |u| is at most
all arrivals. So the imbalance is linear in u, however nonlinear the rule that makes it:

    x(t) = free(t) + integral of k(t - s) u(s) ds,    |u| <= limit,

k being the answer to a job sent at time zero. The least level that |x| can keep from T on is a
linear programme, and it falls with T. With u constant in each step its solution shows from when on
the level can be kept by one who knows all in advance. Its multipliers nu show when it cannot, for
whatever u the largest |x(t_j)| is at least

    (sum of nu_j free(t_j) - limit * integral of |sum of nu_j k(t_j - s)| ds) / sum of |nu_j|.
"""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np

from .. import _checks
from ..model import dynamics, imbalance
from ..model.delays import AbstractPhaseDelay, Deterministic
from ..model.routing import Logit
from ..model.system import System, require_one

# Steps of u in the time looked at, and parts of each: T is a number of parts.
STEPS, PARTS = 200, 16
# The time looked at ends a mean delay, or this part of it, after T.
LEAST_KEPT = 0.05
# The second time looked at is no longer than the first has shown to be enough.
ROUNDS = 2
TINY = 1e-300


class SettlingBound(NamedTuple):
    """Bounds on the least settling time that a dispatcher could have, s.

    - `least`: no dispatcher settles sooner.
    - `attainable`: with inflows known in advance the level is kept from then on, at the times
      looked at.
    """

    least: float
    attainable: float


def settling_bound(system: System, initial: Any = None, *, tolerance: Any = 0.05) -> SettlingBound:
    """Bounds on the settling time, of the nonlinear fluid limit, that the best dispatcher has.

    It may know all in advance, but sends every job to one of the two servers.

    **Arguments:** `system`: two servers, alike; a delay with phases or `Deterministic`; its rule is
    not used. `initial`: as in `jaxlb.fluid.solve`: one job at the second server. `tolerance`:
    relative to the imbalance at time zero, as of `jaxlb.design.settling_time`.

    **Returns:** a `SettlingBound` of Python numbers. It is neither traced nor differentiated.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** the two bounds are 0.1 to 0.3 % apart, with what has a closed form between them
    (`tests/design/test_settling_bound.py`). `least` rests on an integral of |.| in 3200 steps.

    **Cost:** some 25 linear programmes of 200 unknowns: on one core 0.4 to 0.5 s
    (`experiments/benchmarks/design_costs.py`).

    **Source:** Huangfu and Hall (2018), Mathematical Programming Computation 10, for HiGHS, which
    solves them.
    """
    require_one(system)
    if system.num_servers != 2:
        raise ValueError(f"`num_servers` must be 2 here, got {system.num_servers}.")
    system.require_servers_alike()
    if not isinstance(system.delay, AbstractPhaseDelay | Deterministic):
        name = type(system.delay).__name__
        raise ValueError(f"`delay` must have phases or be Deterministic here, got {name}.")
    tolerance = _checks.positive("tolerance", tolerance)
    jobs = dynamics.initial_jobs(system, initial)
    if not _checks.is_concrete(system, jobs, tolerance):
        raise ValueError("`system`, `initial` and `tolerance` must be numbers here, got tracers.")
    start = np.asarray(imbalance.difference(jobs), float)
    if start[0] == 0:
        raise ValueError("`initial` must have an imbalance to settle, got none.")
    level, delay = float(tolerance) * abs(start[0]), float(system.delay.mean)
    found = SettlingBound(0.0, _settling_without(system, start, level))
    for _ in range(ROUNDS):
        if found.attainable > 0:
            kept = max(delay, LEAST_KEPT * found.attainable)
            found = _within(system, start, level, found.attainable, kept)
    return found


def _settling_without(system: System, start: np.ndarray, level: float) -> float:
    """A time from which on the level is kept without feedback."""
    span = float(system.delay.mean) + 1 / float(system.common_service_rate)
    while True:
        free, _ = _responses(system, start, span / (STEPS * PARTS), 2 * STEPS * PARTS)
        (above,) = np.nonzero(np.abs(free) > level)
        last = above[-1] if len(above) else -1
        if last < STEPS * PARTS:
            return (last + 1) * span / (STEPS * PARTS)
        span *= 2


def _within(
    system: System, start: np.ndarray, level: float, longest: float, kept: float
) -> SettlingBound:
    """Bounds, if by `longest` it can have settled, looking at `kept` after it."""
    part = (longest + kept) / (STEPS * PARTS)
    most, later = int(np.ceil(longest / part)), int(np.ceil(kept / part / PARTS))
    responses = _responses(system, start, part, most + PARTS * later)
    limit = 2 * float(system.arrival_rate)
    below, above = 0, most
    while above - below > 1:
        middle = (below + above) // 2
        if _levels(*responses, limit, middle, later)[0] > level:
            below = middle
        else:
            above = middle
    least, back = below, 1
    while least > 0 and _levels(*responses, limit, least, later)[1] <= level:
        least, back = max(least - back, 0), 2 * back
    return SettlingBound(float(least * part), float(above * part))


def _responses(
    system: System, start: np.ndarray, step: float, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """At multiples of the step: the imbalance without feedback, and the integral of k."""
    rate, delay = float(system.common_service_rate), system.delay
    if isinstance(delay, Deterministic):
        times = step * np.arange(steps + 1)
        acting = np.maximum(times - float(delay.mean), 0)
        return start[0] * np.exp(-rate * times), -np.expm1(-rate * acting) / rate
    from scipy.linalg import expm

    size, law = len(start), cast(Any, delay)
    idle = system.with_routing(Logit(jnp.zeros_like(system.arrival_rate)))
    whole = np.zeros((size + 1, size + 1))
    whole[:size, :size] = imbalance.matrix(idle)
    # A job sent is in some phase, or in service.
    whole[:size, size] = np.append(0.0, law.initial) if size > 1 else 1.0
    move = expm(step * whole)
    states = np.zeros((size + 1, 2))
    states[:size, 0], states[size, 1] = start, 1.0
    found = np.empty((steps + 1, 2))
    for row in found:
        row[:] = states[0]
        states = move @ states
    return found[:, 0], found[:, 1]


def _levels(
    free: np.ndarray, answer: np.ndarray, limit: float, settled: int, later: int
) -> tuple[float, float]:
    """The least level that can be kept from `settled` parts on, as far as it is looked at: what
    inflows of steps reach, and what none can be below."""
    from scipy.optimize import linprog

    kept = settled + PARTS * np.arange(later + 1)
    edges = np.union1d(0, np.arange(settled % PARTS, kept[-1] + 1, PARTS))
    effect = _integrals(answer, kept, edges)
    column = np.ones((len(kept), 1))
    found = linprog(
        np.append(np.zeros(effect.shape[1]), 1.0),
        A_ub=np.block([[effect, -column], [-effect, -column]]),
        b_ub=np.append(-free[kept], free[kept]),
        bounds=[(-limit, limit)] * effect.shape[1] + [(0, None)],
        method="highs",
    )
    if found.status != 0:
        raise RuntimeError(f"The linear programme was not solved: {found.message}")
    above, below = np.split(-found.ineqlin.marginals, 2)
    weight = above - below
    (used,) = np.nonzero(weight)
    pull = weight[used] @ _integrals(answer, kept[used], np.arange(kept[-1] + 1))
    bound = weight @ free[kept] - limit * np.abs(pull).sum()
    # Without a multiplier the level can be zero.
    return float(found.fun), float(bound / max(np.abs(weight).sum(), TINY))


def _integrals(answer: np.ndarray, times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Integral of k(t - s) over s between edges, for each time t."""
    passed = times[:, None] - edges
    before = np.where(passed > 0, answer[np.maximum(passed, 0)], 0.0)
    return before[:, :-1] - before[:, 1:]
