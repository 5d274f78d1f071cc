"""Routing: the share of arrivals that the dispatcher sends to each server.

The dispatcher looks at jobs divided by the system's scale. The paper's rule looks at jobs in
service only; jobs in transit are the hidden delay. A rule of your own needs no base class: any
module that maps `queue`, or `queue` and `in_transit`, to shares will do. One whose second argument
has a default is given `queue` alone, unless that argument is named `in_transit`.
"""

import abc
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks


class AbstractRouting(eqx.Module):
    """Share of arrivals sent to each server, given the jobs that the dispatcher sees."""

    @property
    def valid(self) -> Bool[Array, ""]:
        """Whether its numbers are in their domain, for those that were traced when it was built."""
        return jnp.ones((), bool)

    @abc.abstractmethod
    def __call__(
        self, queue: Float[Array, " servers"], in_transit: Float[Array, "servers phases"]
    ) -> Float[Array, " servers"]:
        """Shares: non-negative, summing to one, carried along when servers are relabelled.

        `queue` is the number of jobs in service at each server and `in_transit` the number on
        their way to it in each delay phase, both divided by the scale.
        """


def logit_shares(
    sensitivity: Float[Array, ""], load: Float[Array, "servers ..."]
) -> Float[Array, "servers ..."]:
    """Shares proportional to exp(-sensitivity * load), equation (1), along the first axis."""
    # Subtracting before scaling is exact for close loads; after it, theta * eps * load is lost.
    excess = load - jax.lax.stop_gradient(jnp.min(load, axis=0))
    return jax.nn.softmax(-sensitivity * excess, axis=0)


class AbstractLogit(AbstractRouting):
    """Shares proportional to exp(-sensitivity * load), equation (1), for a linear load.

    Safe from overflow at any finite sensitivity: the least load is subtracted first. Arrays may
    have more axes behind, for replicas.
    """

    sensitivity: eqx.AbstractVar[Float[Array, ""]]

    @property
    def valid(self) -> Bool[Array, ""]:
        return _checks.is_not_negative(self.sensitivity)

    @abc.abstractmethod
    def load(
        self, queue: Float[Array, "servers ..."], in_transit: Float[Array, "servers phases ..."]
    ) -> Float[Array, "servers ..."]:
        """What is compared between servers; linear in both arguments."""

    def __call__(
        self, queue: Float[Array, "servers ..."], in_transit: Float[Array, "servers phases ..."]
    ) -> Float[Array, "servers ..."]:
        return logit_shares(self.sensitivity, self.load(queue, in_transit))


class Logit(AbstractLogit):
    """The paper's rule (1): compare jobs in service.

    **Arguments:** `sensitivity`: theta, per job, scalar >= 0. Zero routes uniformly at random;
    large values approach join-the-shortest-queue.

    **Raises:** `ValueError` on a bad value.
    """

    sensitivity: Float[Array, ""] = eqx.field(
        converter=partial(_checks.not_negative, "sensitivity", unit="per job")
    )

    def load(
        self, queue: Float[Array, "servers ..."], in_transit: Float[Array, "servers phases ..."]
    ) -> Float[Array, "servers ..."]:
        return queue


class WeightedLogit(AbstractLogit):
    """Logit routing that also counts jobs in transit, with a weight for each delay phase.

    **Arguments:** `sensitivity`: theta, per job, scalar >= 0. `weights`: shape (phases,), first
    phase first; 1 counts a job in transit like one in service, 0 ignores it.

    **Raises:** `ValueError` on a bad value.
    """

    sensitivity: Float[Array, ""] = eqx.field(
        converter=partial(_checks.not_negative, "sensitivity", unit="per job")
    )
    weights: Float[Array, " phases"] = eqx.field(
        converter=partial(_checks.finite, "weights", shape=(None,))
    )

    @property
    def valid(self) -> Bool[Array, ""]:
        return super().valid & jnp.all(jnp.isfinite(self.weights))

    def load(
        self, queue: Float[Array, "servers ..."], in_transit: Float[Array, "servers phases ..."]
    ) -> Float[Array, "servers ..."]:
        return queue + jnp.einsum("sp...,p->s...", in_transit, self.weights)


class QueueRule(AbstractRouting):
    """Any rule that looks at `queue` alone, as a routing; `System` wraps such a rule by itself."""

    rule: Callable[..., Any]

    def __call__(
        self, queue: Float[Array, "servers ..."], in_transit: Float[Array, "servers phases ..."]
    ) -> Float[Array, "servers ..."]:
        return self.rule(queue)


def as_routing(rule: Any) -> Callable[..., Any]:
    """`rule` as something to be called with `queue` and `in_transit`.

    A rule that can be called with one argument is given `queue` alone, unless it has an argument
    named `in_transit`. Raises `ValueError` if it takes neither one nor two.
    """
    if isinstance(rule, AbstractRouting):
        return rule
    wanted = "`routing` must be a rule such as Logit(sensitivity), or map (queue, in_transit) or"
    if not callable(rule) or isinstance(rule, type):
        raise ValueError(f"{wanted} (queue) to shares, got {rule!r}.")
    signature = inspect.signature(rule)
    # Optional arguments of other meaning are common (`key`, `state`), so one argument comes first.
    if "in_transit" not in signature.parameters and _takes(signature, 1):
        return QueueRule(rule)
    if _takes(signature, 2):
        return rule
    raise ValueError(f"{wanted} (queue) to shares, got one with signature {signature}.")


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
