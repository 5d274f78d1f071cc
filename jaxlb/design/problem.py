"""A tuning problem: some numbers of a system as one vector, what is to be small, and limits."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..model.system import System, require_one
from ..stability.polish import Region
from . import criterion as of

# The more the better; anything else the less the better.
MORE = (
    of.decay_rate,
    of.worst_decay_rate,
    of.pseudospectral_decay_rate,
    of.settling_cliff,
)

UNITS = {
    of.decay_rate: "1/s",
    of.worst_decay_rate: "1/s",
    of.pseudospectral_decay_rate: "1/s",
    of.settling_time: "s",
    of.stationary_variance: "jobs²",
    of.linear_noise_variance: "jobs²",
    of.integrated_squared_error: "s",
    of.control_effort: "jobs/s",
}

# The size of a bound of zero, and how far outside its bound is what has no value.
LEAST, FAR = 1e-3, 1e3

Function = Callable[[System], Any]


class Part(NamedTuple):
    """A parameter: its path in the system, such as "routing.sensitivity", and its shape."""

    path: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))


class Limit(NamedTuple):
    """A function of the system, its name, and between which numbers it must be."""

    function: Function
    name: str
    lower: float
    upper: float


class Problem(NamedTuple):
    """What is tuned.

    - `system`, `parts`: the start, and what of it is free. `first`, `lower`, `upper`: as vectors.
    - `criterion`, `sign`: the least of sign * criterion is wanted. `penalty`: is added to that.
    - `limits`: what must hold besides the bounds.
    """

    system: System
    parts: tuple[Part, ...]
    first: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    criterion: Function
    sign: float
    penalty: Function | None
    limits: tuple[Limit, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(part.path for part in self.parts)

    @property
    def region(self) -> Region:
        """The bounds alone, as rows."""
        identity = np.eye(len(self.first))
        high, low = np.isfinite(self.upper), np.isfinite(self.lower)
        rows = np.concatenate([identity[high], -identity[low]])
        limits = np.concatenate([self.upper[high], -self.lower[low]])
        return Region(self.lower, self.upper, rows, limits, np.finfo(float).eps)

    def at(self, point: Any) -> System:
        """The system with these numbers."""
        return build(self.system, self.parts, jnp.asarray(point))

    def named(self, point: np.ndarray) -> dict[str, Any]:
        """The numbers by path; `point` may have leading axes."""
        ends = np.cumsum([part.size for part in self.parts])[:-1]
        pieces = np.split(np.asarray(point), ends, axis=-1)
        return {
            part.path: piece.reshape((*piece.shape[:-1], *part.shape))
            for part, piece in zip(self.parts, pieces, strict=True)
        }

    def value(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """What is to be small, and its gradient; infinite, with a gradient of zero, where it or
        its gradient is not finite."""
        value, slope = _objective(self._replace(limits=()), jnp.asarray(point))
        value, slope = float(value), np.asarray(slope, float)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            return np.inf, np.zeros_like(slope)
        return value, slope

    def slack(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How far inside its limits it is, each relative to the limit's size, and the gradients."""
        if not self.limits:
            return np.zeros(0), np.zeros((0, len(point)))
        functions = tuple(limit.function for limit in self.limits)
        values, slopes = _limits(functions, self.system, self.parts, jnp.asarray(point))
        return within(values, slopes, *self.bounds_of_limits())

    def bounds_of_limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bound of each limit."""
        pairs = np.array([(limit.lower, limit.upper) for limit in self.limits]).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def names_of_limits(self) -> list[str]:
        """One for each row of `slack`."""
        return [
            f"{limit.name} {sign} {getattr(limit, end):.6g}"
            for sign, end in ((">=", "lower"), ("<=", "upper"))
            for limit in self.limits
            if np.isfinite(getattr(limit, end))
        ]

    def number(self, point: np.ndarray) -> float:
        """What is to be small, without a gradient; infinite where it has no value."""
        found = float(_number(self._replace(limits=()), jnp.asarray(point))[0])
        return found if np.isfinite(found) else np.inf

    def cliff(self, point: np.ndarray) -> float:
        """Of a settling time, how far it is from a jump; else NaN."""
        return float(_number(self._replace(limits=()), jnp.asarray(point))[1])

    def room(self, point: np.ndarray) -> np.ndarray:
        """`slack` without gradients."""
        if not self.limits:
            return np.zeros(0)
        functions = tuple(limit.function for limit in self.limits)
        values = _limit_values(functions, self.system, self.parts, jnp.asarray(point))
        return within(values, np.zeros((len(values), 0)), *self.bounds_of_limits())[0]

    def feasible(self, point: np.ndarray, tolerance: float = 1e-6) -> bool:
        """Whether the bounds hold, and the limits within this part of each."""
        within = np.all(point >= self.lower) and np.all(point <= self.upper)
        return bool(within) and bool(np.all(self.room(point) >= -tolerance))


def within(
    values: Any, slopes: Any, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How far inside their finite bounds values are, relative to each bound, lower ones first, and
    the gradients of that. A value that is not finite is far outside, and has no slope."""
    values, slopes = np.asarray(values, float), np.asarray(slopes, float)
    low, high = np.isfinite(lower), np.isfinite(upper)
    sizes = [np.maximum(np.abs(bound), LEAST) for bound in (lower[low], upper[high])]
    inside = np.append(
        (values[low] - lower[low]) / sizes[0], (upper[high] - values[high]) / sizes[1]
    )
    rows = np.concatenate([slopes[low] / sizes[0][:, None], -slopes[high] / sizes[1][:, None]])
    good = np.isfinite(inside) & np.isfinite(rows).all(axis=1)
    return np.where(good, inside, -FAR), np.where(good[:, None], rows, 0.0)


