"""Roots to choose: the logit rule on jobs in transit that gives an imbalance any roots.

With an Erlang delay the feedback reaches every mode, so any roots can be had, as long as the gain
comes out positive. With t = 1 + r / gamma and b = 1 - mu / gamma the characteristic polynomial is

    (t - b) t^L + kappa / gamma (1 + (t - b) sum of alpha_l t^(L - l)).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from ..model.delays import Erlang
from ..model.routing import WeightedLogit
from ..model.system import System, require_one


class Placement(NamedTuple):
    """Gain kappa, 1/s, and kappa times the weights, of given roots."""

    gain: Float[Array, ""]
    weighted: Float[Array, " phases"]


def place(system: System, roots: Any) -> WeightedLogit:
    """The rule whose linearised imbalance has these roots.

    **Arguments:** `system`: with an `Erlang` delay of L stages. `roots`: 1/s, shape (L + 1,),
    complex ones in conjugate pairs; such that the gain, the product of all (-mu - root) over
    gamma^L, is positive.

    **Raises:** `ValueError` on a bad argument. Traced, a gain that is not positive gives NaN.

    **Accuracy:** six separate roots, of five stages, to 1e-8 (`tests/design/test_weights.py`).
    Where n roots coincide, rounding the gains moves them by its n-th root.
    """
    require_one(system)
    delay = system.delay
    if not isinstance(delay, Erlang):
        raise ValueError(f"`delay` must be Erlang to place roots, got {type(delay).__name__}.")
    system.require_servers_alike()
    roots = jnp.asarray(roots)
    if roots.shape != (delay.stages + 1,):
        raise ValueError(f"`roots` must have shape ({delay.stages + 1},), got {roots.shape}.")
    _checks.require("roots", roots, jnp.isfinite, "finite", "1/s")
    _checks.require("roots", roots, _in_pairs, "in conjugate pairs", "1/s")
    coefficients = jnp.poly(1 + roots / delay.stage_rate).real
    found = placement(coefficients, delay.stage_rate, system.common_service_rate)
    if _checks.is_concrete(found) and not found.gain > 0:
        raise ValueError(
            "`roots` must be such that the gain, the product of (-mu - root) over gamma^L, is "
            f"positive, got a gain of {found.gain:.4g} 1/s."
        )
    gain = jnp.where(found.gain > 0, found.gain, jnp.nan)
    return WeightedLogit(gain / system.arrival_rate, found.weighted / gain)


def placement(
    coefficients: Float[Array, " coefficients"],
    stage_rate: Float[Array, ""],
    service_rate: Float[Array, ""],
) -> Placement:
    """The feedback that makes P(t), with these coefficients, the characteristic polynomial.

    kappa is gamma P(b), and kappa alpha_l are gamma times the coefficients of the quotient of
    P(t) - P(b) by t - b.
    """
    root = 1 - service_rate / stage_rate

    def divide(carried, coefficient):
        carried = coefficient + root * carried
        return carried, carried

    _, quotient = jax.lax.scan(divide, jnp.zeros_like(root), coefficients)
    return Placement(stage_rate * quotient[-1], stage_rate * quotient[1:-1])


def _in_pairs(roots: Any) -> Any:
    size = abs(roots).max()
    return all(abs(roots - root.conjugate()).min() <= 1e-9 * size for root in roots)
