"""Roots and boundaries at many points at once, for pictures: one parameter or two of a system vary.

The paper's rule with an `Erlang` or `Deterministic` delay has a formula for each. Other laws and
rules take a system for each point.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _checks, stability
from ..model import (
    AbstractLogit,
    Deterministic,
    Erlang,
    MixedErlang,
    PhaseType,
    System,
)
from ..model.delays import AbstractPhaseDelay
from ..model.system import require_one
from ..stability.erlang import is_erlang
from ..stability.summary import fastest
from .style import shown

# Name: symbol, axis label, unit.
PARAMETERS = {
    "arrival_rate": ("λ", "arrival rate per server $\\lambda$ (1/s)", " /s"),
    "service_rate": ("μ", "service rate $\\mu$ (1/s)", " /s"),
    "mean": ("D", "mean action delay $D$ (s)", " s"),
    "stages": ("L", "stages $L$ of the delay", ""),
    "sensitivity": ("θ", "sensitivity $\\theta$ (1/job)", ""),
}
# Sensitivities looked at: by formula, by eigenvalues of up to so many phases, by a search for each.
FINE, MIDDLE, COARSE = 1500, 400, 60
MOST_PHASES = 64
# More of them about a double root, where roots part with the square root of the distance from it.
NEAR = 101
# A picture reaches this factor beyond what it must show, downwards and upwards.
REACH = 30.0, 10.0
# Systems at a time, of those that take one for each point: what they need fits any memory.
BATCH = 32


def parameters(system: System) -> dict[str, float]:
    """The system's own, by name; `stages` only with an `Erlang` or `Deterministic` delay."""
    require_one(system)
    if not isinstance(system.routing, AbstractLogit):
        raise ValueError(
            f"`routing` must be a logit rule here, got {type(system.routing).__name__}."
        )
    if not _checks.is_concrete(system):
        raise ValueError("`system` must hold concrete numbers for a picture.")
    delay = system.delay
    numbers: dict[str, Any] = {
        "arrival_rate": system.arrival_rate,
        "service_rate": system.common_service_rate,
        "mean": delay.mean,
        "sensitivity": system.routing.sensitivity,
    }
    if isinstance(delay, Erlang | Deterministic):
        numbers["stages"] = delay.stages if isinstance(delay, Erlang) else np.inf
    return {name: float(numbers[name]) for name in PARAMETERS if name in numbers}


def described(system: System, *but: str) -> str:
    """What a picture holds, for its title: all parameters except some."""
    held = [
        f"{PARAMETERS[name][0]} = {shown(value)}{PARAMETERS[name][2]}"
        for name, value in parameters(system).items()
        if name not in but
    ]
    if not isinstance(system.delay, Erlang | Deterministic) and "stages" not in but:
        held.append(f"cv = {shown(system.delay.squared_cv**0.5)}")
    return ", ".join(held)


def require_variable(system: System, name: str, value: str) -> None:
    """Raise `ValueError` unless `value` is a parameter that can take any value in this system."""
    if value not in PARAMETERS:
        raise ValueError(f"`{name}` must be one of {', '.join(PARAMETERS)}, got {value!r}.")
    delay = system.delay
    fixed = not isinstance(delay, Erlang | Deterministic | MixedErlang | PhaseType)
    if (value == "mean" and fixed) or (value == "stages" and not is_erlang(system)):
        raise ValueError(
            f"`{name}` must be a parameter that varies freely with {type(delay).__name__} and "
            f"{type(system.routing).__name__}, got {value!r}."
        )


def rightmost(system: System, values: dict[str, Any]) -> Any:
    """Rightmost roots, 1/s, at values of the parameters that broadcast together."""
    if is_erlang(system):
        given = {**parameters(system), **values}
        return np.asarray(stability.erlang_root(**given).root)
    return of_each(_rightmost_root, system, values)


