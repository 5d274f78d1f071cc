"""Routing rules with a memory: shares that depend on what the dispatcher has seen and done before.

Only exact paths (`jaxlb.stochastic.simulate`) follow such a rule. Whatever needs shares as a
function of the present state, such as the fluid limit, refuses it.

For a rule of your own derive from `AbstractMemory`. Like other rules it sees jobs divided by the
system's scale, so that one job counts one over the scale.
"""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .. import _checks
from .delays import AbstractPhaseDelay
from .routing import AbstractRouting, Logit, logit_shares

# Of the exponential of a filter: terms, and the longest step times its largest rate. What is left
# out is 5e-17 of what there is.
TERMS, LONGEST = 6, 1 / 64
# Phases up to which sums are faster than a product of matrices.
SMALL = 36


class AbstractPast(AbstractRouting):
    """Shares that depend on the past, so that only exact paths can follow the rule."""

    def __call__(
        self, queue: Float[Array, " servers"], in_transit: Float[Array, "servers phases"]
    ) -> Float[Array, " servers"]:
        """Raises `ValueError`: the present state does not tell."""
        raise ValueError(
            "`routing` must look at the present alone here, got "
            f"{type(self).__name__}: only exact paths (stochastic.simulate) follow a memory."
        )


class AbstractMemory(AbstractPast):
    """A rule that keeps a state on each path: a pytree of arrays whose shapes do not change.

    Methods are pure functions of one path. Whatever changes has its method, called in the order of
    time: `wait` before each of the others and at each completion of service, then at a dispatch
    `shares` and `sent`, and `arrived` when service of a job begins.
    """

    @abc.abstractmethod
    def start(self, servers: int, places: int, unit: Float[Array, ""]) -> Any:
        """The state at time zero, with no job in transit.

        `places`: most jobs in transit at a time, to all servers together. `unit`: what one job
        counts, one over the scale; in the precision of the path. Jobs that are in transit at time
        zero are then told by `sent`, with equal shares.
        """

    @abc.abstractmethod
    def wait(self, state: Any, queue: Float[Array, " servers"], duration: Float[Array, ""]) -> Any:
        """The state `duration` s later, with this many jobs per unit of scale in service until
        then."""

    @abc.abstractmethod
    def shares(self, state: Any, queue: Float[Array, " servers"]) -> Float[Array, " servers"]:
        """Share of each server in the job that is to be sent: as of `AbstractRouting`."""

    @abc.abstractmethod
    def sent(
        self,
        state: Any,
        server: Int[Array, ""],
        place: Int[Array, ""],
        shares: Float[Array, " servers"],
    ) -> Any:
        """The state after a job is sent to `server`, which was drawn with these shares.

        The job has `place` to itself, a number below `places`, until it arrives.
        """

    @abc.abstractmethod
    def arrived(self, state: Any, server: Int[Array, ""], place: Int[Array, ""]) -> Any:
        """The state after service of the job in `place` begins at `server`."""


class Estimate(NamedTuple):
    """Of jobs in transit in each phase, per unit of scale; what rounding has added to them; and
    what one job counts."""

    in_transit: Float[Array, "servers phases"]
    lost: Float[Array, "servers phases"]
    unit: Float[Array, ""]


