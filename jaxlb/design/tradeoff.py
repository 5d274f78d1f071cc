"""Trade-offs: the designs that are best in one criterion for what they cost in another.

`tune` finds both ends of the front, the best by either criterion. From the one end to the other the
second criterion is held to ever looser levels, and the first one made best within each, beginning
at the design before: it keeps the looser level too. One number needs none of this: all its values
are looked at, and those that are beaten in both criteria are left out.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _checks
from ..fluid import export
from ..model.routing import AbstractLogit
from ..model.system import System
from . import criterion as of
from . import root_space
from .gain_windows import stable_for_every_sensitivity
from .one_number import grid_of
from .problem import Problem, is_one_of, name_of, number_of, problem, unit_of
from .tune import tune

# Criteria with kinks or jumps: made best, not held, for the methods for limits need slopes.
ROUGH = (
    of.decay_rate,
    of.worst_decay_rate,
    of.pseudospectral_decay_rate,
    of.settling_time,
    of.settling_cliff,
)
JUMPY, ROOTED = 1, 2
# Values of one number between the ends of its front.
FINE = 128
# Values are the same within this part of them: of designs that were sought, as close as limits are
# kept; of one number, rounding.
CLOSE, ROUNDING = 1e-6, 1e-11
TINY = 1e-300


class Front(NamedTuple):
    """Designs none of which is better than another in both criteria.

    - `names`, `units`: of the two criteria. `more`: whether the more of each is the better.
    - `values`: shape (points, 2), from the best by the first criterion to the best by the second.
    - `systems`, `parameters`: the designs; what was free by path, with a leading axis.
    - `converged`: shape (points,), whether `tune` could certify each.
    - `conditional`: shape (points,), whether each is unstable at some lower sensitivity, which
      saturation leads to.
    - `present`: both criteria of the system that was given; NaN where it has none.
    - `message`: this in a sentence or two, and what was left out.
    """

    names: tuple[str, str]
    units: tuple[str, str]
    more: tuple[bool, bool]
    values: np.ndarray
    systems: tuple[System, ...]
    parameters: dict[str, np.ndarray]
    converged: np.ndarray
    conditional: np.ndarray
    present: np.ndarray
    message: str

    def rows(self) -> list[dict[str, Any]]:
        """The table, one row for each design."""
        return [self._row(place) for place in range(len(self.systems))]

    def _row(self, place: int) -> dict[str, Any]:
        row: dict[str, Any] = {"name": place + 1}
        row |= {
            name: float(value) for name, value in zip(self.names, self.values[place], strict=True)
        }
        for path, values in self.parameters.items():
            inner = values.shape[1:]
            for index in np.ndindex(inner):
                shown = f"[{','.join(map(str, index))}]" if inner else ""
                row[path + shown] = float(values[(place, *index)])
        flags = {"converged": self.converged, "conditional": self.conditional}
        return row | {name: bool(flag[place]) for name, flag in flags.items()}

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame (`pip install 'jaxlb[scan]'`)."""
        return export.to_pandas(self.rows())

    def __str__(self) -> str:
        return self.message


class _Task(NamedTuple):
    """Both criteria as problems of their own, and how to call `tune` for them."""

    criteria: tuple[Any, Any]
    asked: tuple[Problem, Problem]
    parameters: dict[str, Any]
    constraints: dict[Any, Any]
    steps: int

    def losses(self, point: np.ndarray) -> np.ndarray:
        """What is to be small of each criterion."""
        return np.array([asked.number(point) for asked in self.asked])

    def best(self, k: int, system: System, more: dict[Any, Any]) -> "_Design":
        """The best by one criterion, within more limits."""
        limits = {**self.constraints, **more}
        tuned = tune(system, self.criteria[k], self.parameters, limits, steps=self.steps)
        point = np.concatenate([np.ravel(part) for part in tuned.parameters.values()])
        losses = self.losses(point)
        # That of roots as they were chosen.
        losses[k] = self.asked[k].sign * tuned.value
        return _Design(point, losses, tuned.converged)


class _Design(NamedTuple):
    """Numbers of a system, both losses there, and whether it is certified to be best."""

    point: np.ndarray
    losses: np.ndarray
    converged: bool


