"""What else than a late queue a dispatcher may be shown, by transform.

Under delayed information (`jaxlb.fluid.information_delay`) a rule that sees the queues through a
linear filter of transform f has the same characteristic equation as an action delay of transform f,
so that `jaxlb.stability` answers for both.
"""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

from .. import _checks
from .delays import AbstractDelay, TransformDelay

# Of the series of (1 - exp(-z)) / z where abs(z) <= 1: the next is 1 / 25!.
TERMS = 24


def moving_average(window: Any) -> TransformDelay:
    """The rule sees the mean of each queue over the last `window` seconds, > 0.

    As a law of delay it is uniform on 0 to `window`, of mean `window` / 2 and transform
    (1 - exp(-r W)) / (r W); near zero, where that is removable, by its series, so that derivatives
    of every order are right to rounding.

    **Raises:** `ValueError` on a bad value.

    **Source:** Pender, Rand and Wesson (2017), Int. J. Bifurcation and Chaos 27(4), the second
    model.
    """
    return TransformDelay(_Window(_checks.positive("window", window, "s")))


def velocity_information(delay: AbstractDelay, weight: Any) -> TransformDelay:
    """The rule sees late queues and how fast they grow: q + `weight` q', `delay` ago.

    Its transform is (1 + weight r) f(r), with f that of `delay`, and its mean, to first order how
    late it is, that of `delay` less `weight`; that must be positive. It is no law of a random time,
    so that boundaries are found (`critical_sensitivity`, `critical_delay`) but roots are not (NaN).
    With a deterministic delay the equation is of neutral type: balance is stable for no delay,
    however short, unless lambda theta `weight` < 1.

    **Arguments:** `delay`: of the information. `weight`: s, below its mean.

    **Raises:** `ValueError` on a bad value.

    **Source:** Novitzky, Pender, Rand and Wesson (2020), Queueing Systems 95, 279-330.
    """
    _checks.kind("delay", delay, AbstractDelay)
    weight = _checks.finite("weight", weight, "s")
    if _checks.is_concrete((delay, weight)):
        mean = float(delay.mean)
        _checks.require("weight", weight, lambda v: v < mean, f"below the delay's mean {mean}", "s")
    return TransformDelay(_Velocity(delay, weight))


class _Window(eqx.Module):
    width: Float[Array, ""]

    def __call__(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        z = jnp.asarray(r * self.width)
        z = z.astype(jnp.result_type(z.dtype, jnp.complex64))
        near = jnp.abs(z) <= 1
        small, large = jnp.where(near, z, 0), jnp.where(near, 1, z)
        series = jnp.zeros_like(z)
        for n in reversed(range(TERMS)):
            series = series * -small + 1 / math.factorial(n + 1)
        return jnp.where(near, series, -jnp.expm1(-large) / large)


class _Velocity(eqx.Module):
    delay: AbstractDelay
    weight: Float[Array, ""]

    def __call__(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return (1 + self.weight * r) * self.delay.transform(r)