def build(system: System, parts: tuple[Part, ...], point: Any) -> System:
    """The system with the numbers of this vector in place of its own."""
    begin = 0
    for part in parts:
        get = operator.attrgetter(part.path)
        piece = point[begin : begin + part.size].reshape(part.shape)
        system = eqx.tree_at(get, system, piece.astype(get(system).dtype))
        begin += part.size
    return system


def objective(problem: Problem, point: Any) -> Any:
    """What is to be small."""
    return _observed(problem, point)[0]


def _observed(problem: Problem, point: Any) -> tuple[Any, Any]:
    """The same, and the distance to a jump, NaN for what has none."""
    tuned = build(problem.system, problem.parts, point)
    found = problem.criterion(tuned)
    value = problem.sign * number_of(found)
    value = value if problem.penalty is None else value + problem.penalty(tuned)
    return value, getattr(found, "cliff", jnp.nan)


@eqx.filter_jit
def _objective(problem: Problem, point):
    """Value and gradient."""
    return jax.value_and_grad(lambda point: objective(problem, point))(point)


@eqx.filter_jit
def _number(problem: Problem, point):
    return _observed(problem, point)


# The bounds of limits stay outside: as parts of the problem each new one would compile again.
@eqx.filter_jit
def _limits(functions, system, parts, point):
    """Values of the limits' functions and their gradients, one row each."""
    of_point = functools.partial(_values, functions, system, parts)
    return of_point(point), jax.jacrev(of_point)(point)


@eqx.filter_jit
def _limit_values(functions, system, parts, point):
    return _values(functions, system, parts, point)


def _values(functions, system, parts, point):
    tuned = build(system, parts, point)
    return jnp.stack([number_of(function(tuned)) for function in functions])


def number_of(found: Any) -> Any:
    """A criterion's number: itself, or its `value`."""
    return getattr(found, "value", found)