def pareto(
    system: System,
    first: Any,
    second: Any,
    parameters: dict[str, Any],
    constraints: dict[Any, Any] | None = None,
    *,
    points: int = 12,
    steps: int = 300,
) -> Front:
    """The front between two criteria: what the best by the one costs in the other.

        pareto(
            system.with_routing(design.uniform(system, 0.5)),
            design.decay_rate,
            design.linear_noise_variance,
            {"routing.sensitivity": (0, None), "routing.weights": (None, None)},
            constraints={design.control_effort: (None, 2.4)},
        )

    **Arguments:** `system`, `parameters`, `constraints`, `steps`: as in `tune`. `first`, `second`:
    criteria, as there. `points`: most designs, both ends included; at least 2.

    **Returns:** a `Front`. With several numbers each design is a local optimum, and decay rates
    over sensitivity and weights, under an `Erlang` delay, are those of the roots as they were
    chosen, as in `tune`. It has one design if the criteria agree. A settling time jumps, so that
    its front may have gaps.

    **Raises:** `ValueError` as `tune`; and where a criterion has no value at the best of the other.

    **Accuracy:** limits and levels are kept to 1e-6 of their size. Decay rate against variance, all
    rules on two stages: of 1500 random gains about each design none is better by 3e-5
    (`tests/design/test_tradeoff.py`).

    **Cost:** that of `tune` for each design, but no further compilation: on one core, of two
    stages, 7 s for 8 designs and 0.3 s for one number, after 30 s and 8 s of compilation; 40 s
    for 6 designs of settling times (`experiments/benchmarks/design_costs.py`).
    """
    points = _checks.integer("points", points, 2)
    limits = dict(constraints or {})
    asked = (
        problem(system, first, parameters, limits, None),
        problem(system, second, parameters, limits, None),
    )
    task = _Task((first, second), asked, parameters, limits, steps)
    ends = [task.best(k, system, {}) for k in range(2)]
    for k in range(2):
        if not np.isfinite(ends[k].losses[1 - k]):
            raise ValueError(
                f"`constraints` must be such that {name_of(task.criteria[1 - k])} has a value "
                f"where {name_of(task.criteria[k])} is best: limit it, or what is free."
            )
    if len(asked[0].first) == 1:
        found = _thinned(_unbeaten(_scanned(task, ends), ROUNDING), points)
        lost = 0
    else:
        found = _unbeaten([*ends, *_continued(task, ends, points - 2)], CLOSE)
        lost = max(points - len(found), 0)
        found = found if lost else _thinned(found, points)
    return _front(task, found, lost)


def _continued(task: _Task, ends: list[_Design], levels: int) -> Iterator[_Design]:
    """The best within levels of the smoother criterion, from its best on.

    If the other one may jump, which no search crosses, its best is sought from there too, and
    followed back.
    """
    rough = [_roughness(task, k) for k in range(2)]
    made = int(rough[1] > rough[0])
    held = 1 - made
    low, high = ends[held], ends[made]
    if rough[made] == JUMPY:
        again = task.best(made, task.asked[held].at(low.point), {})
        yield again
        high = min(high, again, key=lambda design: design.losses[made])
    tightest, loosest = (design.losses[held] for design in (low, high))
    # About its best the criterion is flat: there the other one changes with the root of the level.
    wanted = tightest + (loosest - tightest) * np.linspace(0, 1, levels + 2)[1:-1] ** 2
    yield from _followed(task, low, made, wanted)
    if rough[made] == JUMPY:
        yield from _followed(task, high, made, wanted[::-1])


def _followed(task: _Task, start: _Design, made: int, losses: np.ndarray) -> Iterator[_Design]:
    """The best by one criterion where the other one loses at most this, one after the other."""
    asked = task.asked[1 - made]
    # A key of its own, should the criterion be limited already.
    criterion = functools.partial(task.criteria[1 - made])
    system = asked.at(start.point)
    for loss in losses:
        level = asked.sign * float(loss)
        bounds = (None, level) if asked.sign > 0 else (level, None)
        try:
            design = task.best(made, system, {criterion: bounds})
        except ValueError:
            # There are designs within this level, an end at least: it is the search that failed.
            continue
        system = asked.at(design.point)
        yield design


def _roughness(task: _Task, k: int) -> int:
    """The rougher of two is made best, and most of all what can be sought among roots."""
    criterion = task.criteria[k]
    if is_one_of(criterion, of.decay_rate) and root_space.applies(task.asked[k]):
        return ROOTED
    return JUMPY if is_one_of(criterion, *ROUGH) else 0