def critical_gain(system: System, values: dict[str, Any]) -> np.ndarray:
    """Gain lambda theta on the stability boundary, 1/s, in the same way."""
    if is_erlang(system):
        given = {**parameters(system), **values}
        names = "service_rate", "mean", "stages"
        arrays = np.broadcast_arrays(*(given[name] for name in names))
        gain = _boundaries(*(np.ravel(array).astype(float) for array in arrays))
        return np.asarray(gain).reshape(arrays[0].shape)
    # It depends on neither of these.
    seen = {name: v for name, v in values.items() if name not in ("arrival_rate", "sensitivity")}
    return of_each(_critical_gain, system, seen)


@jax.jit
@jax.vmap
def _boundaries(service_rate, mean, stages):
    return stability.erlang_boundary(service_rate, mean, stages).gain


def _rightmost_root(system: System):
    return stability.rightmost_root(system)


def _critical_gain(system: System):
    return stability.critical_sensitivity(system) * system.arrival_rate


def of_each(function: Any, system: System, values: dict[str, Any]) -> np.ndarray:
    """`function` of the system at each point."""
    arrays = np.broadcast_arrays(*values.values()) if values else [np.zeros(())]
    flat = {name: np.ravel(array) for name, array in zip(values, arrays, strict=False)}
    if not flat:
        return np.asarray(function(system))
    out = np.asarray(_mapped(function, system, flat))
    return out.reshape(arrays[0].shape + out.shape[1:])


@eqx.filter_jit
def _mapped(function: Any, system: System, values: dict[str, Any]):
    def at(point):
        return function(changed(system, point))

    return jax.lax.map(at, values, batch_size=BATCH)


def changed(system: System, values: dict[str, Any]) -> System:
    """The system with other parameters; a delay keeps its shape."""
    values = {name: jnp.asarray(v, system.arrival_rate.dtype) for name, v in values.items()}
    for name, value in values.items():
        if name == "sensitivity":
            system = eqx.tree_at(lambda s: s.routing.sensitivity, system, value)
        elif name == "mean" and isinstance(system.delay, PhaseType):
            generator = system.delay.generator * (system.delay.mean / value)
            system = eqx.tree_at(lambda s: s.delay.generator, system, generator)
        elif name == "mean":
            system = eqx.tree_at(lambda s: s.delay.mean, system, value)
        elif name == "service_rate":
            rates = jnp.broadcast_to(value, system.service_rate.shape)
            system = eqx.tree_at(lambda s: s.service_rate, system, rates)
        else:
            system = eqx.tree_at(lambda s: s.arrival_rate, system, value)
    return system


class Place(NamedTuple):
    """A sensitivity, per job, and the rightmost root there, 1/s."""

    sensitivity: float
    root: complex


def fastest_decay(system: System) -> Place:
    """Where the abscissa is least."""
    best = fastest(system)
    if is_erlang(system):
        # Exact, where the root at the rounded sensitivity has half the digits.
        return Place(float(best.value), complex(float(best.abscissa)))
    return Place(float(best.value), complex(rightmost(system, {"sensitivity": best.value})))


def hopf_point(system: System) -> Place:
    """Where balance loses stability; at infinity if it never does."""
    frequency = complex(0, float(stability.hopf_frequency(system)))
    return Place(float(stability.critical_sensitivity(system)), frequency)


def sensitivities(seen: Iterable[float], count: int, doubles: Iterable[float]) -> np.ndarray:
    """Points of a logarithmic axis about all that must be seen, more of them about double roots."""
    shown = np.array([value for value in seen if 0 < value < np.inf] or [1.0])
    thetas = np.geomspace(shown.min() / REACH[0], shown.max() * REACH[1], count)
    near = 1 + np.linspace(-0.9, 0.9, NEAR) ** 3
    return np.unique(np.append(thetas, [value * near for value in doubles if value > 0]))


def resolution(system: System) -> int:
    """How many sensitivities a picture of the system can afford."""
    if is_erlang(system):
        return FINE
    return MIDDLE if is_small(system) else COARSE


def is_small(system: System) -> bool:
    """Whether eigenvalues of A_L are cheap."""
    return isinstance(system.delay, AbstractPhaseDelay) and system.num_phases <= MOST_PHASES