def problem(
    system: System, criterion: Any, parameters: Any, constraints: Any, penalty: Any
) -> Problem:
    """The problem, checked; see `jaxlb.design.tune`."""
    require_one(system)
    parts, first, lower, upper = _parts(system, parameters)
    for name, function in (("criterion", criterion), ("penalty", penalty)):
        if not (callable(function) or (name == "penalty" and function is None)):
            raise ValueError(f"`{name}` must map a System to a number, got {function!r:.200}.")
    limits = []
    for function, bounds in dict(constraints or {}).items():
        if not callable(function):
            raise ValueError(f"`constraints` must map functions to limits, got {function!r:.200}.")
        low, high = _pair("constraints", bounds)
        limits.append(Limit(_dynamic(function), name_of(function), low, high))
    sign = -1.0 if _plain(criterion) in MORE else 1.0
    asked = Problem(
        system, parts, first, lower, upper, _dynamic(criterion), sign,
        None if penalty is None else _dynamic(penalty), tuple(limits),
    )  # fmt: skip
    _require_bounded(asked, criterion)
    return asked


def name_of(function: Any) -> str:
    """The criterion's name, for people."""
    return getattr(_plain(function), "__name__", type(function).__name__)


def unit_of(function: Any) -> str:
    """The criterion's unit; empty for what is not ours."""
    return UNITS.get(_plain(function), "")


def is_one_of(function: Any, *wanted: Any) -> bool:
    """Whether a criterion, with some arguments set or not, is one of these."""
    return _plain(function) in wanted


def _plain(function: Any) -> Any:
    """The function without the arguments that were set."""
    return _plain(function.func) if isinstance(function, functools.partial) else function


def _dynamic(function: Any) -> Any:
    """The same, with numbers that were set as arrays: a new one compiles nothing."""
    if not isinstance(function, functools.partial):
        return function
    arguments, named = jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf,
        (function.args, function.keywords),
    )
    return jax.tree_util.Partial(function.func, *arguments, **named)


def _parts(system: System, parameters: Any) -> tuple:
    if not (isinstance(parameters, dict) and parameters):
        raise ValueError(
            "`parameters` must map what is free to its bounds, such as "
            f"{{'routing.sensitivity': (0, 10)}}, got {parameters!r:.200}."
        )
    parts, first, lower, upper = [], [], [], []
    for path, bounds in parameters.items():
        try:
            leaf = operator.attrgetter(path)(system)
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"`parameters` must name numbers of `system`, got {path!r}."
            ) from error
        if not eqx.is_inexact_array(leaf):
            raise ValueError(f"`parameters` must name real numbers of `system`, got {path!r}.")
        low, high = _pair(f"parameters[{path!r}]", bounds)
        values = np.asarray(leaf, float).ravel()
        parts.append(Part(path, leaf.shape))
        first.append(np.clip(values, low, high))
        lower.append(np.full(values.shape, low))
        upper.append(np.full(values.shape, high))
    return tuple(parts), *(np.concatenate(list_) for list_ in (first, lower, upper))


def _pair(name: str, bounds: Any) -> tuple[float, float]:
    """Lower and upper bound; `None` is infinite."""
    try:
        low, high = bounds
        low = -np.inf if low is None else float(low)
        high = np.inf if high is None else float(high)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}` must be a pair (lower, upper), got {bounds!r:.200}.") from error
    if not low <= high:
        raise ValueError(f"`{name}` must have lower <= upper, got ({low}, {high}).")
    return low, high


def _require_bounded(asked: Problem, criterion: Any) -> None:
    """With weights free every criterion improves without end as gains grow."""
    ours = getattr(_plain(criterion), "__module__", "") == of.__name__
    free = "routing.weights" in asked.paths and not np.isfinite(asked.upper).all()
    if ours and free and not asked.limits and asked.penalty is None:
        raise ValueError(
            "`parameters` must be bounded, or `constraints` limit design.control_effort: with "
            f"weights free {name_of(criterion)} has no best, it improves as gains grow."
        )