def _scanned(task: _Task, ends: list[_Design]) -> list[_Design]:
    """Values of one number: between its bounds, and closer between the ends of what is left."""
    asked = task.asked[0]
    found = [*ends, *_seen(task, grid_of(asked, float(asked.first[0])))]
    left = [float(design.point[0]) for design in _unbeaten(found, ROUNDING)]
    # Close at both ends, where criteria may change with the root of the distance.
    part = (1 - np.cos(np.pi * np.arange(1, FINE) / FINE)) / 2
    return [*found, *_seen(task, min(left) + part * (max(left) - min(left)))]


def _seen(task: _Task, values: np.ndarray) -> Iterator[_Design]:
    """Designs at values of one number that keep the limits."""
    for value in values:
        point = np.array([value])
        if task.asked[0].feasible(point):
            yield _Design(point, task.losses(point), True)


def _unbeaten(found: Iterable[_Design], same: float) -> list[_Design]:
    """Designs that no other one beats, from the best by the first criterion on; values may be the
    same."""
    designs = [design for design in found if np.isfinite(design.losses).all()]
    losses = np.array([design.losses for design in designs])
    # The ends come first; far from them values may be large.
    size = np.abs(losses[:2]).max(axis=0)
    cells = np.round(losses / np.maximum(same * size, TINY))
    left, least = [], np.inf
    for place in np.lexsort((cells[:, 1], cells[:, 0])):
        if cells[place, 1] < least:
            least = cells[place, 1]
            left.append(designs[place])
    return left


def _thinned(designs: list[_Design], points: int) -> list[_Design]:
    """Some of them, evenly along the front."""
    losses = np.array([design.losses for design in designs])
    range_ = np.maximum(np.ptp(losses, axis=0), TINY)
    # A jump is one step.
    steps = np.minimum(np.linalg.norm(np.diff(losses / range_, axis=0), axis=1), 1 / points)
    along = np.append(0.0, np.cumsum(steps))
    wanted = np.linspace(0, along[-1], points)
    places = np.abs(along - wanted[:, None]).argmin(axis=1)
    return [designs[place] for place in np.unique(places)]


def _front(task: _Task, designs: list[_Design], lost: int) -> Front:
    """The result."""
    signs = np.array([asked.sign for asked in task.asked])
    systems = tuple(task.asked[0].at(design.point) for design in designs)
    present = [float(number_of(one(task.asked[0].system))) for one in task.criteria]
    found = Front(
        names=_names(task),
        units=(unit_of(task.criteria[0]), unit_of(task.criteria[1])),
        more=(signs[0] < 0, signs[1] < 0),
        values=signs * np.array([design.losses for design in designs]),
        systems=systems,
        parameters=task.asked[0].named(np.stack([design.point for design in designs])),
        converged=np.array([design.converged for design in designs]),
        conditional=np.array([_is_conditional(system) for system in systems]),
        present=np.where(np.isfinite(present), present, np.nan),
        message="",
    )
    return found._replace(message=_message(found, lost))


def _names(task: _Task) -> tuple[str, str]:
    """Names of the criteria, with what was set if they are the same function."""
    names = [name_of(one) for one in task.criteria]
    if names[0] == names[1]:
        for k, one in enumerate(task.criteria):
            given = getattr(one, "keywords", {}).items()
            names[k] += f"({', '.join(f'{name}={value}' for name, value in given)})"
    return names[0], names[1]


def _is_conditional(system: System) -> bool:
    if not isinstance(system.routing, AbstractLogit):
        return False
    return bool(np.any(stable_for_every_sensitivity(system).conditional))


def _message(front: Front, lost: int) -> str:
    def shown(place):
        return " at ".join(
            f"{name} {value:.6g} {unit}".rstrip()
            for name, value, unit in zip(front.names, front.values[place], front.units, strict=True)
        )

    if len(front.systems) == 1:
        return f"One design is best by both criteria: {shown(0)}."
    text = f"{len(front.systems)} designs from {shown(0)} to {shown(-1)}"
    unsure, conditional = int((~front.converged).sum()), int(front.conditional.sum())
    if lost:
        text += f"; {lost} more were beaten by these, or not found"
    if unsure:
        text += f"; {unsure} not certified to be best"
    if conditional:
        text += f"; {conditional} unstable at some lower sensitivity, which saturation leads to"
    return text + "."
