"""Newton's method with constraints for the least abscissa, from a point close to it.

The abscissa X + sqrt(max(Y, 0)) is least either where it is smooth, or on the ridge Y = 0 where it
is not but X and Y themselves are. So there are two smooth problems, min X + sqrt(max(Y, 0)) and
min X subject to Y = 0, each within rows @ p <= limits: solved by sequential quadratic programming
with an active set. Small, and on the host: only the pair and its slopes are compiled.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

MAX_STEPS = 40
MAX_HALVINGS = 12
# A constraint is met within this much of the size of its terms: the rounding of a short sum.
FEASIBLE = 1e-12


class Slopes(NamedTuple):
    """X and Y of a `RootPair` at a point, their gradients, and whether the root is single."""

    middle: float
    squared: float
    d_middle: np.ndarray
    d_squared: np.ndarray
    single: bool

    @property
    def abscissa(self) -> float:
        return float(self.middle + np.sqrt(max(self.squared, 0.0)))

    @property
    def finite(self) -> bool:
        values = np.concatenate([[self.middle, self.squared], self.d_middle, self.d_squared])
        return bool(np.isfinite(values).all())


Evaluate = Callable[[np.ndarray], Slopes]


class Region(NamedTuple):
    """Where parameters may be: rows @ p <= limits, which holds the bounds as well.

    `precision` is that of the abscissa: the machine epsilon of its dtype.
    """

    lower: np.ndarray
    upper: np.ndarray
    rows: np.ndarray
    limits: np.ndarray
    precision: float

    def holds(self, point: np.ndarray) -> bool:
        size = np.abs(self.rows) @ np.abs(point) + np.abs(self.limits)
        return bool(np.all(self.rows @ point - self.limits <= FEASIBLE * size))

    def scale(self, point: np.ndarray) -> np.ndarray:
        """Size of a large step in each parameter: the distance from its nearest bound."""
        near = np.minimum(point - self.lower, self.upper - point)
        width = self.upper - self.lower
        on_bound = 1e-3 * np.where(np.isfinite(width), width, np.maximum(np.abs(point), 1.0))
        free = np.maximum(np.abs(point), 1.0)
        near = np.where(np.isfinite(near), near, free)
        # A parameter whose bounds are equal stays; any scale will do.
        return np.where(near > 0, near, np.where(on_bound > 0, on_bound, 1.0))

    def room(self, point: np.ndarray, step: np.ndarray, active: np.ndarray | bool = False):
        """Part of `step`, at most all, that stays inside, and the row that stops it, if any."""
        along = self.rows @ step
        slack = np.maximum(self.limits - self.rows @ point, 0.0)
        towards = ~np.asarray(active) & (along > 1e-14 * (np.abs(self.rows) @ np.abs(step)))
        length = np.where(towards, slack / np.where(towards, along, 1.0), np.inf)
        if not np.any(length <= 1):
            return 1.0, None
        return float(length.min()), int(np.argmin(length))


def polish(
    evaluate: Evaluate, point: np.ndarray, region: Region, ridge: bool
) -> Iterator[tuple[np.ndarray, Slopes]]:
    """Points of the iteration that starts at `point`, which is in `region`; the last is best.

    `ridge`: on Y = 0; then the first points may be worse than the start.
    """
    at, active, pull = evaluate(point), np.zeros(len(region.rows), bool), 0.0
    for _ in range(MAX_STEPS):
        scale = region.scale(point)
        equal = region.rows[active] * scale
        gap = np.zeros(len(equal))
        if ridge:
            equal = np.vstack([at.d_squared * scale, equal])
            gap = np.append(-at.squared, gap)
        gradient, hessian = _model(evaluate, point, at, region, pull, ridge)
        step, multipliers = _newton(gradient * scale, hessian, equal, gap)
        pull = multipliers[0] if ridge else 0.0
        step = scale * step / max(1.0, np.max(np.abs(step)))
        length, block = region.room(point, step, active)
        small = np.all(np.abs(step) <= region.precision * scale)
        moved, accepted = _accept(evaluate, point, at, length * step, ridge)
        if accepted == 1 and block is not None:
            active[block] = True
            (entry,) = np.nonzero(region.rows[block])
            if len(entry) == 1:
                # Exactly onto a bound.
                moved[entry] = region.limits[block] / region.rows[block, entry]
        if small or not accepted:
            # Leave the constraint that pulls the wrong way hardest; at an optimum none does.
            pulls = multipliers[len(multipliers) - active.sum() :]
            if not len(pulls) or pulls.min() >= 0:
                return
            active[np.flatnonzero(active)[np.argmin(pulls)]] = False
        if accepted:
            point, at = moved, evaluate(moved)
            yield point, at


def _model(evaluate, point, at, region, pull, ridge):
    """Gradient of the objective, and the Hessian of the Lagrangian in units of the scale."""

    def slope(there):
        if ridge:
            return there.d_middle + pull * there.d_squared
        # On the ridge the slope of the square root has no value: that of X is left.
        if at.squared <= region.precision * at.middle**2 or there.squared <= 0:
            return there.d_middle
        return there.d_middle + there.d_squared / (2 * np.sqrt(there.squared))

    scale = region.scale(point)
    hessian = np.zeros((len(point), len(point)))
    for i, width in enumerate(region.precision ** (1 / 3) * scale):
        # Central differences of exact slopes, within the region.
        step = np.zeros_like(point)
        step[i] = width
        up, down = region.room(point, step)[0], region.room(point, -step)[0]
        high, low = evaluate(point + up * step), evaluate(point - down * step)
        if up + down > 0 and high.finite and low.finite:
            hessian[i] = (slope(high) - slope(low)) / ((up + down) * width) * scale[i] * scale
    gradient = at.d_middle if ridge else slope(at)
    return gradient, (hessian + hessian.T) / 2


def _newton(gradient, hessian, equal, gap):
    """Step to the least value of the quadratic model where equal @ step = gap; multipliers."""
    size = np.linalg.norm(equal, axis=1)
    size = np.where(size > 0, size, 1.0)
    unit = equal / size[:, None]
    inverse = np.linalg.pinv(unit, rcond=1e-10)
    normal = inverse @ (gap / size)
    # Directions that change no constraint.
    share, vectors = np.linalg.eigh(np.eye(len(gradient)) - inverse @ unit)
    free = vectors[:, share > 0.5]
    bend, turn = np.linalg.eigh(free.T @ hessian @ free)
    # Where it is curved the other way the model has no least value, but tells how far it holds.
    least = 1e-12 * max(np.abs(bend).max(initial=0.0), np.abs(gradient).max(), 1e-300)
    pulled = turn.T @ (free.T @ (gradient + hessian @ normal))
    step = normal - free @ (turn @ (pulled / np.maximum(np.abs(bend), least)))
    return step, -(inverse.T @ (gradient + hessian @ step)) / size


def _accept(evaluate, point, at, step, ridge):
    """Where the step leads, shortened until that is better, and the part taken, or zero."""

    def merit(there):
        if not there.finite:
            return np.inf
        if ridge:
            # Exact penalty; a square root would forbid any step along a curved ridge.
            return there.middle + 10 * abs(there.squared) / max(abs(at.middle), 1e-300)
        return there.abscissa

    part = 1.0
    for _ in range(MAX_HALVINGS):
        there = evaluate(point + part * step)
        closer = ridge and there.finite and abs(there.squared) < abs(at.squared) / 2
        if closer or merit(there) <= merit(at):
            return point + part * step, part
        part /= 2
    return point, 0.0
