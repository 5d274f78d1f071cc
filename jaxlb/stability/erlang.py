"""Rightmost root with an Erlang or deterministic delay: O(1) whatever the number of stages.

With z = r D, m = mu D, s = 1/L (zero for the deterministic delay), kappa = lambda theta D and
V = 1 + s z, equation (17) is (z + m) V^L = -kappa. `jaxlb.stability.trinomial` solves it; here are
its units, its derivatives by the implicit function theorem, and long batches in pieces.
"""

import itertools
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Complex, Float

from .. import _checks
from ..model.delays import Deterministic, Erlang
from ..model.routing import Logit
from ..model.system import System
from .trinomial import Pair, feedback, inverse, multiply, scaled_log1p, solve, together

# Points done at a time: few enough that all between argument and result stays in a CPU's cache, or
# fits an accelerator's memory many times over.
CPU_PIECE, PIECE = 2**14, 2**21


class ErlangRoot(NamedTuple):
    """Rightmost roots, 1/s, with imaginary parts >= 0.

    `double`: two roots meet. There the derivative of the imaginary part does not exist and is given
    as zero; that of the real part is the one-sided one towards a larger gain. The imaginary part's
    derivative is zero where the root is real. Without feedback, or with a gain that rounding cannot
    tell from none, and gamma <= mu, all L roots of the stages meet: it is set too, and where the
    derivative in the gain is infinite, for L > 2 and for gamma = mu, it is given as zero.

    `valid`: arguments were in their domain and neither the square of lambda theta D nor that of
    mu D overflows; elsewhere `root` is NaN and its derivatives are zero.
    """

    root: Complex[Array, "..."]
    double: Bool[Array, "..."]
    valid: Bool[Array, "..."]


def is_erlang(system: System) -> bool:
    """Whether the paper's rule meets an Erlang or deterministic delay, as all here needs."""
    return isinstance(system.routing, Logit) and isinstance(system.delay, Erlang | Deterministic)


def stages_of(system: System) -> Float[Array, ""]:
    """L as an array, so that another does not recompile; infinite unless the delay is `Erlang`."""
    stages = system.delay.stages if isinstance(system.delay, Erlang) else jnp.inf
    return jnp.asarray(stages, system.arrival_rate.dtype)


def parameters_of(system: System) -> tuple[Array, ...]:
    """lambda, mu, D, L and theta, as `erlang_root` takes them, where `is_erlang` holds."""
    theta = system.routing.sensitivity  # pyright: ignore[reportFunctionMemberAccess]
    rate = system.common_service_rate
    return system.arrival_rate, rate, system.delay.mean, stages_of(system), theta


def erlang_root(
    arrival_rate: Any, service_rate: Any, mean: Any, stages: Any, sensitivity: Any
) -> ErlangRoot:
    """Rightmost root of r + mu + lambda theta (1 + r D / L)^-L, element by element.

    **Arguments:** numbers or arrays that broadcast together, traced or not. `arrival_rate`,
    `service_rate`: lambda, mu, 1/s, > 0. `mean`: D, s, > 0. `stages`: L, real numbers >= 1;
    infinity is the deterministic delay. `sensitivity`: theta, per job, >= 0. A new number of stages
    does not recompile.

    **Returns:** an `ErlangRoot`, differentiable in every argument by the implicit function theorem,
    also twice. With one stage and gamma < mu the second derivative in the gain and L together,
    infinite without feedback, is given as finite there.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** relative, for mu D in 1e-4 to 1e4, lambda theta D in 1e-6 to 1e6 and 1 to 10^6
    stages or infinitely many: 4e-14 in float64, 3e-5 in float32; near a double root the square
    root of the precision (`experiments/certification.py`). Derivatives in the gain lose digits as
    the root nears that of the stages: a part eps / |1 + r D / L| of them.

    **Cost:** fixed, whatever the number of stages (`experiments/benchmarks/spectrum.py`). Long
    arrays are done in pieces, so that 10^7 points take little memory beyond arguments and result.
    """
    arguments = {
        "arrival_rate": _checks.positive("arrival_rate", arrival_rate, "1/s", _checks.ANY),
        "service_rate": _checks.positive("service_rate", service_rate, "1/s", _checks.ANY),
        "mean": _checks.positive("mean", mean, "s", _checks.ANY),
        "sensitivity": _checks.not_negative("sensitivity", sensitivity, "per job", _checks.ANY),
    }
    dtype = jnp.result_type(*arguments.values())
    arguments["stages"] = _checks.stages("stages", stages, _checks.ANY)
    _checks.broadcast(arguments)
    order = "arrival_rate", "service_rate", "mean", "stages", "sensitivity"
    real, imag, double, valid = _in_pieces(*(arguments[name].astype(dtype) for name in order))
    return ErlangRoot(jax.lax.complex(real, imag), double, valid)


