"""Rightmost root with an Erlang or deterministic delay: O(1) whatever the number of stages.

With z = r D, m = mu D, s = 1/L (zero for the deterministic delay), kappa = lambda theta D and
V = 1 + s z, equation (17) is (z + m) V^L = -kappa. Its rightmost root on the upper half plane is
the one with arg (z + m) + L arg V = pi. Where gamma > mu, that is c = 1 - s m > 0, it is
z = (c eta - 1 - m) / (1 + s) with eta a function of s and one more variable,

    log(1 + s eta) / s + log(1 - eta) = delta,    delta = log(kappa / kappa*),

real below the double root delta = 0 and complex above it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from .. import _checks
from ..model.delays import log1p, log1p_parts

# Above this delta three steps of the logarithmic iteration suffice from a crude guess.
FAR = 2.5


class ErlangRoot(NamedTuple):
    """Rightmost root, 1/s, its imaginary part >= 0, and whether it is a double root.

    At a double root the derivative of the imaginary part does not exist and is given as zero; that
    of the real part is the one-sided one towards a larger gain.
    """

    root: Complex[Array, ""]
    double: Bool[Array, ""]


def erlang_root(
    arrival_rate: Any, service_rate: Any, mean: Any, stages: Any, sensitivity: Any
) -> ErlangRoot:
    """Rightmost root of r + mu + lambda theta (1 + r D / L)^-L, from numbers or traced scalars.

    **Arguments:** `arrival_rate`, `service_rate`: lambda, mu, 1/s, > 0. `mean`: D, s, > 0.
    `stages`: L, a real number >= 1; infinity is the deterministic delay. `sensitivity`: theta, per
    job, >= 0. A new number of stages does not recompile. Batch with `jax.vmap`.

    **Returns:** an `ErlangRoot`, differentiable in every argument by the implicit function theorem,
    also twice.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** relative, for mu D in 1e-4 to 1e4, lambda theta D in 1e-6 to 1e6 and 1 to 10^6
    stages or infinitely many: 4e-14 in float64, 3e-5 in float32; near a double root the square
    root of the precision (`tests/stability/test_erlang.py`).

    **Cost:** fixed, whatever the number of stages (`experiments/benchmarks/spectrum.py`).
    """
    arrival_rate = _checks.positive("arrival_rate", arrival_rate, "1/s")
    service_rate = _checks.positive("service_rate", service_rate, "1/s")
    mean = _checks.positive("mean", mean, "s")
    sensitivity = _checks.not_negative("sensitivity", sensitivity, "per job")
    stages = _checks.as_float("stages", stages)
    _checks.require("stages", stages, lambda v: v >= 1, "at least 1")
    dtype = jnp.result_type(arrival_rate, service_rate, mean, sensitivity)
    arguments = arrival_rate * sensitivity, service_rate, mean, stages
    real, imag, double = _root(*(value.astype(dtype) for value in arguments))
    return ErlangRoot(jax.lax.complex(real, imag), double > 0)


@jax.custom_jvp
def _root(gain, service_rate, mean, stages):
    """Real part, imaginary part, 1/s, and one if the root is double, else zero."""
    solved = _solve(service_rate * mean, gain * mean, stages)
    return solved.x / mean, solved.y / mean, (solved.slope == 0).astype(solved.x.dtype)


@_root.defjvp
def _root_jvp(primals, tangents):
    gain, service_rate, mean, stages = primals
    d_gain, d_service, d_mean, d_stages = tangents
    m, kappa = service_rate * mean, gain * mean
    # By the root itself, so that a second derivative comes by this rule again.
    real, imag, flag = _root(gain, service_rate, mean, stages)
    z, double = jax.lax.complex(real * mean, imag * mean), flag > 0
    s, finite = _inverse(stages)
    # Without feedback the stages' own root r = -L / D may be first; it is multiple, and moves with
    # a power of the gain, so that it has no derivative in the gain.
    stuck = (kappa <= 0) & (m >= finite) & (stages > 1) & (s > 0)
    # Formed from z these would lose digits; the values come from the solver.
    solved = jax.lax.stop_gradient(_solve(m, kappa, stages))
    passed = _with_value(z + m, solved.passed)
    turned = jnp.where(stuck, 1.0, _with_value(1 + s * z, solved.turned))
    slope = _with_value(z + m + 1 + s * z, solved.slope)
    d_s = -s * s * d_stages
    # Change of V (r + mu + g V^-L), V = 1 + r D / L, with the root held.
    change = (
        _pull(m, kappa, stages, passed, turned) * d_gain
        + turned * d_service
        + passed * z / (mean * mean) * d_mean
        + passed * _bend(s, jnp.where(stuck, 0.0, z), turned) / mean * d_s
    )
    d_root = -change / jnp.where(double | stuck, 1.0, slope)
    d_stuck = (finite * d_mean / mean - d_stages) / mean
    # At the double root eta = 0: what moves z there, and 2 c (1 - s) / (3 (1 + s)^2) for each unit
    # of delta, its slope from above.
    d_m = service_rate * d_mean + mean * d_service
    size = (passed * turned).real
    d_delta = -change.real * mean / jnp.where(double & (size != 0), size, 1.0)
    rise = -2 * passed.real * (1 - s) / (3 * (1 + s))
    d_z = rise * d_delta - d_m / (1 + s) + (1 + m) * d_s / (1 + s) ** 2
    one_sided = (d_z - z.real * d_mean / mean) / mean
    d_real = jnp.where(stuck, d_stuck, jnp.where(double, one_sided, d_root.real))
    d_imag = jnp.where(double | (imag == 0), 0.0, d_root.imag)
    return (real, imag, flag), (d_real, d_imag, jnp.zeros_like(flag))


def _with_value(formed, value):
    """`value`, with the derivative of `formed`."""
    return formed + jax.lax.stop_gradient(value - formed)


def _pull(m, kappa, stages, passed, turned):
    """V f = V^(1 - L), from (17) as -p V / kappa; without feedback from V = c."""
    s, finite = _inverse(stages)
    off = kappa <= 0
    power = jnp.where(s == 0, m, (1 - finite) * log1p(-jnp.minimum(s * m, 0.5)))
    mild = jnp.exp(jnp.where(s * m > 0.5, (1 - finite) * jnp.log(jnp.abs(1 - s * m)), power))
    return jnp.where(
        off, jnp.where(stages == 1, 1.0, mild), -passed * turned / jnp.where(off, 1.0, kappa)
    )


def _bend(s, z, turned):
    """(z - V log V / s) / s, and its limit z^2 / 2 ... as s falls to zero."""
    zero = s == 0
    t = jnp.where(zero, 1.0, s)
    close = jnp.abs(turned - 1) < 0.5
    from_z = jax.lax.complex(
        *_scaled_log1p(s, jnp.where(close, z.real, 0), jnp.where(close, z.imag, 0))
    )
    tau = jnp.where(close, from_z, jnp.log(jnp.where(close, 1.0, turned)) / t)
    return jnp.where(zero, z * z / 2, (z - turned * tau) / t)


def _inverse(stages):
    """1 / L, zero at infinity, and a finite stand-in for L."""
    many = jnp.isinf(stages)
    finite = jnp.where(many, 1.0, stages)
    return jnp.where(many, 0.0, 1 / finite), finite


def _scaled_log1p(s, x, y):
    """log(1 + s (x + i y)) / s as a pair, x + i y where s is zero."""
    zero = s == 0
    t = jnp.where(zero, 1.0, s)
    real, imag = log1p_parts(s * x, s * y)
    return jnp.where(zero, x, real / t), jnp.where(zero, y, imag / t)


def _scaled_expm1(s, x, y):
    """(exp(s (x + i y)) - 1) / s as a pair."""
    zero = s == 0
    t = jnp.where(zero, 1.0, s)
    growth = jnp.expm1(s * x)
    half = jnp.sin(s * y / 2)
    real = (growth * jnp.cos(s * y) - 2 * half * half) / t
    imag = (1 + growth) * jnp.sin(s * y) / t
    return jnp.where(zero, x, real), jnp.where(zero, y, imag)


def _divide(a, b, c, d):
    size = c * c + d * d
    return (a * c + b * d) / size, (b * c - a * d) / size


def _multiply(a, b, c, d):
    return a * c - b * d, a * d + b * c


def _halley(x, y, f, slope, bend):
    """One step from x + i y, given value, first and second derivative as pairs."""
    n, k = _divide(*f, *slope)
    u, v = _multiply(n, k, *_divide(*bend, *slope))
    dx, dy = _divide(n, k, 1 - u / 2, -v / 2)
    return x - dx, y - dy


def _near(s, delta):
    """eta for -1 <= delta <= FAR: the series about the double root, then two steps."""
    e = jnp.sqrt(2 * jnp.abs(delta) / (1 + s))
    a = (s - 1) / 3
    b = (s * s - 11 * s + 1) / 36
    c = -(s - 1) * (s * s + 25 * s + 1) / 270
    d = ((s - 22) * s + 267) * s * s - 22 * s + 1
    d = d / 4320
    f = (s - 1) * ((((s + 14) * s + 267) * s + 14) * s + 1) / 17010
    q = jnp.where(delta < 0, e * e, -e * e)  # e^2 of the complex e
    even = q * (a + q * (c + q * f))
    odd = e * (1 + q * (b + q * d))
    x = even + jnp.where(delta < 0, odd, 0.0)
    y = jnp.where(delta < 0, 0.0, odd)
    for _ in range(2):
        lx, ly = _scaled_log1p(s, x, y)
        gx, gy = log1p(x * (x - 2) + y * y) / 2, -jnp.arctan2(y, 1 - x)
        ix, iy = _divide(1.0, 0.0, 1 + s * x, s * y)
        jx, jy = _divide(1.0, 0.0, 1 - x, -y)
        # 1/(1 + s eta) - 1/(1 - eta) without cancellation at eta = 0.
        ux, uy = _multiply(ix, iy, jx, jy)
        sx, sy = _multiply(-(1 + s) * x, -(1 + s) * y, ux, uy)
        i2, j2 = _multiply(ix, iy, ix, iy), _multiply(jx, jy, jx, jy)
        step = _halley(
            x, y, (lx + gx - delta, ly + gy), (sx, sy), (-s * i2[0] - j2[0], -s * i2[1] - j2[1])
        )
        still = (x == 0) & (y == 0)
        x, y = jnp.where(still, x, step[0]), jnp.where(still, y, step[1])
    return x, y


def _below(s, delta):
    """1 - eta for delta < -1, real: log E + log(1 + s (1 - E)) / s = delta."""
    zero = s == 0
    t = jnp.where(zero, 1.0, s)

    def gap(e):
        return jnp.where(zero, 1 - e, log1p(s * (1 - e)) / t)

    e = jnp.exp(delta - gap(0.0))
    e = jnp.exp(delta - gap(e))
    for _ in range(3):
        # Newton in log E; the second term is nearly constant.
        v = 1 + s * (1 - e)
        value = delta - gap(e) - jnp.log(jnp.where(e > 0, e, 1.0))
        e = jnp.where(e > 0, e * jnp.exp(value / (1 - e / v)), e)
    return e


def _far(s, m, log_kappa):
    """z for delta > FAR or gamma <= mu: three steps in tau = L log V."""
    x, y = log_kappa / (1 + s), jnp.pi / (1 + s)
    for _ in range(3):
        ex, ey = _scaled_expm1(s, x, y)
        px, py = ex + m, ey
        vx, vy = 1 + s * ex, s * ey
        f = x + jnp.log(px * px + py * py) / 2 - log_kappa, y + jnp.arctan2(py, px) - jnp.pi
        rx, ry = _divide(vx, vy, px, py)
        slope = 1 + rx, ry
        # second derivative: (s V p - V^2) / p^2 = s V/p - (V/p)^2
        bx, by = _multiply(rx, ry, s - rx, -ry)
        x, y = _halley(x, y, f, slope, (bx, by))
    return _scaled_expm1(s, x, y)


class _Solved(NamedTuple):
    """z = x + i y = r D, p = z + m, V = 1 + s z, and p + V, which is zero at a double root."""

    x: Float[Array, ""]
    y: Float[Array, ""]
    passed: Complex[Array, ""]
    turned: Complex[Array, ""]
    slope: Complex[Array, ""]


def _solve(m, kappa, stages) -> _Solved:
    s, L = _inverse(stages)
    many = s == 0
    one = stages == 1
    # With one stage mu and gamma change places freely.
    c = jnp.where(one, jnp.abs(1 - m), jnp.where(many, 1.0, (L - m) / L))
    # log kappa*, where q = 1 - c / (1 + s) must not be formed by cancellation.
    q = jnp.where(one, 1 - c / 2, (1 + m) / (L + 1))
    star = jnp.where(many, -(1 + m), (L + 1) * log1p(-jnp.where((c > 0) & ~many, q, 0.5)))
    off = kappa <= 0
    log_kappa = jnp.log(jnp.where(off, jnp.finfo(m.dtype).tiny, kappa))
    delta = jnp.where(c > 0, log_kappa - star, FAR + 1)
    # What rounding cannot tell from the double root is taken as one.
    unsure = 4 * jnp.finfo(m.dtype).eps * (1 + jnp.abs(log_kappa))
    delta = jnp.where(jnp.abs(delta) <= unsure, 0.0, delta)
    far, below = delta > FAR, delta < -1
    near_x, near_y = _near(s, jnp.clip(delta, -1, FAR))
    left = _below(s, jnp.where(below, delta, -1.0))
    far_x, far_y = _far(s, m, jnp.where(far, log_kappa, 1.0))
    # c eta and its complement, real below.
    eta_x, eta_y = jnp.where(below, 1 - left, near_x), jnp.where(below, 0.0, near_y)
    rest = jax.lax.complex(jnp.where(below, left, 1 - near_x), -eta_y)
    slow = jnp.where(one, jnp.minimum(m, 1.0), m)
    x = jnp.where(below, -slow - c * left / (1 + s), (c * near_x - 1 - m) / (1 + s))
    x = jnp.where(far, far_x, x)
    y = jnp.where(far, far_y, c * eta_y / (1 + s))
    # Without feedback the modes are those of service and of the stages.
    x = jnp.where(off, -jnp.where(many, m, jnp.minimum(m, L)), x)
    y = jnp.where(off, 0.0, y)
    z = jax.lax.complex(x, y)
    first = -c * rest / (1 + s)
    second = c * jax.lax.complex(1 + s * eta_x, s * eta_y) / (1 + s)
    swapped = one & (m > 1)
    passed = jnp.where(far, z + m, jnp.where(swapped, second, first))
    turned = jnp.where(far, 1 + s * z, jnp.where(swapped, first, second))
    slope = jnp.where(far, z + m + 1 + s * z, c * jax.lax.complex(eta_x, eta_y))
    return _Solved(x, y, passed, turned, slope)
