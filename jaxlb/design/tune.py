"""`tune`: the best numbers of a system by a criterion, and why they are the best."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _checks
from ..model.delays import Deterministic, Erlang
from ..model.routing import Logit
from ..model.system import System
from ..stability import best_sensitivity
from . import criterion as of
from . import descend, root_space
from .certificate import Tuned, TunePath, certified
from .one_number import by_scan, is_smooth
from .problem import Problem, is_one_of, name_of, problem
from .smoothed import by_smoothing

METHODS = "auto", "closed", "scan", "lbfgs", "adam", "slsqp", "kinks", "smoothed", "roots"
DECAY = of.decay_rate, of.worst_decay_rate
# Halvings of the sensitivity of a start that has no value.
HALVINGS = 40
ROUNDING = 1e-12


def tune(
    system: System,
    criterion: Any,
    parameters: dict[str, Any],
    constraints: dict[Any, Any] | None = None,
    *,
    penalty: Any = None,
    method: str = "auto",
    steps: int = 300,
) -> Tuned:
    """The best of a system's numbers within bounds and limits, by a criterion.

        tune(system, design.decay_rate, {"routing.sensitivity": (0, 10)})
        tune(
            system.with_routing(design.uniform(system, 0.5)),
            functools.partial(design.stationary_variance, scale=100.0),
            {"routing.sensitivity": (0, 10), "routing.weights": (0, 1)},
            constraints={functools.partial(design.control_effort, scale=100.0): (None, 24.0)},
        )

    **Arguments:**

    - `system`: where to begin.
    - `criterion`: a function of a system: one of `jaxlb.design`, of which decay rates are made
      large and others small, or one of yours, which is made small. Arguments are set by
      `functools.partial`; a new number compiles nothing.
    - `parameters`: what is free: paths in the system, such as "routing.sensitivity",
      "routing.weights", "delay.mean", and bounds for each, `None` for none.
    - `constraints`: functions of a system, and the bounds that their values must keep.
    - `penalty`: a function of a system that is added to what is made small.
    - `method`: by default what suits the problem:
      - "closed": the closed form of the sensitivity of fastest decay;
      - "scan": one number, on a grid first; kinks and jumps do no harm;
      - "lbfgs", "adam": Optax, for smooth criteria in bounds;
      - "slsqp": SciPy's sequential quadratic programming, for smooth criteria and limits;
      - "kinks": BFGS with a weak Wolfe search; "smoothed": a soft maximum of all roots, ever
        harder, and then "kinks": for decay rates, nominal or worst, and limits by a penalty;
      - "roots": for the decay rate with sensitivity and weights free and an `Erlang` delay: among
        roots instead of gains, where the problem is smooth; limits by SLSQP.
    - `steps`: most steps of a method; "adam" takes all of them.

    **Returns:** a `Tuned`; a local optimum, but for "closed". By "roots" its `value` is that of the
    roots as they were chosen; where many meet, rounding the numbers to doubles moves the abscissa,
    by 1e-2 with 5 stages and by 3 with 20: for use, ask for a `worst_decay_rate`.

    **Raises:** `ValueError` on a bad argument; where the criterion has no best because gains are
    free to grow; where no number keeps the limits; where the start has no value.

    **Accuracy:** by closed form or a slope's zero 1e-9 of the parameter; "roots" finds the optimum
    of a problem with 2 and with 5 stages to 1e-8 (`tests/design/test_tune.py`).

    **Cost:** one compilation for each criterion and shape, seconds; then seconds to a minute.
    """
    steps = _checks.integer("steps", steps, 1)
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    asked = problem(system, criterion, parameters, constraints, penalty)
    method = _chosen(asked, criterion, method)
    first = _start(asked, criterion, method)
    return certified(
        asked, criterion, method, *_best(asked, _visits(asked, criterion, method, first, steps))
    )


def _chosen(asked: Problem, criterion: Any, method: str) -> str:
    """The method to use; raises where the one asked for cannot do it."""
    bare = not asked.limits and asked.penalty is None
    decay = is_one_of(criterion, *DECAY)
    closed = (
        is_one_of(criterion, of.decay_rate)
        and bare
        and asked.paths == ("routing.sensitivity",)
        and isinstance(asked.system.routing, Logit)
        and isinstance(asked.system.delay, Erlang | Deterministic)
    )
    rooted = is_one_of(criterion, of.decay_rate) and root_space.applies(asked)
    one = len(asked.first) == 1
    can = {
        "closed": (closed, "the decay rate over the sensitivity of `Logit` alone"),
        "scan": (one, "one number"),
        "roots": (rooted, "the decay rate over sensitivity and weights, under an Erlang delay"),
        "smoothed": (decay, "decay rates"),
        "lbfgs": (not asked.limits, "problems without constraints"),
        "adam": (not asked.limits, "problems without constraints"),
    }
    if method == "auto":
        # Between its jumps a settling time is smooth, which limits are best kept by.
        jumps = is_one_of(criterion, of.settling_time) and not asked.limits
        rough = jumps or is_one_of(criterion, of.pseudospectral_decay_rate)
        smooth = "slsqp" if asked.limits else "lbfgs"
        other = "smoothed" if decay else "kinks" if rough else smooth
        return next((name for name in ("closed", "scan", "roots") if can[name][0]), other)
    possible, what = can.get(method, (True, ""))
    if not possible:
        raise ValueError(f"`method` must be another here, {method!r} is for {what}.")
    return method


def _start(asked: Problem, criterion: Any, method: str) -> np.ndarray:
    """Where to begin: with a lower sensitivity if there is no value."""
    if method in ("closed", "scan"):
        return asked.first
    point = asked.first
    for _ in range(HALVINGS):
        if np.isfinite(asked.value(point)[0]):
            return point
        if "routing.sensitivity" not in asked.paths:
            break
        place = asked.paths.index("routing.sensitivity")
        place = sum(part.size for part in asked.parts[:place])
        point = point.copy()
        point[place] = max(point[place] / 2, asked.lower[place])
    raise ValueError(
        f"`system` must start where {name_of(criterion)} has a value: balance is unstable there, "
        "or it does not settle; begin with a lower sensitivity, or let it be free."
    )


def _visits(
    asked: Problem, criterion: Any, method: str, first: np.ndarray, steps: int
) -> Iterator[Any]:
    """Points, or points of roots."""
    if method == "closed":
        theta = float(best_sensitivity(asked.system).value)
        yield np.clip(np.array([theta]), asked.lower, asked.upper)
    elif method == "scan":
        yield from by_scan(asked, first)
    elif method in ("lbfgs", "adam"):
        yield from descend.by_optax(asked, first, method, steps)
    elif method == "slsqp":
        yield from descend.by_slsqp(asked, first, steps)
    elif method == "roots":
        yield from root_space.by_roots(asked, first, steps)
    else:
        if method == "smoothed":
            error = _error_of(criterion) if is_one_of(criterion, of.worst_decay_rate) else 0.0
            yield first
            best, least = first, np.inf
            for point in by_smoothing(asked, first, error, steps):
                yield point
                value = asked.value(point)[0]
                if value < least and asked.feasible(point):
                    best, least = point, value
            first = best
        yield first
        yield from descend.by_kinks(asked, first, steps)


def _error_of(criterion: Any) -> float:
    """The range of mean delays that was set for `worst_decay_rate`."""
    return float(getattr(criterion, "keywords", {}).get("error", of.ERROR))


def _best(
    asked: Problem, visits: Iterator[Any]
) -> tuple[np.ndarray, TunePath, float, np.ndarray | None]:
    """The best point that keeps the limits, all points that do, what is made small there, and its
    roots if it was found among these."""
    points, values, roots, wrong = [], [], [], np.inf
    for visit in visits:
        by_roots = isinstance(visit, root_space.RootPoint)
        point = visit.point if by_roots else visit
        if not asked.feasible(point):
            wrong = min(wrong, float(np.max(-asked.room(point), initial=0.0)))
            continue
        value = asked.number(point)
        if by_roots:
            # What the roots are, not what is left of them when gains are rounded.
            extra = 0.0 if asked.penalty is None else float(asked.penalty(asked.at(point)))
            value = extra - visit.decay
        points.append(point)
        values.append(value)
        roots.append(visit.at if by_roots else None)
    if not points or not np.isfinite(np.min(values)):
        what = ", ".join(asked.names_of_limits()) or "the bounds"
        far = f" (the nearest misses by {wrong:.2g} of its size)" if np.isfinite(wrong) else ""
        raise ValueError(
            f"`constraints` must be such that some point keeps them and has a value, got {what}"
            f"{far}: widen them, or the bounds of what is free."
        )
    at, least = int(np.argmin(values)), np.min(values)
    if is_smooth(asked):
        # The last one that rounding does not tell from the least: it is known best.
        at = int(np.flatnonzero(values <= least + ROUNDING * abs(least))[-1])
    seen = asked.sign * np.where(np.isfinite(values), values, np.nan)
    path = TunePath(asked.named(np.stack(points)), seen)
    return points[at], path, values[at], roots[at]
