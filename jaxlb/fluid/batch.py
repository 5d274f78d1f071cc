"""Many trajectories at once, such that slow ones do not hold the others."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from ..model.routing import AbstractLogit
from ..model.system import System
from .trajectory import Trajectory, solve

# Members that go together where there are many cores.
ELSEWHERE = 1024


def solve_many(
    systems: System, times: Any, initial: Any = None, *, chunk: int | None = None, **options: Any
) -> Trajectory:
    """`solve` for each of a batch of systems, in chunks of about equal cost.

    Under `jax.vmap` all members of a batch take as many steps as the slowest. Here they are put in
    the order of a guess of their cost, worked through one by one or in chunks, and put back.

    **Arguments:**

    - `systems`: a system whose every array has a leading axis, as made under `jax.vmap`.
    - `times`: as in `solve`, the same for all.
    - `initial`: as in `solve`, with a leading axis; by default the paper's start for all.
    - `chunk`: how many go together, static. By default 1 on a CPU and 1024 elsewhere.
    - `options`: those of `solve`, the same for all; as where numbers are traced, sharp rules with a
      deterministic delay need a larger `max_steps` than the 1024 of the method of steps.

    **Returns:** a `Trajectory` with a leading axis, in the order given.

    **Raises:** as `solve`; `ValueError` unless all arrays have one leading axis in common.

    **Cost:** on one core through Diffrax, for the 64 random systems of
    `experiments/benchmarks/fluid_costs.py` with ten stages: 0.4 ms for each one by one, 2.5 ms in
    chunks of 8 or 16, 3.4 ms in chunks of 32, and 5.6 ms all at once, as under `jax.vmap`; results
    are equal to the last bit. Collocation goes one by one on a CPU by itself. On a GPU nothing has
    been measured.
    """
    _checks.kind("systems", systems, System)
    default = 1 if jax.default_backend() == "cpu" else ELSEWHERE
    chunk = _checks.integer("chunk", default if chunk is None else chunk, 1)
    if initial is not None:
        shape = (None,) * _checks.ndim("initial", initial)
        initial = _checks.not_negative("initial", initial, "jobs", shape)
    given = [] if initial is None else [initial]
    sizes = {leaf.shape[:1] for leaf in [*systems.numbers, *given]}
    if len(sizes) != 1 or () in sizes or systems.arrival_rate.ndim != 1:
        shapes = ", ".join(sorted(str(size) for size in sizes))
        raise ValueError(f"`systems` must have one leading axis in common, got {shapes}.")
    arrays, rest = eqx.partition(systems, eqx.is_array)
    order = jnp.argsort(eqx.filter_vmap(_cost)(systems))

    def one(member):
        system, initial = member
        return solve(eqx.combine(system, rest), times, initial, **options)

    members = jax.tree.map(lambda leaf: leaf[order], (arrays, initial))
    found = jax.lax.map(one, members, batch_size=chunk)
    place = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf[place], found)


def _cost(system: System) -> Float[Array, ""]:
    """The fastest rate, 1/s, that steps must follow: of stages, services, or the rule."""
    rates = [jnp.max(system.service_rates)]
    if system.num_phases:
        rates.append(jnp.max(jnp.abs(system.phase_delay("a rate").rates())))
    if isinstance(system.routing, AbstractLogit):
        rates.append(system.routing.sensitivity * system.arrival_rate)
    return jnp.max(jnp.stack(rates))
