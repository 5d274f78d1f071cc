"""A delay of any phases over one window of time, by the jumps of its chain.

A chain that jumps at one rate, at times to where it is, has after a time t made a Poisson number of
jumps, whatever its phases are: what k jumps do depends on the chain alone, and how likely they are
at the nodes of a window on its length alone. Time is counted in twice the mean time of a jump.

**Source:** Jensen (1953), Skandinavisk Aktuarietidskrift 36, 87-91.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..model.routing import WeightedLogit
from ..model.system import System
from .chain import LENGTHS, Chain, gauss, interpolate, nodes, poisson

# Jumps in a unit of time, and as many as there can be in a window: more have a chance of 1e-16.
INTENSITY, MOST = 2.0, 42
# Powers of the chain's matrix are kept, for as many phases as this.
MOST_PHASES = 64


class Jumps(NamedTuple):
    """What 0, 1, ... jumps do.

    - `unit`: of time, s.
    - `started`: where a job is that was sent, shape (jumps, phases).
    - `moved`: from phase to phase, shape (jumps, phases, phases).
    - `leaving`: the rate from each phase into service, for a unit of time.
    - `weights`: of each phase in the load that the rule compares; none if it counts none.
    """

    unit: Float[Array, ""]
    started: Float[Array, "jumps phases"]
    moved: Float[Array, "jumps phases phases"]
    leaving: Float[Array, " phases"]
    weights: Float[Array, " phases"] | None


class Chances(NamedTuple):
    """For each level and number of jumps: `at_node`, that so many are made before each node, and
    `since`, from the inflow at the nodes to the jobs that have made so many at each node."""

    at_node: Any
    since: Any


def jumps(system: System) -> Jumps:
    """The jumps of the system's delay. Any rate above the largest of a phase has the same law, so
    the one that is taken is not differentiated."""
    delay: Any = system.delay
    generator = delay.generator
    rate = jax.lax.stop_gradient(jnp.max(-jnp.diagonal(generator)))
    # A law that is none is flagged elsewhere, and has finite derivatives.
    rate = jnp.where(rate > 0, rate, 1)
    step = jnp.eye(delay.num_phases, dtype=generator.dtype) + generator / rate

    def jump(moved, _):
        return moved @ step, moved

    _, moved = jax.lax.scan(jump, jnp.eye(delay.num_phases, dtype=generator.dtype), length=MOST)
    unit = INTENSITY / rate
    rule = system.routing
    weights = rule.weights if isinstance(rule, WeightedLogit) else None
    return Jumps(unit, delay.initial @ moved, moved, unit * delay.exit_rates(), weights)


def at_level(made: Jumps, level: Int[Array, ""]) -> Chain:
    """The matrices of windows of one level."""
    table, dtype = chances(), made.started.dtype

    def of_level(values):
        return jax.lax.dynamic_index_in_dim(jnp.asarray(values, dtype), level, 0, False)

    at_node, since = of_level(table.at_node), of_level(table.since)

    def seen(weights):
        before = jnp.einsum("kij,j,kn->in", made.moved, weights, at_node)
        return before, jnp.einsum("ki,i,kmn->mn", made.started, weights, since)

    moving = jnp.einsum("k,kij->ij", at_node[:, -1], made.moved)
    filling = jnp.einsum("kmn,ki->mni", since[:, :, -1:], made.started)[:, 0]
    weighed = None if made.weights is None else seen(made.weights)
    return Chain(of_level(LENGTHS), *seen(made.leaving), moving, filling, weighed)


@functools.cache
def chances() -> Chances:
    """Of every level, in float64."""
    points, weights = gauss(48)
    number, at = np.arange(MOST)[:, None], nodes()[:, None] * points
    inflow = interpolate(at.ravel()).reshape(-1, *at.shape)
    at_node, since = [], []
    for length in LENGTHS:
        at_node.append(poisson(number, INTENSITY * length * nodes()))
        left = INTENSITY * length * (nodes()[:, None] - at)
        density = poisson(number[:, None], left) * (length * nodes()[:, None] * weights)
        since.append(np.einsum("knq,mnq->kmn", density, inflow))
    return Chances(np.stack(at_node), np.stack(since))