class FilteredLogit(AbstractMemory):
    """Logit routing on jobs in service and weighted estimates of those in each delay phase.

    The dispatcher sees its own decisions and jobs as they arrive. For each server it keeps m, its
    estimate of jobs in each phase, by a linear filter: between events

        dm/dt = m generator - (m . exit_rates) gains,

    and m jumps by `initial` when a job is sent and by `gains` when one arrives, both over the
    scale. Gains that sum to -1 keep the sum of m at the number in transit, those of the Riccati
    equation make it the Kalman-Bucy filter, and zero leaves a model that runs beside the system.
    With a sum below -1 estimates may grow without bound.

    **Arguments:**

    - `sensitivity`: theta, per job, scalar >= 0. `weights`: of a job in each phase, shape
      (phases,), as of `WeightedLogit`.
    - `gains`: what an arrival says of the jobs in each phase, in jobs, shape (phases,).
    - `delay`: what the dispatcher takes the delay for, with phases; that of the system, or not.
    - `log`: whether it knows where it has sent each job. If not, it counts a job as sent to every
      server in part, by the shares that the server was drawn with. Static.

    **Raises:** `ValueError` on a bad value.

    **Accuracy:** rounding; sums are compensated, so that in float32 it does not add up.

    **Cost:** O(servers * phases^2) an event. Two servers at lambda 15 and scale 100 take on one
    core 1 us a job with 2 or 10 phases, 17 us with 50
    (`experiments/benchmarks/design_costs.py`).

    **Source:** Kalman and Bucy (1961), Journal of Basic Engineering 83(1), 95-108.
    """

    sensitivity: Float[Array, ""]
    weights: Float[Array, " phases"]
    gains: Float[Array, " phases"]
    delay: AbstractPhaseDelay
    log: bool = eqx.field(static=True)

    def __init__(
        self,
        sensitivity: Any,
        weights: Any,
        gains: Any,
        delay: AbstractPhaseDelay,
        log: bool = True,
    ):
        _checks.kind("delay", delay, AbstractPhaseDelay)
        _checks.kind("log", log, bool)
        phases = (delay.num_phases,)
        self.sensitivity = _checks.not_negative("sensitivity", sensitivity, "per job")
        self.weights = _checks.finite("weights", weights, shape=phases)
        self.gains = _checks.finite("gains", gains, shape=phases)
        self.delay, self.log = delay, log

    @property
    def valid(self) -> Bool[Array, ""]:
        numbers = jnp.append(self.weights, self.gains)
        good = _checks.is_not_negative(self.sensitivity) & self.delay.valid
        return good & jnp.all(jnp.isfinite(numbers))

    def start(self, servers: int, places: int, unit: Float[Array, ""]) -> Estimate:
        nobody = jnp.zeros((servers, len(self.gains)), unit.dtype)
        return Estimate(nobody, nobody, unit)

    def wait(
        self, state: Estimate, queue: Float[Array, " servers"], duration: Float[Array, ""]
    ) -> Estimate:
        law: Any = self.delay
        drift = law.generator - self.delay.exit_rates()[:, None] * self.gains
        drift = drift.astype(duration.dtype)
        largest = jnp.max(jnp.sum(jnp.abs(drift), axis=1), initial=0.0)
        steps = jnp.maximum(jnp.ceil(duration * largest / LONGEST), 1)
        step = duration / steps

        def series(_, state):
            jobs = after = state.in_transit
            for k in range(TERMS, 1, -1):
                after = jobs + step / k * _product(after, drift)
            return _more(state, step * _product(after, drift))

        return jax.lax.fori_loop(0, steps.astype(jnp.int32), series, state)

    def shares(self, state: Estimate, queue: Float[Array, " servers"]) -> Float[Array, " servers"]:
        return logit_shares(self.sensitivity, queue + state.in_transit @ self.weights)

    def sent(
        self,
        state: Estimate,
        server: Int[Array, ""],
        place: Int[Array, ""],
        shares: Float[Array, " servers"],
    ) -> Estimate:
        law: Any = self.delay
        parts = jnp.arange(len(shares)) == server if self.log else shares
        return _more(state, parts[:, None] * (state.unit * law.initial))

    def arrived(self, state: Estimate, server: Int[Array, ""], place: Int[Array, ""]) -> Estimate:
        there = jnp.arange(len(state.in_transit)) == server
        return _more(state, there[:, None] * (state.unit * self.gains))


def _more(state: Estimate, jobs: Float[Array, "servers phases"]) -> Estimate:
    """With so many jobs more, by Kahan's compensated sum: single precision does not drift."""
    more = jobs.astype(state.lost.dtype) - state.lost
    total = state.in_transit + more
    return state._replace(in_transit=total, lost=(total - state.in_transit) - more)


def _product(rows, matrix):
    """rows @ matrix; on a CPU XLA takes five to ten times as long for that if it is small."""
    if len(matrix) > SMALL:
        return rows @ matrix
    return jnp.sum(rows[..., None] * matrix, axis=1)


