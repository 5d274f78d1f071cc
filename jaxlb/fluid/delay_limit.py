"""The deterministic delay: what the fluid limit becomes with infinitely many stages.

    q_i'(t) = N lambda p_i(q(t - D)) - mu_i q_i(t),    without inflow before t = D,

for nothing is in transit at time zero. Jobs in transit are those routed in the last D seconds.
"""

from functools import partial
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from ..model import dynamics, imbalance
from ..model.system import System
from . import method_of_steps
from .method_of_steps import Equation

# Windows there is room for: at first, and where numbers are concrete at most.
FIRST, MOST = 1024, 65536


class Routed(eqx.Module):
    """Inflow of each server, from the queues that the dispatcher sees at each of many times."""

    system: System

    def __call__(self, queue: Float[Array, "servers times"]) -> Float[Array, "servers times"]:
        share = dynamics.shares(self.system, queue[:, None])
        return self.system.num_servers * self.system.arrival_rate * share


class RoutedDifference(eqx.Module):
    """The same for the difference of two servers; linearised if `slope` is given."""

    system: System
    slope: Float[Array, ""] | None

    def __call__(self, x: Float[Array, "1 times"]) -> Float[Array, "1 times"]:
        if self.slope is not None:
            return self.slope * x
        rule: Any = self.system.routing
        share = jax.vmap(partial(imbalance.share_difference, rule), 1)(x)
        return 2 * self.system.arrival_rate * share[None]


def solve_jobs(
    system: System,
    times: Array,
    start: Array,
    before: Array | None,
    tolerances: Any,
    max_steps: int | None,
) -> tuple[Float[Array, "times servers 3"], dfx.RESULTS]:
    """Jobs in transit, in service, and in service one delay ago.

    `start`: in service at time zero. `before`: what the dispatcher saw before, if any arrived then.
    Both of shape (servers,).
    """
    require_queues_alone(system)
    routed = Routed(system)
    inflow = jnp.zeros_like(start) if before is None else routed(before[:, None])[:, 0]
    equation = Equation(routed, system.delay.mean, system.service_rates, start, inflow)
    return _solve(system, equation, times, tolerances, max_steps)


def solve_difference(
    system: System,
    times: Array,
    start: Array,
    linear: bool,
    tolerances: Any,
    max_steps: int | None,
) -> tuple[Float[Array, "times 1"], dfx.RESULTS]:
    """x of two servers alike, from x at time zero, shape (1,)."""
    if linear:
        slope = imbalance.feedback(system)[0]
    else:
        imbalance.require_closed(system)
        slope = None
    rate = system.common_service_rate[None]
    inflow = RoutedDifference(system, slope)
    equation = Equation(inflow, system.delay.mean, rate, start, jnp.zeros_like(start))
    found, result = _solve(system, equation, times, tolerances, max_steps)
    return found[..., 1], result


def require_queues_alone(system: System) -> None:
    """Raise `ValueError` unless the rule is known to look at queues alone."""
    if not system.looks_at_queues_alone:
        raise ValueError(
            f"`routing` must look at queues alone here, got {type(system.routing).__name__}."
        )


def _solve(system: System, equation: Equation, times: Array, tolerances: Any, max_steps):
    dtype = jnp.result_type(equation.start, times, *system.numbers)
    rtol, atol = tolerances
    tolerances = _checks.tolerances(rtol, atol, dtype)
    equation = jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, equation)
    given = system, equation, times.astype(dtype), tolerances
    if max_steps is not None:
        return _run(*given, _checks.integer("max_steps", max_steps, 1))
    capacity = FIRST
    while True:
        found, result = _run(*given, capacity)
        # A result may be traced though what it came from is not.
        lacking = _checks.is_concrete(result) and bool(result == dfx.RESULTS.max_steps_reached)
        if not lacking or capacity >= MOST:
            return found, result
        capacity *= 4


@eqx.filter_jit
def _run(system: System, equation: Equation, times: Array, tolerances: Any, capacity: int):
    # Traced numbers have not been looked at.
    steps = jnp.diff(times, prepend=0)
    orderly = jnp.all(jnp.isfinite(times) & (steps >= 0)) & jnp.all(steps[1:] > 0)
    possible = orderly & system.valid & jnp.all(jnp.isfinite(equation.start))
    return method_of_steps.solve(equation, times, possible, capacity, tolerances)
