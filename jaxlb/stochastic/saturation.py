"""How much of a logit rule's gain is left when loads fluctuate.

Among N servers whose loads are normal, any two differing with standard deviation d, the share of a
server falls with its load on average (Stein's lemma) as a linear rule's does whose gain is the
logit rule's at balance times

    N^2 E[p_1 p_2],

which is E[sech^2(theta (s_1 - s_2) / 2)] for two. Statistical linearisation puts that rule in the
place of the logit rule.

For more servers the expectation comes from random utility: p_i is the chance that server i has the
least of theta s_j + G_j, where the G_j are independent with P(G > g) = exp(-e^g). So with
c = theta d / sqrt(2) and phi(u) = P(G + c Z > u), Z standard normal, E[p_1 p_2] is the integral of
phi'^2 phi^(N - 2). All integrals are trapezoidal sums over functions that are analytic in a strip,
in steps that make the error less than rounding.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Steps where functions vary at scale one, and how far sums reach before their terms are rounding.
STEP = 0.25
NORMAL = STEP * np.arange(-36, 37)
LEAST = STEP * np.arange(-160, 17)
# Finer, because the least of many is a narrow law.
PLACE_STEP = 0.1
PLACES = PLACE_STEP * np.arange(-240, 131)


def remaining_gain(deviation: Float[Array, ""], servers: int) -> Float[Array, ""]:
    """Share of the gain that is left, from 1 at no fluctuation down to 0.

    **Arguments:** `deviation`: theta times the standard deviation of the difference of two loads,
    >= 0. `servers`: static, >= 2.

    **Accuracy:** relative, in float64 1e-14 for two servers and 1e-12 for three, in float32 5e-7
    (`tests/stochastic/test_saturation.py`); steps are fine enough for thousands of servers.
    """
    if servers == 2:
        return _of_two(deviation / 2)
    return servers**2 * _of_many(deviation / math.sqrt(2), servers)


def _of_two(spread: Float[Array, ""]) -> Float[Array, ""]:
    """E[sech^2(b Z)]."""
    # The narrower of sech^2 and the normal density sets the step.
    step = STEP / jnp.maximum(jax.lax.stop_gradient(spread), 1.0)
    z = step * jnp.arange(-80, 81, dtype=spread.dtype)
    return step * jnp.sum(_normal(z) / jnp.cosh(spread * z) ** 2)


def _of_many(spread: Float[Array, ""], servers: int) -> Float[Array, ""]:
    """E[p_1 p_2]."""
    # Each sum is over the narrower of the two densities, which makes it exact; the other is not
    # used, and is kept where it does not overflow.
    narrow, wide = jnp.minimum(spread, 1.0), jnp.maximum(spread, 1.0)
    z, g, u = (jnp.asarray(points, spread.dtype) for points in (NORMAL, LEAST, PLACES))
    above = u[:, None] + narrow * z
    normal, least = STEP * _normal(z), STEP * _least(g)
    slow = _sums(jnp.stack([jnp.exp(-jnp.exp(above)), _least(above)]), normal)
    unit = jax.lax.stop_gradient(wide)
    away = (g - unit * u[:, None]) / wide
    fast = _sums(jnp.stack([jax.scipy.special.ndtr(away), _normal(away) / wide]), least)
    stay, density = jnp.where(spread < 1, slow, fast)
    return PLACE_STEP * unit * jnp.sum(density**2 * stay ** (servers - 2))


def _normal(z: Array) -> Array:
    return jnp.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def _least(g: Array) -> Array:
    """Density of G."""
    return jnp.exp(g - jnp.exp(g))


def _sums(values: Array, weights: Array) -> Array:
    # By default some devices multiply single precision in fewer bits.
    return jnp.matmul(values, weights, precision=jax.lax.Precision.HIGHEST)
