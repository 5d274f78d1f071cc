"""Logarithms of numbers close to one, to rounding in both parts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact


def small_atanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """artanh(x) / x for abs(x) <= 1/7, to rounding; XLA's own takes two logarithms."""
    square, series = x * x, jnp.zeros_like(x)
    for n in range(19, 0, -2):
        series = series * square + 1 / n
    return series


def log1p(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + x) for real x > -1; `jnp.log1p` in float64 loses up to 127 ulp near -0.4."""
    small = jnp.abs(x) <= 0.25
    q = jnp.where(small, x, 0.0)
    q = q / (2 + q)
    return jnp.where(small, 2 * q * small_atanh(q), jnp.log(jnp.where(small, 1.0, 1 + x)))


def log1p_parts(x: Float[Array, "..."], y: Float[Array, "..."]) -> tuple[Array, Array]:
    """Real and imaginary part of log(1 + x + i y), principal branch, each without cancellation."""
    grown = x * (2 + x) + y * y
    small = jnp.abs(grown) <= 0.25
    q = jnp.where(small, grown, 0.0)
    q = q / (2 + q)
    size = jnp.where(small, 1.0, (1 + x) ** 2 + y * y)
    return jnp.where(small, q * small_atanh(q), jnp.log(size) / 2), jnp.arctan2(y, 1 + x)


def complex_log1p(z: Inexact[Array, "..."]) -> Complex[Array, "..."]:
    """log(1 + z), principal branch, both parts without cancellation."""
    z = jnp.asarray(z)
    z = z.astype(jnp.result_type(z.dtype, jnp.complex64))
    return jax.lax.complex(*log1p_parts(z.real, z.imag))
