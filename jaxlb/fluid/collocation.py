"""Trajectories by windowed collocation: for delays with phases and logit rules.

The delay is linear, and its response over a window is a matrix that is known beforehand; what is
left is a fixed point in the jobs in service, at a few nodes. `chain` has the matrices of an Erlang
delay, `jumps` those of others, `window` one window, `march` all of them, `dense` what is inside.
"""

from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..model import imbalance
from ..model.delays import Erlang, MixedErlang
from ..model.routing import Logit, WeightedLogit
from ..model.system import System
from . import chain, dense, jumps
from .march import Given, march
from .window import Model, Problem, Start


def is_best(system: System) -> bool:
    """Whether the method applies and is the faster one in a batch: with two stages or more, and a
    rule that looks at jobs in service alone (`experiments/benchmarks/fluid_costs.py`)."""
    staged = isinstance(system.delay, Erlang | MixedErlang) and system.num_phases > 1
    return staged and isinstance(system.routing, Logit) and _refusal(system) is None


def require(system: System) -> None:
    """Raise `ValueError` where the method does not apply."""
    refusal = _refusal(system)
    if refusal is not None:
        raise ValueError(refusal)


def _refusal(system: System) -> str | None:
    delay, rule = type(system.delay).__name__, type(system.routing).__name__
    if not isinstance(system.routing, Logit | WeightedLogit):
        return f"`routing` must be Logit or WeightedLogit for collocation, got {rule}."
    if not system.num_phases:
        return f"`delay` must have phases for collocation, got {delay}."
    if system.num_phases > jumps.MOST_PHASES and not _is_chain(system):
        return (
            f"`delay` must have at most {jumps.MOST_PHASES} phases for collocation, unless it is "
            f"Erlang and the rule Logit, got {system.num_phases}."
        )
    return None


def _is_chain(system: System) -> bool:
    return isinstance(system.delay, Erlang) and isinstance(system.routing, Logit)


def _server_arrivals(system: System, load: Float[Array, "servers nodes"]) -> Array:
    share = Logit(_sensitivity(system))(load, load[:, None])
    return system.num_servers * system.arrival_rate * share


def _difference_arrivals(system: System, load: Float[Array, "1 nodes"]) -> Array:
    return -2 * system.arrival_rate * jnp.tanh(_sensitivity(system) * load / 2)


def _linear_arrivals(system: System, load: Float[Array, "1 nodes"]) -> Array:
    return imbalance.feedback(system)[0] * load


def _sensitivity(system: System) -> Float[Array, ""]:
    rule: Any = system.routing
    return rule.sensitivity


# Each server is a mode, or the difference of two of them.
SERVERS = Problem(_server_arrivals, lambda system: system.service_rates)
DIFFERENCE, LINEAR_DIFFERENCE = (
    Problem(arrivals, lambda system: system.common_service_rate[None])
    for arrivals in (_difference_arrivals, _linear_arrivals)
)


class Solution(NamedTuple):
    """Jobs of each mode in service and in the stages, the result code, and the estimated error."""

    queue: Float[Array, "times modes"]
    stages: Float[Array, "times modes stages"]
    result: dfx.RESULTS
    error: Float[Array, ""]


@eqx.filter_jit
def solve(
    problem: Problem, system: System, times: Float[Array, " times"], start: Start, max_steps: int
) -> Solution:
    """The modes of `problem` at the times, from time zero on."""
    orderly = _orderly(times) & system.valid & jnp.all(jnp.isfinite(start.stages))
    model = Model(system, None if _is_chain(system) else jumps.jumps(system))
    # What cannot be solved is replaced by what can, so that derivatives stay finite.
    scaled = jnp.where(orderly, times, jnp.zeros_like(times)) / model.unit
    record, last = march(problem, Given(model, start), scaled, max_steps)
    reached = orderly & (scaled < last.time)
    length = jnp.asarray(chain.LENGTHS, times.dtype)[record.level]
    fraction = jnp.where(reached, (scaled - record.time) / length, 0)
    queue = jnp.where(reached[:, None], dense.queue(record, fraction), jnp.inf)
    stages = dense.stages(model, record, fraction, length)
    stages = jnp.where(reached[:, None, None], stages, jnp.inf)
    return Solution(queue, stages, _result(orderly, reached, last), last.error)


def _orderly(times: Float[Array, " times"]) -> Bool[Array, ""]:
    steps = jnp.diff(times, prepend=0)
    return jnp.all(jnp.isfinite(times) & (steps >= 0)) & jnp.all(steps[1:] > 0)


def _result(orderly, reached, last):
    codes = dfx.RESULTS
    failed = codes.where(last.stuck, codes.dt_min_reached, codes.max_steps_reached)
    done = codes.where(jnp.all(reached), codes.successful, failed)
    return codes.where(orderly, done, codes.internal_error)
