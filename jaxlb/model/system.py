"""System: the parameters of one dispatcher and its servers; everything takes it first."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from .delays import AbstractDelay, AbstractPhaseDelay
from .memory import AbstractPast
from .routing import AbstractRouting, Logit, QueueRule, WeightedLogit, as_routing


class System(eqx.Module):
    """One dispatcher, parallel infinite-server queues, delayed action.

    Jobs arrive at rate `num_servers * arrival_rate` (times the scale, in a stochastic system), are
    routed at once, reach their server after the action delay and are served there without waiting.

    **Arguments:**

    - `arrival_rate`: lambda, arrivals *per server*, 1/s, scalar > 0.
    - `service_rate`: mu, completions per job, 1/s, > 0: a scalar, or one for each server.
    - `delay`: law of the action delay: `NoDelay`, `Erlang`, `MixedErlang`, `PhaseType`,
      `Deterministic`, `QuantileDelay`, `TransformDelay`.
    - `routing`: `Logit`, `WeightedLogit`, or a rule of your own (see `jaxlb.model.routing`); on
      exact paths also `FilteredLogit`, `AgeLogit`, `LateLogit`, or a rule with a memory of your own
      (see `jaxlb.model.memory`).
    - `num_servers`: integer >= 1, static.

    It is a pytree. To batch, build it under `jax.vmap`, or give batched leaves to a mapped
    function. **Raises** `ValueError` on a bad value; traced values are looked at by `valid`.
    """

    arrival_rate: Float[Array, ""]
    service_rate: Float[Array, "..."]
    delay: AbstractDelay
    routing: Callable[..., Any]
    num_servers: int = eqx.field(static=True)

    def __init__(
        self,
        arrival_rate: Any,
        service_rate: Any,
        delay: AbstractDelay,
        routing: Any,
        num_servers: int = 2,
    ):
        self.num_servers = _checks.integer("num_servers", num_servers, 1)
        self.arrival_rate = _checks.positive("arrival_rate", arrival_rate, "1/s")
        shape = (self.num_servers,) if _checks.ndim("service_rate", service_rate) else ()
        self.service_rate = _checks.positive("service_rate", service_rate, "1/s", shape)
        if not isinstance(delay, AbstractDelay):
            raise ValueError(
                f"`delay` must be a delay such as Erlang(mean, stages), got {delay!r}."
            )
        self.delay = delay
        self.routing = as_routing(routing)

    def __check_init__(self):
        if isinstance(self.routing, WeightedLogit):
            phases = self.phase_delay("weights on jobs in transit").num_phases
            if self.routing.weights.shape[-1] != phases:
                raise ValueError(
                    f"`weights` must have one entry for each of the delay's {phases} phases, "
                    f"got {self.routing.weights.shape[-1]}."
                )

    def with_routing(self, routing: Any) -> "System":
        """The same with another rule."""
        return System(self.arrival_rate, self.service_rate, self.delay, routing, self.num_servers)

    @property
    def valid(self) -> Bool[Array, ""]:
        """Whether every number is in its domain: what could not be checked while it was traced.

        `jaxlb.stability` gives NaN, false flags and derivatives of zero where it is not.
        """
        rates = jnp.append(self.service_rate, self.arrival_rate)
        rule = self.routing.valid if isinstance(self.routing, AbstractRouting) else True
        return jnp.all(_checks.is_positive(rates)) & self.delay.valid & rule

    @property
    def service_rates(self) -> Float[Array, " servers"]:
        """mu of each server, 1/s."""
        return jnp.broadcast_to(self.service_rate, (self.num_servers,))

    @property
    def common_service_rate(self) -> Float[Array, ""]:
        """mu of all servers alike, 1/s; `ValueError` where they differ, NaN if traced."""
        self.require_servers_alike()
        if self.service_rate.ndim == 0:
            return self.service_rate
        first = self.service_rate[0]
        return jnp.where(jnp.all(self.service_rate == first), first, jnp.nan)

    @property
    def are_alike(self) -> bool:
        """Whether servers are not known to differ in service rate."""
        rates = self.service_rates
        return not _checks.is_concrete(rates) or bool(np.all(_all_equal(np.asarray(rates))))

    def require_servers_alike(self) -> None:
        """Raise `ValueError` where servers are known to differ in service rate."""
        rates = self.service_rates
        _checks.require("service_rate", rates, _all_equal, "the same for every server", "1/s")

    def require_two_alike(self) -> None:
        """Raise `ValueError` unless there are two servers or more, not known to differ."""
        if self.num_servers < 2:
            raise ValueError(f"`num_servers` must be at least 2 here, got {self.num_servers}.")
        self.require_servers_alike()

    @property
    def offered_load(self) -> Float[Array, "..."]:
        """lambda / mu, erlang: mean jobs in service per server at balance, per unit of scale."""
        return self.arrival_rate / self.service_rate

    @property
    def numbers(self) -> list[Array]:
        """Every floating-point array in the system, to find a dtype that holds them all."""
        return jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array))

    @property
    def num_phases(self) -> int:
        """Delay phases; none if the delay is not made of phases."""
        return self.delay.num_phases if isinstance(self.delay, AbstractPhaseDelay) else 0

    @property
    def looks_at_queues_alone(self) -> bool:
        """Whether the rule is known not to look at jobs in transit."""
        return isinstance(self.routing, Logit | QueueRule)

    @property
    def looks_at_the_past(self) -> bool:
        """Whether the rule goes by more than the present state, so that only exact paths follow."""
        return isinstance(self.routing, AbstractPast)

    def phase_delay(self, wanted_by: str) -> AbstractPhaseDelay:
        """The delay, if it has phases; else `ValueError` naming what wanted them."""
        if not isinstance(self.delay, AbstractPhaseDelay):
            raise ValueError(
                f"`delay` must have phases for {wanted_by}, got {type(self.delay).__name__}: "
                "use from_mean_cv, or Erlang with many stages, instead."
            )
        return self.delay


def require_one(system: Any) -> None:
    """Raise `ValueError` unless `system` is one system: functions take one, and `jax.vmap` many."""
    _checks.kind("system", system, System)
    shape = system.arrival_rate.shape
    if shape:
        raise ValueError(
            f"`system` must be one system, got a batch of shape {shape}: use jax.vmap(function)."
        )


def _all_equal(values: np.ndarray) -> np.ndarray:
    return values == values[0]