class Log(NamedTuple):
    """Jobs in transit, by places: the server of each, -1 where there is none, and its age, s, at
    the last dispatch, `since` s ago; and what one job counts."""

    server: Int[Array, " places"]
    age: Float[Array, " places"]
    since: Float[Array, ""]
    unit: Float[Array, ""]


class AgeLogit(AbstractMemory):
    """Logit routing that also counts jobs in transit, with a weight for each age.

    The dispatcher logs when and where it sends each job, and knows which has arrived.

    **Arguments:** `sensitivity`: theta, per job, scalar >= 0. `weight`: callable, time since a job
    was sent, s, to what it counts: a function of one number, or an Equinox module whose arrays may
    be traced and batched. 1 counts it like one in service, 0 ignores it.

    The delay may be of any law that can be drawn.

    **Raises:** `ValueError` on a bad value, or unless `weight` returns one number.

    **Cost:** the weight is computed for every job in transit at each dispatch: with 3000 of them
    on one core 45 us a job for the weight of `jaxlb.design.by_age`
    (`experiments/benchmarks/design_costs.py`).
    """

    sensitivity: Float[Array, ""]
    weight: Callable[..., Any]

    def __init__(self, sensitivity: Any, weight: Any):
        self.sensitivity = _checks.not_negative("sensitivity", sensitivity, "per job")
        if not callable(weight):
            raise ValueError(f"`weight` must map an age, s, to a number, got {weight!r}.")
        first = jnp.asarray(weight(jnp.zeros(())))
        if first.shape != ():
            raise ValueError(f"`weight` must return one number, got shape {first.shape}.")
        self.weight = weight

    @property
    def valid(self) -> Bool[Array, ""]:
        return _checks.is_not_negative(self.sensitivity)

    def start(self, servers: int, places: int, unit: Float[Array, ""]) -> Log:
        nobody, still = jnp.full(places, -1, jnp.int32), jnp.zeros_like(unit)
        return Log(nobody, jnp.zeros(places, unit.dtype), still, unit)

    def wait(self, state: Log, queue: Float[Array, " servers"], duration: Float[Array, ""]) -> Log:
        return state._replace(since=state.since + duration)

    def shares(self, state: Log, queue: Float[Array, " servers"]) -> Float[Array, " servers"]:
        weight = jax.vmap(self.weight)(state.age + state.since).astype(queue.dtype)
        server = jnp.arange(len(queue))[:, None]
        counted = jnp.sum(jnp.where(state.server == server, weight, 0.0), axis=1)
        return logit_shares(self.sensitivity, queue + state.unit * counted)

    def sent(
        self,
        state: Log,
        server: Int[Array, ""],
        place: Int[Array, ""],
        shares: Float[Array, " servers"],
    ) -> Log:
        age = (state.age + state.since).at[place].set(0.0)
        return Log(state.server.at[place].set(server), age, jnp.zeros_like(age[0]), state.unit)

    def arrived(self, state: Log, server: Int[Array, ""], place: Int[Array, ""]) -> Log:
        return state._replace(server=state.server.at[place].set(-1))


class LateLogit(AbstractPast):
    """The paper's rule on queues as they were `lag` s ago.

    Until then it sees the queues of time zero.

    **Arguments:** `sensitivity`: theta, per job, scalar >= 0. `lag`: s, scalar >= 0.

    **Raises:** `ValueError` on a bad value.
    """

    sensitivity: Float[Array, ""] = eqx.field(
        converter=partial(_checks.not_negative, "sensitivity", unit="per job")
    )
    lag: Float[Array, ""] = eqx.field(converter=partial(_checks.not_negative, "lag", unit="s"))

    @property
    def valid(self) -> Bool[Array, ""]:
        return _checks.is_not_negative(self.sensitivity) & _checks.is_not_negative(self.lag)

    @property
    def rule(self) -> Logit:
        """What it does with the queues that it sees."""
        return Logit(self.sensitivity)
