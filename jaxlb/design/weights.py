"""Weights on jobs in transit: what the dispatcher may do with the jobs that it has sent already.

Each function takes a system, whose own rule it does not use but for its sensitivity, and gives a
rule for it: `system.with_routing(rule)`. With kappa = lambda theta and the weights alpha the
linearised inflow of an imbalance is u = -kappa (x + alpha.w): a linear feedback of all that moves.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._elimination import solve
from ..model.delays import Erlang
from ..model.routing import AbstractLogit, WeightedLogit
from ..model.system import System, require_one


def uniform(system: System, weight: Any) -> WeightedLogit:
    """Each job in transit counts like `weight` jobs in service, in whatever phase it is.

    That needs no more than how many are on their way to each server. With a weight of one half or
    more balance is stable for every sensitivity and every delay law; with one, the stationary
    variance by linear noise is 2 lambda (1 + kappa D) / (mu (1 + kappa (D + 1 / mu))), whatever the
    law (`tests/design/test_weights.py`).

    **Raises:** `ValueError` on a bad argument.
    """
    phases = _phases(system)
    weight = _checks.finite("weight", weight)
    return WeightedLogit(_sensitivity(system), jnp.full(phases, weight))


def predictor(system: System) -> WeightedLogit:
    """Weights with which what is compared obeys ds/dt = -mu s + u: no delay is left in the loop.

    The Smith predictor of a delay of phases. A job weighs E[exp(mu (time left until service))]; for
    an Erlang delay (gamma / (gamma - mu))^(L + 1 - l) in stage l, and the roots are
    -(mu + kappa alpha_1) and L times -gamma.

    **Raises:** `ValueError` on a bad argument, and where the time left in some phase is so long
    that this mean is infinite: the slowest rate of the phases must be above mu. Traced, NaN.
    """
    _phases(system)
    system.require_servers_alike()
    weights = _prediction(system)
    slowest = "with phases that are all faster than service"
    _checks.require("delay", weights, lambda v: v > 0, slowest)
    return WeightedLogit(_sensitivity(system), weights)


@eqx.filter_jit
def _prediction(system: System) -> Float[Array, " phases"]:
    delay: Any = system.delay
    rate = system.common_service_rate
    if isinstance(delay, Erlang):
        stage = delay.stage_rate
        ratio = jnp.where(stage > rate, stage / (stage - rate), jnp.nan)
        return ratio ** jnp.arange(delay.stages, 0, -1)
    generator = delay.generator
    shifted = generator + rate * jnp.eye(len(generator), dtype=generator.dtype)
    # The mean is finite where -(G + mu) is an M-matrix: where its inverse is not negative.
    inverse = solve(-shifted, jnp.eye(len(generator), dtype=generator.dtype))
    return jnp.where(jnp.all(inverse >= 0), -inverse @ generator.sum(axis=1), jnp.nan)


def _phases(system: System) -> int:
    require_one(system)
    return system.phase_delay("weights on jobs in transit").num_phases


def _sensitivity(system: System) -> Float[Array, ""]:
    if isinstance(system.routing, AbstractLogit):
        return system.routing.sensitivity
    raise ValueError(
        f"`routing` must be a logit rule to keep its sensitivity, got "
        f"{type(system.routing).__name__}."
    )
