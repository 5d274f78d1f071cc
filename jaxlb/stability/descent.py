"""Parameters that let an imbalance decay fastest, by gradients.

The least abscissa is often at a double root, where its slope has no bound and descent chatters. So
Adam (Optax) first descends on the pair of roots smoothed,

    X + sqrt((Y + sqrt(Y^2 + eps^4)) / 2),

with eps falling, in coordinates that are logarithmic near a bound, so that a start may be far off.
Newton's method with constraints (`jaxlb.stability.polish`) ends it, and each bound is tried. With
several parameters more than two roots may meet: a quasi-Newton method on the abscissa itself then
goes on.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks
from ..model.system import System
from .coordinates import from_line, to_line
from .pair import rightmost_pair
from .polish import Evaluate, Region, Slopes, polish
from .rough import quasi_newton

# eps relative to the size of the roots, at the first and at the last step.
SMOOTHING = 0.1, 1e-3
# Of a violated constraint, in units of the size of the roots.
PENALTY = 10.0


class SearchPath(NamedTuple):
    """Parameters, each with a leading axis of steps, and abscissa, 1/s, shape (steps,)."""

    parameters: Any
    abscissa: np.ndarray


class SearchResult(NamedTuple):
    """The best point that a search met.

    `parameters` are as `start` was, `abscissa` is in 1/s. `double_root`: the two rightmost roots
    meet there. `reached`: whether the target was met; `None` without one. `path`: every step, the
    start first, all within bounds and constraints.
    """

    parameters: Any
    abscissa: float
    double_root: bool
    reached: bool | None
    path: SearchPath


def search(
    make_system: Callable[[Any], System],
    start: Any,
    *,
    lower: Any,
    upper: Any,
    constraints: tuple[Any, Any] | None = None,
    target: float | None = None,
    steps: int = 100,
    learning_rate: float = 0.4,
) -> SearchResult:
    """Parameters within bounds that have the least spectral abscissa, or one below `target`.

        search(lambda theta: System(15, 1, Erlang(1, 2), Logit(theta)), 1.0, lower=0, upper=10)

    **Arguments:** `make_system`: from parameters to a `System`, traceable by JAX; a rule of your
    own that depends on them must hold them as an Equinox module does, not as a closure. `start`:
    the parameters to begin with: a number, a vector, or a pytree of them such as a dict. `lower`,
    `upper`: one number for all, or like `start`; may be infinite. `constraints`: A, shape (rows,
    parameters), and b, shape (rows,): A p <= b, with the parameters in the order of
    `jax.tree.leaves(start)`: a dict's by name. `target`: 1/s; the search ends at the first point
    whose abscissa is no greater. `steps`, `learning_rate`: of Adam; the rate is relative to a
    parameter's distance from its nearest bound.

    **Returns:** a `SearchResult`, the same for the same arguments. A local optimum: with several
    parameters there may be others. A point where the abscissa is not finite is stepped back from.

    **Raises:** `ValueError` on a bad argument, if `start` is outside bounds or constraints, and as
    `rightmost_pair`.

    **Accuracy:** with `Logit` and an `Erlang` or `Deterministic` delay, in double precision: the
    sensitivity, or the mean delay, that is best by the closed form, to 1e-14, and its abscissa to
    1e-7, the square root of the precision, as it is at any double root. With weights on jobs in
    transit, where many roots meet and optima are many, only an improvement: two weights came
    within 1e-3 of the best known, five to -5.1 1/s where another run found -6.8. Try other starts.

    **Cost:** one compilation for each new `make_system`, seconds; then under a second. The same
    function object, or an Equinox module that differs in its arrays only, is not compiled again.
    """
    region, build, first = _region(make_system, start, lower, upper, constraints)
    goal = -np.inf if target is None else float(_checks.finite("target", target, "1/s"))
    steps = _checks.integer("steps", steps, 1)
    rate = float(_checks.positive("learning_rate", learning_rate))

    def evaluate(point):
        middle, squared, d_middle, d_squared, single = _slopes(make_system, build(point))
        slopes = np.asarray(d_middle, float), np.asarray(d_squared, float)
        return Slopes(float(middle), float(squared), *slopes, bool(single))

    visited = []
    for point, at in _points(evaluate, region, first, steps, rate):
        if at.finite and region.holds(point):
            visited.append((point, at))
            if at.abscissa <= goal:
                break
    if not visited:
        raise ValueError("`start` must have a finite spectral abscissa with finite slopes.")
    abscissas = np.array([at.abscissa for _, at in visited])
    point, at = visited[int(np.argmin(abscissas))]
    return SearchResult(
        build(point),
        at.abscissa,
        bool(not at.single and abs(at.squared) <= np.sqrt(region.precision) * at.middle**2),
        None if target is None else bool(at.abscissa <= goal),
        SearchPath(build(np.array([point for point, _ in visited])), abscissas),
    )


@eqx.filter_jit
def _slopes(make_system, parameters):
    """X, Y, their gradients in the parameters as one vector, and whether the root is single."""

    def values(parameters):
        pair = rightmost_pair(make_system(parameters))
        return jnp.stack([pair.middle, pair.squared]), pair

    # Forward: few parameters, and half the compilation.
    slopes, pair = jax.jacfwd(values, has_aux=True)(parameters)
    parts = [jnp.reshape(leaf, (2, -1)) for leaf in jax.tree.leaves(slopes)]
    return pair.middle, pair.squared, *jnp.concatenate(parts, axis=1), pair.single


def _points(
    evaluate: Evaluate, region: Region, first: np.ndarray, steps: int, rate: float
) -> Iterator[tuple[np.ndarray, Slopes]]:
    """Every point that the search visits, with its slopes."""
    best = first, evaluate(first)
    yield best
    if not best[1].finite:
        return
    ends = [
        lambda point: polish(evaluate, point, region, True),
        lambda point: polish(evaluate, point, region, False),
    ]
    stages = [
        lambda point: _descend(evaluate, region, point, steps, rate),
        *ends,
        lambda point: _bounds(evaluate, region, point),
    ]
    if len(first) > 1:
        # The second time afresh, from where the first was stuck.
        stages += [lambda point: _rough(evaluate, region, point)] * 2
    stages += ends
    for stage in stages:
        for point, at in stage(best[0]):
            yield point, at
            if at.finite and at.abscissa < best[1].abscissa and region.holds(point):
                best = point, at


def _bounds(evaluate: Evaluate, region: Region, point: np.ndarray):
    """One parameter after the other put on each bound and left there if that is better.

    The other bound of the delay may be beyond a ridge that descent does not cross.
    """
    point, least = point.copy(), evaluate(point).abscissa
    for bounds in (region.lower, region.upper):
        for i in np.flatnonzero(np.isfinite(bounds)):
            moved = point.copy()
            moved[i] = bounds[i]
            at = evaluate(moved)
            if at.finite and at.abscissa < least and region.holds(moved):
                point, least = moved, at.abscissa
                yield moved, at


@functools.cache
def _adam():
    # Here, because importing jaxlb must cost what JAX and Diffrax cost.
    import optax

    adam = optax.scale_by_adam()
    return adam.init, jax.jit(adam.update)


def _descend(evaluate: Evaluate, region: Region, first: np.ndarray, steps: int, rate: float):
    """Adam on the smoothed abscissa, with a penalty for constraints that join parameters."""
    init, update = _adam()
    line = to_line(region, first)
    state, kept = init(line), line
    for step in range(steps):
        done = step / steps
        point, stretch = from_line(region, first, line)
        # Back inside along the way from the start, which is inside.
        inside = first + region.room(first, point - first)[0] * (point - first)
        at = evaluate(inside)
        yield inside, at
        if not at.finite:
            line = (line + kept) / 2
            continue
        size = abs(at.middle) + np.sqrt(abs(at.squared))
        gradient = _smoothed_slope(at, size * SMOOTHING[0] ** (1 - done) * SMOOTHING[1] ** done)
        norm = np.abs(region.rows) @ region.scale(inside)
        beyond = region.rows @ point - region.limits > 0
        gradient = gradient / size + PENALTY * (beyond / norm) @ region.rows
        change, state = update(gradient * stretch, state)
        kept = line
        line = line - rate * (1 + np.cos(np.pi * done)) / 2 * np.asarray(change)


def _rough(evaluate: Evaluate, region: Region, first: np.ndarray):
    """BFGS on the abscissa itself: where more than two roots are first together the pair is not
    smooth either."""

    def values(line):
        point, stretch = from_line(region, first, line)
        inside = first + region.room(first, point - first)[0] * (point - first)
        at = evaluate(inside)
        half = np.sqrt(max(at.squared, 0.0))
        gradient = at.d_middle + (at.d_squared / (2 * half) if half > 0 else 0.0)
        beyond = np.maximum(region.rows @ point - region.limits, 0.0) / norm
        value = at.abscissa + size * PENALTY * beyond.sum()
        gradient = gradient + size * PENALTY * ((beyond > 0) / norm) @ region.rows
        return value if at.finite else np.inf, gradient * stretch, (inside, at)

    norm = np.abs(region.rows) @ region.scale(first)
    start = evaluate(first)
    size = abs(start.middle) + np.sqrt(abs(start.squared))
    for point in quasi_newton(values, to_line(region, first)):
        yield point.more


def _smoothed_slope(at: Slopes, eps: float) -> np.ndarray:
    """Gradient of X + sqrt((Y + sqrt(Y^2 + eps^4)) / 2)."""
    root = np.hypot(at.squared, eps * eps)
    half = np.sqrt((abs(at.squared) + root) / 2)
    # The product of the two roots of opposite sign is eps^2 / 2: no cancellation below zero.
    value = half if at.squared >= 0 else eps * eps / (2 * half)
    return at.d_middle + value / (2 * root) * at.d_squared


def _region(make_system: Any, start: Any, lower: Any, upper: Any, constraints: Any):
    """Region of the parameters as one vector, what makes them of such a vector, and the start."""
    leaves, tree = jax.tree.flatten(start)
    if not leaves or any(_checks.ndim("start", leaf) > 1 for leaf in leaves):
        raise ValueError(f"`start` must hold numbers or vectors, got {start!r:.200}.")
    leaves = [
        _checks.finite("start", leaf, shape=(None,) * _checks.ndim("start", leaf))
        for leaf in leaves
    ]
    ends = np.cumsum([leaf.size for leaf in leaves])

    def build(point):
        parts = [
            jnp.asarray(part.reshape((*point.shape[:-1], *leaf.shape)), leaf.dtype)
            for part, leaf in zip(np.split(point, ends[:-1], axis=-1), leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, parts)

    like = jax.tree.unflatten(tree, leaves)
    first, lower, upper = (
        _vector(name, value, like)
        for name, value in (("start", like), ("lower", lower), ("upper", upper))
    )
    _checks.require("lower", lower, lambda v: v <= upper, f"no more than `upper`, {upper}")
    _checks.require("start", first, lambda v: (v >= lower) & (v <= upper), "within its bounds")
    if not callable(make_system):
        raise ValueError(f"`make_system` must map parameters to a System, got {make_system!r}.")
    system = make_system(build(first))
    _checks.kind("make_system(start)", system, System)
    rows, limits = np.zeros((0, len(first))), np.zeros(0)
    if constraints is not None:
        if not (isinstance(constraints, tuple | list) and len(constraints) == 2):
            raise ValueError(f"`constraints` must be a pair (A, b), got {constraints!r:.200}.")
        rows = np.asarray(
            _checks.finite("constraints[0]", constraints[0], shape=(None, len(first)))
        )
        limits = np.asarray(_checks.finite("constraints[1]", constraints[1], shape=(len(rows),)))
    identity = np.eye(len(first))
    high, low = np.isfinite(upper), np.isfinite(lower)
    region = Region(
        lower,
        upper,
        np.concatenate([rows, identity[high], -identity[low]]).astype(float),
        np.concatenate([limits, upper[high], -lower[low]]).astype(float),
        float(max(jnp.finfo(leaf.dtype).eps for leaf in leaves)),
    )
    if not region.holds(first):
        raise ValueError(f"`start` must meet the constraints, got {first}.")
    return region, build, first


def _vector(name: str, value: Any, like: Any) -> np.ndarray:
    """`value`, one number for all or a pytree as `like`, as one vector."""
    leaves, tree = jax.tree.flatten(like)
    parts, shape = jax.tree.flatten(value)
    if shape == jax.tree.structure(0.0) and _checks.ndim(name, value) == 0:
        parts = parts * len(leaves)
    elif shape != tree:
        raise ValueError(f"`{name}` must be a number or like `start`, got {value!r:.200}.")
    joined = []
    for part, leaf in zip(parts, leaves, strict=True):
        shape = leaf.shape if _checks.ndim(name, part) else ()
        numbers = np.asarray(_checks.as_float(name, part, shape), float)
        joined.append(np.broadcast_to(numbers, leaf.shape).ravel())
    vector = np.concatenate(joined)
    _checks.require(name, vector, lambda v: ~np.isnan(v), "numbers")
    return vector
