"""A delay of any law, known by its quantile function."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float, Inexact

from .. import _checks
from .delays import AbstractDelay

# Points of the integrals over chances.
POINTS = 1024


class QuantileDelay(AbstractDelay):
    """A delay of any law, such as a lognormal, Pareto or measured one, by its quantile function.

    **Arguments:** `quantile`: callable, a chance u in (0, 1) to the time in seconds that the delay
    is below with that chance: a function of one number, or an Equinox module whose arrays may be
    traced, batched and differentiated. For a lognormal law of median 1 s,

        lb.QuantileDelay(lambda u: jnp.exp(0.5 * jax.scipy.special.ndtri(u)))

    It has no phases, so the fluid ODE does not apply to it; stability and random paths do.

    **Raises:** `ValueError` unless `quantile` is callable and, where they can be seen, its values
    are non-negative, finite and increasing; equal ones may follow each other.

    **Accuracy:** mean, variance and transform are integrals over u by the double-exponential rule
    on 1024 points. If the quantile function is analytic the mean is right to 1e-11, and the
    transform to 2e-14 for abs(r) up to 10 over the mean and to 1e-8 up to 30. At 100 and more it is
    not resolved, so that nothing found at such frequencies means anything: high gain needs
    `TransformDelay`. With steps or kinks both are right to 1e-5. The rule sees chances from 2e-16
    to 1 - 2e-16, in float32 1e-7; a heavy tail may have a part of the mean beyond them
    (`tests/model/test_quantile.py`).

    **Source:** Takahasi and Mori (1974), Publications of RIMS 9(3), 721-741.
    """

    quantile: Callable[..., Any]

    def __init__(self, quantile: Any):
        if not callable(quantile):
            raise ValueError(f"`quantile` must map a chance to seconds, got {quantile!r}.")
        middle = jnp.asarray(quantile(jnp.asarray(0.5)))
        if middle.shape != ():
            raise ValueError(f"`quantile` must return one number, got shape {middle.shape}.")
        self.quantile = quantile
        times, _ = self.rule()
        demand = "finite, non-negative and increasing on 0 to 1"
        _checks.require("quantile", times, _are_quantiles, demand, "s")

    @property
    def valid(self) -> Bool[Array, ""]:
        return super().valid & _are_quantiles(self.rule()[0])

    @property
    def mean(self) -> Float[Array, ""]:
        times, weights = self.rule()
        return weights @ times

    @property
    def squared_cv(self) -> Float[Array, ""]:
        times, weights = self.rule()
        return weights @ (times / (weights @ times) - 1) ** 2

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        times, weights = self.rule()
        dtype = jnp.result_type(r.dtype, jnp.complex64)
        values = jnp.exp(-r.astype(dtype) * times.astype(dtype))
        return (weights.astype(dtype) * values).sum()

    def at(self, chance: Float[Array, "..."]) -> Float[Array, "..."]:
        """The quantile, s, of each chance."""
        return jnp.vectorize(self.quantile)(chance)

    def rule(self) -> tuple[Float[Array, " points"], Float[Array, " points"]]:
        """The law as a mixture of constant delays: times, s, and weights that sum to one."""
        numbers = jax.tree.leaves(eqx.filter(self.quantile, eqx.is_inexact_array))
        dtype = jnp.result_type(*numbers) if numbers else jnp.result_type(float)
        # As near to one as this precision comes; as near to zero, where less is at stake.
        end = np.arcsinh(-np.log(float(jnp.finfo(dtype).eps)) / np.pi)
        x = np.linspace(-end, end, POINTS)
        chance = 1 / (1 + np.exp(-np.pi * np.sinh(x)))
        weights = np.cosh(x) * chance * (1 - chance)
        times = self.at(jnp.asarray(chance, dtype)).astype(dtype)
        return times, jnp.asarray(weights / weights.sum(), dtype)


def _are_quantiles(times: Any) -> Any:
    return _checks.is_not_negative(times).all() & (times[1:] >= times[:-1]).all()