@jax.jit
def _in_pieces(*arguments: Float[Array, "..."]):
    """`_elements` of arrays that broadcast together."""
    shape = jnp.broadcast_shapes(*(value.shape for value in arguments))
    # Numbers that all points share are not spread out.
    flat = [
        value.ravel() if value.size == 1 else jnp.broadcast_to(value, shape).ravel()
        for value in arguments
    ]
    size = math.prod(shape)
    if size <= CPU_PIECE:
        done = _elements(*(jnp.broadcast_to(value, (size,)) for value in flat))
    else:
        done = jax.lax.platform_dependent(
            *flat,
            cpu=partial(_pieces_of, CPU_PIECE, size),
            default=partial(_pieces_of, PIECE, size),
        )
    return tuple(value.reshape(shape) for value in done)


def _pieces_of(length: int, size: int, *arguments: Float[Array, " _"]):
    # Equal pieces if there are such, else the last is filled up, which takes a copy.
    lengths = np.arange(length // 2 + 1, length + 1)
    even = lengths[size % lengths == 0]
    length = int(even[-1]) if even.size else -(-size // -(-size // length))
    pieces = -(-size // length)
    varied = [value.size > 1 for value in arguments]
    padding = (0, pieces * length - size)
    rows = [
        jnp.pad(value, padding, mode="edge").reshape(pieces, length)
        for value in itertools.compress(arguments, varied)
    ]

    def of_piece(row):
        row = iter(row)
        given = (
            next(row) if vary else jnp.broadcast_to(value, (length,))
            for value, vary in zip(arguments, varied, strict=True)
        )
        return _elements(*given)

    return tuple(value.ravel()[:size] for value in jax.lax.map(of_piece, rows))


def _elements(arrival_rate, service_rate, mean, stages, sensitivity):
    """Real and imaginary part, whether the root is double, whether the arguments are valid."""
    rates = arrival_rate, service_rate, mean
    valid = _checks.is_stages(stages) & _checks.is_not_negative(sensitivity)
    for rate in rates:
        valid = valid & _checks.is_positive(rate)
    # The root takes squares of both.
    largest = jnp.sqrt(jnp.finfo(mean.dtype).max)
    for product in (arrival_rate * sensitivity * mean, service_rate * mean):
        valid = valid & (product < largest)
    # Masked before the root, not after: zero times NaN is NaN in the transpose.
    arrival_rate, service_rate, mean, stages, sensitivity = (
        jnp.where(valid, value, 1.0) for value in (*rates, stages, sensitivity)
    )
    real, imag, flag, *_ = solved_root(arrival_rate * sensitivity, service_rate, mean, stages)
    parts = (jnp.where(valid, part, jnp.nan) for part in (real, imag))
    return *parts, valid & (flag > 0), valid


@jax.custom_jvp
def solved_root(gain, service_rate, mean, stages):
    """Real and imaginary part, 1/s, and how many roots meet; then p, V and p + V.

    The third is one for a double root, two for the root of all stages, else zero. The last three
    are for the derivatives alone.
    """
    solved = solve(service_rate * mean, gain * mean, stages)
    real, imag = solved.root
    flag = solved.double + 2 * solved.stuck
    flag = flag.astype(real.dtype)
    return real / mean, imag / mean, flag, solved.passed, solved.turned, solved.slope


@partial(solved_root.defjvp, symbolic_zeros=True)
def _solved_root_jvp(primals, tangents):
    # By the root itself, so that a second derivative comes by this rule again.
    out = solved_root(*primals)
    given = [
        (tangent, number)
        for number, tangent in enumerate(tangents)
        if not isinstance(tangent, SymbolicZero)
    ]
    slopes = _slopes(primals, out, {number for _, number in given})
    # Real coefficients outside, so that a transpose keeps nothing but them.
    d_real, d_imag = (
        sum((slopes[number][part] * tangent for tangent, number in given), jnp.zeros_like(out[0]))
        for part in (0, 1)
    )
    # The rest serves second derivatives.
    d_service, d_mean, d_stages = (
        jnp.zeros_like(value) if isinstance(tangent, SymbolicZero) else tangent
        for value, tangent in zip(primals[1:], tangents[1:], strict=True)
    )
    _, service_rate, mean, stages = primals
    real, imag = out[:2]
    s, _ = inverse(stages)
    d_m, d_s = service_rate * d_mean + mean * d_service, -s * s * d_stages
    d_zx, d_zy = d_real * mean + real * d_mean, d_imag * mean + imag * d_mean
    d_vx, d_vy = s * d_zx + real * mean * d_s, s * d_zy + imag * mean * d_s
    d_out = (d_zx + d_m, d_zy), (d_vx, d_vy), (d_zx + d_m + d_vx, d_zy + d_vy)
    return out, (d_real, d_imag, jnp.zeros_like(real), *d_out)


def _slopes(arguments, out, wanted):
    """Derivatives of the root's two parts in each wanted argument, by its number."""
    gain, service_rate, mean, stages = arguments
    real, imag, flag, *parts = out
    # What all slopes need is found once.
    flag = jax.lax.optimization_barrier(flag)
    passed, turned, slope = (together(pair) for pair in parts)
    m, kappa = service_rate * mean, gain * mean
    s, finite = inverse(stages)
    per_mean, share = 1 / mean, 1 / (1 + s)
    # Without feedback the stages' own root r = -L / D may be first; it is multiple, and moves with
    # a power of the gain, so that it has no derivative in the gain.
    double, stuck = flag == 1, flag == 2
    z = real * mean, imag * mean
    # V^(1 - L), by (17).
    off = kappa <= 0
    pull = _scale(multiply(passed, turned), -1 / feedback(kappa))
    pull = jnp.where(off, jnp.abs(pull[0]), pull[0]), jnp.where(off, 0.0, pull[1])
    pull = _power((pull, s, z, turned))
    # Change of V (r + mu + g V^-L), V = 1 + r D / L, with the root held.
    change = (
        lambda: pull,
        lambda: turned,
        lambda: multiply(_scale(passed, per_mean), (real, imag)),
        lambda: _scale(multiply(passed, _bend(s, z, turned, stuck)), -s * s * per_mean),
    )
    # -1 / (p + V). At the double root p = -V, what it is from above, where z moves besides.
    size = jnp.where(double, 3 * (1 + s) * turned[0], slope[0] ** 2 + slope[1] ** 2)
    size = 1 / jnp.where(stuck | (size == 0), 1.0, size)
    over = together((jnp.where(double, 2 * (1 - s), -slope[0]) * size, slope[1] * size))
    shift = (
        lambda: jnp.zeros_like(s),
        lambda: -share,
        lambda: -(service_rate * share + real) * per_mean,
        lambda: -s * s * (1 + m) * share * share * per_mean,
    )
    # Of the stages' roots the real part of two goes as the gain, that of more as a lower power.
    two = stuck & (stages == 2) & (m > 2)
    apart = jnp.where(two, 1 / jnp.where(two, m - 2, 1.0), 0.0)
    rate = 2 * apart * apart
    turn = -2 * gain * rate * apart
    when_stuck = (
        lambda: rate,
        lambda: turn * mean,
        lambda: finite * per_mean * per_mean + turn * service_rate,
        lambda: -per_mean,
    )
    slopes = {}
    for number in wanted:
        x, y = multiply(change[number](), over)
        x = jnp.where(double, x + shift[number](), x)
        x = jnp.where(stuck, when_stuck[number](), x)
        slopes[number] = x, jnp.where(double | (imag == 0), 0.0, y)
    return slopes


@jax.custom_jvp
def _power(known):
    """V^(1 - L) from itself, s, z and V, with the derivative of the power.

    That of p V / kappa cancels where kappa is small, and does not exist where it is zero.
    """
    return known[0]


@_power.defjvp
def _power_jvp(primals, tangents):
    value, s, z, turned = primals[0]
    _, d_s, d_z, _ = tangents[0]
    gone = turned[0] ** 2 + turned[1] ** 2 == 0
    v = jnp.where(gone, 1.0, turned[0]), turned[1]
    size = v[0] ** 2 + v[1] ** 2
    # With one stage V may be zero, and the derivative in L infinite: none is given, as in `_bend`.
    lost = (1 + s * z[0] == 0) & (z[1] == 0)
    tau = scaled_log1p(s, *(jnp.where(lost, 0.0, part) for part in z))
    bend = _bend(s, z, turned, gone)
    moved = d_z[0] + bend[0] * d_s, d_z[1] + bend[1] * d_s
    x, y = _scale(multiply(moved, (v[0], -v[1])), (s - 1) / size)
    return value, multiply(value, (x + tau[0] * d_s, y + tau[1] * d_s))


def _scale(pair: Pair, factor: Array) -> Pair:
    return pair[0] * factor, pair[1] * factor


def _bend(s, z, turned, stuck):
    """(z - V log V / s) / s, where not stuck."""
    x, y = jnp.where(stuck, 0.0, z[0]), jnp.where(stuck, 0.0, z[1])
    v = jnp.where(stuck, 1.0, turned[0]), jnp.where(stuck, 0.0, turned[1])
    w = s * x, s * y
    # Close to zero it would cancel: a series in s z there.
    close = jnp.maximum(jnp.abs(w[0]), w[1]) < 0.05
    near = jnp.where(close, w[0], 0.0), jnp.where(close, w[1], 0.0)
    series = jnp.zeros_like(x), jnp.zeros_like(x)
    for n in range(10, -1, -1):
        series = multiply(series, near)
        series = series[0] - (-1) ** n / ((n + 1) * (n + 2)), series[1]
    series = multiply(series, multiply((x, y), (x, y)))
    # V log V is zero with V.
    gone = (1 + w[0]) ** 2 + w[1] ** 2 == 0
    tau = scaled_log1p(s, jnp.where(gone, 0.0, x), jnp.where(gone, 0.0, y))
    apart = multiply(v, tau)
    t = jnp.where(close, 1.0, s)
    return (
        jnp.where(close, series[0], (x - apart[0]) / t),
        jnp.where(close, series[1], (y - apart[1]) / t),
    )
