"""Sensitivity studies: what moves an observable of the fluid limit, and how much."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .. import _checks
from ..model import dynamics
from ..model.system import System, require_one
from . import export
from .observables import AbstractObservation, Observation

UNITS = {
    "arrival_rate": "1/s",
    "service_rate": "1/s",
    "delay.mean": "s",
    "delay.generator": "1/s",
    "routing.sensitivity": "1/job",
    "initial": "jobs",
}


class Parameter(NamedTuple):
    """A row of a study: a number, its unit if that is known, and what it does to the observable:
    d value / d parameter, and d log value / d log parameter."""

    name: str
    parameter: float
    unit: str
    derivative: float
    elasticity: float


class Sensitivity(eqx.Module):
    """Derivatives of an observable in every number of a system.

    - `derivative`: d value / d number, in the place of each floating-point array of the system: the
      structure that `jax.grad` gives. `initial_derivative`: in the jobs at time zero, if they were
      given.
    - `system`, `initial`: what was studied.
    - `observation`: what the observable gave: an `Observation`, `Peak`, `Integral` or `Settling`.
    """

    derivative: PyTree
    initial_derivative: PyTree
    system: System
    initial: Float[Array, "..."] | None
    observation: Any

    @property
    def value(self) -> Float[Array, "..."]:
        """Of the observable."""
        return self.observation.value

    @property
    def valid(self) -> Bool[Array, "..."]:
        """Whether the observable was found; if not value and derivatives are NaN."""
        return self.observation.valid

    @property
    def elasticity(self) -> PyTree:
        """d log value / d log number, in the place of each array of the system: by how many per
        cent the value grows if a number grows by one. Infinite or NaN for a value of zero."""
        return jax.tree.map(self._relative, self._numbers[0], self.derivative)

    @property
    def initial_elasticity(self) -> PyTree:
        """The same in the jobs at time zero, if they were given."""
        if self.initial is None:
            return None
        return self._relative(self.initial, self.initial_derivative)

    def rows(self) -> list[Parameter]:
        """A row for each number: `arrival_rate`, `delay.mean`, `routing.weights[0]`, ...

        **Raises:** `ValueError` on a batch or traced numbers.
        """
        if not _checks.is_concrete(self.value):
            raise ValueError("`sensitivity` must hold concrete numbers for a table.")
        if self.value.ndim:
            shape = self.value.shape
            raise ValueError(f"`sensitivity` must be of one system, got a batch of shape {shape}.")
        trees = self._numbers, self._derivatives, self._elasticities
        flat = [jax.tree_util.tree_leaves_with_path(tree) for tree in trees]
        return [row for leaves in zip(*flat, strict=True) for row in _rows(*leaves)]

    def to_pandas(self) -> Any:
        """The rows as a table, by name. Needs pandas."""
        return export.to_pandas(self.rows())

    @property
    def _numbers(self) -> tuple[PyTree, Any]:
        return eqx.filter((self.system, self.initial), eqx.is_inexact_array)

    @property
    def _derivatives(self) -> tuple[PyTree, Any]:
        return self.derivative, self.initial_derivative

    @property
    def _elasticities(self) -> tuple[PyTree, Any]:
        return self.elasticity, self.initial_elasticity

    def _relative(self, number: Array, derivative: Any) -> Array:
        value = self.value.reshape(self.value.shape + (1,) * (number.ndim - self.value.ndim))
        return number * derivative / value


def sensitivity(
    system: System, observable: Callable[..., Any], initial: Any = None, **options: Any
) -> Sensitivity:
    """Derivatives of an observable in every number of the system at once, in reverse mode.

    **Arguments:**

    - `observable`: called as `observable(system, initial, **options)`. One of this package
      (`peak_imbalance`, `integrated_imbalance`, `settling_time`, `cycle_amplitude`,
      `cycle_period`), or a function of yours in JAX that returns one number, or an observation as
      they do: `lambda system, initial: lb.fluid.solve(system, [20.0], initial).queue[0, 0]`.
    - `initial`: jobs at time zero as in `fluid.solve`; if given, they are parameters too.
    - `options`: of the observable, as `horizon=20.0`.

    Each number moves alone: of probabilities, as the `initial` of `PhaseType`, only combinations
    along sums of one have a meaning.

    **Returns:** a `Sensitivity`. Under `vmap` a member that failed is NaN and not `valid`.

    **Raises:** as the observable; `ValueError` on a bad argument.
    """
    require_one(system)
    if not callable(observable):
        raise ValueError(
            f"`observable` must map (system, initial) to a number, got {observable!r}."
        )
    if initial is not None:
        dynamics.initial_jobs(system, initial)
        initial = _checks.as_float("initial", initial, None)

    def observed(numbers):
        found = observable(*numbers, **options)
        if not isinstance(found, AbstractObservation):
            value = _checks.as_float("observable", found)
            name = getattr(observable, "__name__", type(observable).__name__)
            name = "observable" if name == "<lambda>" else name
            found = Observation(value, jnp.isfinite(value), name)
        return found.value, found

    by_reverse = eqx.filter_value_and_grad(observed, has_aux=True)
    (_, found), slopes = by_reverse((system, initial))
    by_system, by_initial = jax.tree.map(lambda by: jnp.where(found.valid, by, jnp.nan), slopes)
    return Sensitivity(by_system, by_initial, system, initial, found)


def _rows(number: Any, derivative: Any, elasticity: Any) -> list[Parameter]:
    """Of one array."""
    path, numbers = number
    name = jax.tree_util.keystr(path[1:]).lstrip(".") or "initial"
    columns = [np.asarray(part) for part in (numbers, derivative[1], elasticity[1])]
    return [
        Parameter(
            name + (f"[{', '.join(map(str, place))}]" if place else ""),
            float(columns[0][place]),
            UNITS.get(name, ""),
            float(columns[1][place]),
            float(columns[2][place]),
        )
        for place in np.ndindex(columns[0].shape)
    ]
