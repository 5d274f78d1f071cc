"""Logarithms, to rounding in both parts also near one, in plain operations.

XLA makes vector code of those on a CPU. Its own logarithm there is a call of the C library for each
number, and inside a loop so is its arctangent; and `jnp.log1p` loses up to 127 ulp near -0.4.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

# Minimax polynomials in q^2 (mpmath's `chebyfit`): (artanh q - q) / q^3 for abs(q) <= 0.1716, and
# (arctan q - q) / q^3 for abs(q) <= tan(pi / 8). In float64 their errors are below rounding.
ARTANH = (
    0.0730822619991322045,
    0.0766586069046050674,
    0.0909144456593465284,
    0.111111055673521948,
    0.142857143129880202,
    0.199999999999497516,
    0.333333333333333484,
)
ARCTAN = (
    -0.0191768574696081129,
    0.0392316340855022196,
    -0.0508544889991892059,
    0.058581487526600858,
    -0.0666451142894730363,
    0.076921831895173669,
    -0.0909090457806756778,
    0.111111110152549753,
    -0.142857142846665257,
    0.199999999999955206,
    -0.333333333333333302,
)
# log 2 in two parts, the first with so few digits that its multiples by an exponent are exact.
LOG_2 = {64: (0.693145751953125, 1.42860682030941723e-6), 32: (0.693359375, -2.12194440e-4)}


@jax.custom_jvp
def half_log(excess: Float[Array, "..."], square: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(square) / 2, where square = 1 + `excess` >= 0 is no subnormal number, to 1.5 ulp.

    Near one it comes from `excess` alone, so that what is exact there is kept.
    """
    info = jnp.finfo(square.dtype)
    whole = jnp.uint64 if info.bits == 64 else jnp.uint32
    bits = jax.lax.bitcast_convert_type(square, whole)
    # In units of 2^k the number lies between sqrt(1/2) and sqrt(2).
    raised = bits + whole((1 << info.bits - 2) - _bits_of_root_half(info))
    k = (raised >> info.nmant).astype(jnp.int32) - (1 << info.bits - 2 - info.nmant)
    scaled = jax.lax.bitcast_convert_type(bits - (k.astype(whole) << info.nmant), square.dtype)
    f = jnp.where(k == 0, excess, scaled - 1)
    q = f / (2 + f)
    high, low = LOG_2[info.bits]
    exponent = k.astype(square.dtype) / 2
    value = exponent * high + (exponent * low + (q + q * beyond_first(ARTANH, q)))
    value = jnp.where(square > 0, value, -jnp.inf)
    return jnp.where(square < jnp.inf, value, square)


@half_log.defjvp
def _half_log_jvp(primals, tangents):
    return half_log(*primals), tangents[0] / (2 * primals[1])


@jax.custom_jvp
def angle(x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """arg(x + i y) for y >= 0, in [0, pi], zero at the origin, to 2 ulp."""
    width = jnp.abs(x)
    tangent = math.tan(math.pi / 8)
    low, high = y <= tangent * width, width < tangent * y
    above = jnp.where(low, y, jnp.where(high, -width, y - width))
    below = jnp.where(low, width, jnp.where(high, y, y + width))
    turn = jnp.where(low, 0.0, jnp.where(high, math.pi / 2, math.pi / 4))
    q = above / jnp.where(below == 0, 1.0, below)
    turn = turn + (q + q * beyond_first(ARCTAN, q))
    return jnp.where(x < 0, math.pi - turn, turn)


@angle.defjvp
def _angle_jvp(primals, tangents):
    (x, y), (d_x, d_y) = primals, tangents
    square = x * x + y * y
    return angle(x, y), (x * d_y - y * d_x) / jnp.where(square == 0, 1.0, square)


def beyond_first(coefficients: tuple[float, ...], q: Float[Array, "..."]) -> Float[Array, "..."]:
    """f(q) / q - 1 for the f of these coefficients."""
    square, series = q * q, jnp.zeros_like(q)
    for coefficient in coefficients:
        series = series * square + coefficient
    return square * series


def _bits_of_root_half(info) -> int:
    return 0x3FE6A09E667F3BCD if info.bits == 64 else 0x3F3504F3


def log(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(x) for real x >= 0."""
    return 2 * half_log(x - 1, x)


def log1p(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + x) for real x >= -1."""
    return 2 * half_log(x, 1 + x)


def log1p_parts(x: Float[Array, "..."], y: Float[Array, "..."]) -> tuple[Array, Array]:
    """Real and imaginary part of log(1 + x + i y), principal branch, each without cancellation."""
    real = half_log(x * (2 + x) + y * y, (1 + x) ** 2 + y * y)
    return real, jnp.copysign(angle(1 + x, jnp.abs(y)), y)


def complex_log1p(z: Inexact[Array, "..."]) -> Complex[Array, "..."]:
    """log(1 + z), principal branch, both parts without cancellation."""
    z = jnp.asarray(z)
    z = z.astype(jnp.result_type(z.dtype, jnp.complex64))
    return jax.lax.complex(*log1p_parts(z.real, z.imag))
