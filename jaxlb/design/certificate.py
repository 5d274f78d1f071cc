"""What `tune` found, and what says that it is an optimum."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..model.routing import AbstractLogit
from ..model.system import System
from ..stability import rightmost_pair
from . import criterion as of
from . import root_space
from .gain_windows import UnstableSensitivities, stable_for_every_sensitivity
from .one_number import is_smooth
from .problem import Problem, is_one_of, name_of

# A bound or limit is active within this part of its size; a slope is zero below this part of the
# criterion over the parameter; roots meet within this part of the square of their size; a jump is
# near within this part of the tolerance.
ACTIVE, FLAT, MEET, NEAR = 1e-5, 1e-4, 1e-4, 1e-2


class TunePath(NamedTuple):
    """What was visited, in order: parameters by path, each with a leading axis, and the criterion,
    with the penalty; NaN where it has no value."""

    parameters: dict[str, np.ndarray]
    value: np.ndarray


class Tuned(NamedTuple):
    """What `tune` found.

    - `system`, `parameters`, `value`: the best, and its criterion (without the penalty).
    - `method`: what found it. `path`: all that it looked at, within bounds and limits.
    - `converged`: whether one of these certificates says that it is a local optimum:
      - `double_root`: the two rightmost roots meet there, or more of them, where the decay rate has
        no slope;
      - `active`: bounds and limits that hold it, by name;
      - `slope`: the largest derivative along what is free, of the criterion relative to itself and
        to the parameter (or 1); NaN where there is none.
    - `cliff`: of a settling time, the distance to its next jump; else NaN.
    - `unstable`: the unstable windows of its sensitivity; `None` if the rule is no logit rule.
    - `message`: all this in a sentence or two.
    """

    system: System
    parameters: dict[str, Any]
    value: float
    method: str
    path: TunePath
    converged: bool
    double_root: bool
    active: tuple[str, ...]
    slope: float
    cliff: float
    unstable: UnstableSensitivities | None
    message: str


def certified(
    asked: Problem, criterion: Any, method: str, best: np.ndarray, path: TunePath, least: float,
    at: np.ndarray | None,
) -> Tuned:  # fmt: skip
    """The result at the best point, where what is made small is `least`; `at`: its roots."""
    tuned = asked.at(best)
    extra = 0.0 if asked.penalty is None else float(asked.penalty(tuned))
    value = asked.sign * (least - extra)
    active = _active(asked, best)
    slope = _slope(asked, best, at)
    double = is_one_of(criterion, of.decay_rate) and _meet(tuned)
    cliff = asked.cliff(best)
    unstable = None
    if isinstance(tuned.routing, AbstractLogit):
        unstable = stable_for_every_sensitivity(tuned)
    whole = method in ("closed", "scan") or double or slope < FLAT or len(active) >= len(best)
    found = Tuned(
        tuned, asked.named(best), value, method, path, bool(whole), bool(double), active,
        float(slope), cliff, unstable, "",
    )  # fmt: skip
    return found._replace(message=_message(criterion, found))


def _active(asked: Problem, best: np.ndarray) -> tuple[str, ...]:
    names = []
    place = 0
    for part in asked.parts:
        for k in range(part.size):
            at, low, high = best[place], asked.lower[place], asked.upper[place]
            name = part.path + (f"[{k}]" if part.shape else "")
            room = ACTIVE * max(abs(at), 1e-3)
            if np.isfinite(low) and at - low <= room:
                names.append(f"{name} >= {low:.6g}")
            elif np.isfinite(high) and high - at <= room:
                names.append(f"{name} <= {high:.6g}")
            place += 1
    slack = asked.room(best)
    limits = [
        name for name, room in zip(asked.names_of_limits(), slack, strict=True) if room < ACTIVE
    ]
    return (*names, *limits)


def _slope(asked: Problem, best: np.ndarray, at: np.ndarray | None) -> float:
    """Largest derivative that bounds and active limits do not hold, relative."""
    if at is not None:
        return _left_over(*root_space.conditions(asked, at))
    if len(best) == 1 and not is_smooth(asked):
        return np.nan
    value, slope = asked.value(best)
    if not np.isfinite(value):
        return np.nan
    return _left_over(value, slope, *asked.slack(best), best, asked.lower, asked.upper)


def _left_over(
    value: float, slope: np.ndarray, slack: np.ndarray, rows: np.ndarray,
    at: np.ndarray, lower: np.ndarray, upper: np.ndarray,
) -> float:  # fmt: skip
    """What is left of a slope when all that is active has pushed back: multipliers are not
    negative."""
    from scipy.optimize import nnls

    sizes, identity = np.maximum(np.abs(at), 1e-3), np.eye(len(at))
    low, high = at - lower <= ACTIVE * sizes, upper - at <= ACTIVE * sizes
    held = np.concatenate([rows[slack < ACTIVE], identity[low], -identity[high]]) * sizes
    free = slope * sizes
    if len(held):
        free = free - held.T @ nnls(held.T, free)[0]
    return float(np.max(np.abs(free), initial=0.0) / max(abs(value), 1e-12))


def _meet(system: System) -> bool:
    pair = rightmost_pair(system)
    middle, squared = float(pair.middle), float(pair.squared)
    return bool(not pair.single and abs(squared) <= MEET * middle**2)


def _message(criterion: Any, found: Tuned) -> str:
    parts = [f"{name_of(criterion)} {found.value:.6g} by {found.method!r}"]
    if found.double_root:
        parts.append("where roots meet: the decay rate falls on all sides")
    if found.active:
        shown = ", ".join(found.active[:6]) + (", ..." if len(found.active) > 6 else "")
        parts.append(f"held by {shown}")
    if found.cliff < NEAR:
        parts.append("on the edge of a jump: keep a distance by constraining design.settling_cliff")
    if not found.converged:
        parts.append(f"not certified, its slope is {found.slope:.2g}: try another start or method")
    text = "; ".join(parts) + "."
    if found.unstable is not None and bool(jnp.any(found.unstable.conditional)):
        text += f" {found.unstable}"
    return text
