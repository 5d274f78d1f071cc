"""Stability boundary with an Erlang or deterministic delay: O(1) whatever the number of stages.

With m = mu D, y = w D and kappa = K D, where K = lambda theta is the gain, a root r = i w of
equation (17) satisfies

    atan(y / m) + L atan(y / L) = pi,    kappa = sqrt(m^2 + y^2) (1 + y^2 / L^2)^(L / 2).

With the gain held and the mean delay free the angles u = atan(m / y) and c = atan(L / y) leave one
equation, sin(u) sin(c)^L = mu / K with u + L c = (L - 1) pi / 2. Its left-hand side has its one
maximum at u = c: so there are two crossings, one or none, and m = L tan(u) / tan(c) is the mean.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._logarithms import log1p
from .domain import flagged


class HopfPoint(NamedTuple):
    """Gain lambda theta at which balance loses stability, 1/s, and the frequency there, rad/s."""

    gain: Float[Array, ""]
    frequency: Float[Array, ""]


class DelayWindow(NamedTuple):
    """Mean delays, s, between which balance is unstable; both infinite if there are none.

    Balance is stable for every mean below `lower` and unstable from there to `upper`, which is
    infinite if stability never returns. `single`: it is stable for every mean above `upper` too.
    """

    lower: Float[Array, ""]
    upper: Float[Array, ""]
    single: Bool[Array, ""]


def erlang_boundary(service_rate: Any, mean: Any, stages: Any) -> HopfPoint:
    """Where balance loses stability as the gain grows, from numbers or traced scalars.

    **Arguments:** `service_rate`: mu, 1/s, > 0. `mean`: D, s, > 0. `stages`: L, a real number >= 1;
    infinity is the deterministic delay. A new number of stages does not recompile.

    **Returns:** a `HopfPoint`, differentiable in every argument, also twice. One stage is always
    stable: gain and frequency are infinite, as their limits are, and their derivatives zero.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** relative, for mu D in 1e-4 to 1e4 and any number of stages: 4e-15 in float64, 2e-6
    in float32 (`tests/stability/test_boundary.py`).
    """
    service_rate = _checks.positive("service_rate", service_rate, "1/s")
    mean = _checks.positive("mean", mean, "s")
    stages, service_rate, mean = _alike(stages, service_rate, mean)
    valid = _checks.is_positive(service_rate) & _checks.is_positive(mean)
    valid = valid & _checks.is_stages(stages)
    return flagged(valid, _hopf_point, stages, service_rate, mean)


def _hopf_point(stages, service_rate, mean) -> HopfPoint:
    never = stages <= 1
    y, kappa = _boundary(service_rate * mean, jnp.where(never, 2.0, stages))
    return HopfPoint(jnp.where(never, jnp.inf, kappa / mean), jnp.where(never, jnp.inf, y / mean))


def erlang_safe_gain(service_rate: Any, stages: Any) -> Float[Array, ""]:
    """Gain below which balance is stable whatever the mean delay: mu sec(pi / (L + 1))^(L + 1).

    Arguments and errors as in `erlang_boundary`; infinite for one stage, mu for infinitely many.
    The worst mean is L / mu. Differentiable.
    """
    stages, service_rate = _alike(stages, _checks.positive("service_rate", service_rate, "1/s"))
    valid = _checks.is_positive(service_rate) & _checks.is_stages(stages)
    return flagged(valid, _safe_gain, stages, service_rate)


def _safe_gain(stages, service_rate) -> Float[Array, ""]:
    never = stages <= 1
    log_ratio = _log_safe_ratio(jnp.where(never, 2.0, stages))
    return jnp.where(never, jnp.inf, service_rate * jnp.exp(log_ratio))


def erlang_delay_window(gain: Any, service_rate: Any, stages: Any) -> DelayWindow:
    """All mean delays at which balance is unstable, from numbers or traced scalars.

    **Arguments:** `gain`: lambda theta, 1/s, >= 0; the others as in `erlang_boundary`.

    **Returns:** a `DelayWindow`, differentiable in every argument, also twice. The two ends meet at
    L / mu where the gain is `erlang_safe_gain`; their derivatives, infinite there, are given as
    zero, as are those of an infinite end.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** relative, times the condition of an end in the gain, which grows as the two meet:
    2e-14 in float64, 6e-6 in float32.
    """
    gain = _checks.not_negative("gain", gain, "1/s")
    service_rate = _checks.positive("service_rate", service_rate, "1/s")
    stages, gain, service_rate = _alike(stages, gain, service_rate)
    valid = _checks.is_not_negative(gain) & _checks.is_positive(service_rate)
    valid = valid & _checks.is_stages(stages)
    return flagged(valid, _delay_window, stages, gain, service_rate)


def _delay_window(stages, gain, service_rate) -> DelayWindow:
    some = (stages > 1) & (gain > 0)
    shape = jnp.where(some, stages, 2.0)
    least, most = _log_safe_ratio(shape), _log_last_ratio(shape)
    log_ratio = jnp.log(jnp.where(some, gain / service_rate, 1.0))
    some = some & (log_ratio >= least) & ((log_ratio > 0) | jnp.isfinite(stages))
    returns = some & (log_ratio < most)
    middle = jnp.where(jnp.isinf(most), least + 1.0, (least + most) / 2)
    lower = _crossing(False, jnp.where(some, log_ratio, least + 1.0), shape)
    upper = _crossing(
        True, jnp.where(returns, log_ratio, middle), jnp.where(jnp.isinf(shape), 2.0, shape)
    )
    return DelayWindow(
        jnp.where(some, lower / service_rate, jnp.inf),
        jnp.where(returns, upper / service_rate, jnp.inf),
        jnp.ones_like(some),
    )


def _alike(stages: Any, *rates: Any):
    """`stages`, checked, and the others, in the dtype of the others."""
    dtype = jnp.result_type(*rates)
    return [value.astype(dtype) for value in (_checks.stages("stages", stages), *rates)]


def _finite(stages):
    """Whether there are infinitely many, 1 / L, and a finite stand-in for L."""
    many = jnp.isinf(stages)
    finite = jnp.where(many, 1.0, stages)
    return many, jnp.where(many, 0.0, 1 / finite), finite


@jax.custom_jvp
def _boundary(m, stages):
    """y = w D and kappa = K D on the boundary, for L > 1."""
    many, s, L = _finite(stages)
    half = jnp.where(many, jnp.pi / 2, L * jnp.tan(jnp.pi / (2 * L)))
    t = s * half
    few = stages < 2
    # Exact for two and three stages, and below two in the limits m = 0, m = infinity and L = 1.
    steep = jnp.tan(jnp.pi / 2 * (2 - jnp.where(few, L, 2.0))) / half
    grown = jnp.where(few, 1 + m * steep**2, 1 / (1 + m * (1 - t * t) ** 2 / 4))
    y = half * jnp.sqrt((1 + m) * grown)
    for _ in range(3):
        y = y * jnp.exp(-_phase_step(y, m, stages))
    x = s * y
    return y, jnp.hypot(m, y) * jnp.exp(jnp.where(many, 0.0, L / 2 * log1p(x * x)))


def _phase_step(y, m, stages):
    """Halley's step in log y on atan(y / m) + L atan(y / L) - pi."""
    many, s, L = _finite(stages)
    x = s * y
    # Each angle by itself or by its complement, whichever is small, so that nothing cancels.
    over, past = y > m, x > 1
    service = jnp.where(over, -jnp.arctan(m / y), jnp.arctan(jnp.minimum(y / m, 1.0)))
    stage = jnp.where(past, -L * jnp.arctan(1 / x), L * jnp.arctan(x))
    turns = jnp.where(past, L - 2, -2.0) + jnp.where(over, 1.0, 0.0)
    phase = service + jnp.where(many, y, stage) + jnp.pi / 2 * turns
    by_service = y / m / (1 + (y / m) ** 2)
    by_stage = y / (1 + x * x)
    slope = by_service + by_stage
    bend = by_service * (1 - 2 / (1 + (m / y) ** 2)) + by_stage * (1 - x * x) / (1 + x * x)
    step = phase / slope
    return step / (1 - step * bend / (2 * slope))


@_boundary.defjvp
def _boundary_jvp(primals, tangents):
    (m, stages), (d_m, d_stages) = primals, tangents
    y, kappa = _boundary(m, stages)
    many, s, _ = _finite(stages)
    d_stages = jnp.where(many, 0.0, d_stages)
    x = s * y
    size, turned = m * m + y * y, 1 + x * x
    slope = m / size + 1 / turned
    d_y = (y / size * d_m - _angle_excess(x) * d_stages) / slope
    d_log = (m * d_m + y * d_y) / size + x / turned * d_y
    d_log = d_log + (log1p(x * x) / 2 - x * x / turned) * d_stages
    return (y, kappa), (d_y, kappa * d_log)


def _angle_excess(x):
    """atan(x) - x / (1 + x^2), without cancellation where x is small."""
    small = x < 0.1
    q = jnp.where(small, x, 0.0)
    series = sum((-1) ** (k + 1) * 2 * k / (2 * k + 1) * q ** (2 * k + 1) for k in range(1, 9))
    x = jnp.where(small, 1.0, x)
    return jnp.where(small, series, jnp.arctan(x) - x / (1 + x * x))


def _log_sine_power(u, left, stages):
    """L log sin(c), where left = L c = (L - 1) pi / 2 - u."""
    many, s, _ = _finite(stages)
    # sin(c) = cos(a) with a small if there are many stages.
    a = s * (jnp.pi / 2 + u)
    gentle = a < jnp.pi / 4
    close = log1p(-2 * jnp.sin(jnp.where(gentle, a, 0.0) / 2) ** 2)
    steep = jnp.log(jnp.sin(jnp.where(gentle, 1.0, s * left)))
    return jnp.where(many, 0.0, jnp.where(gentle, close, steep) / jnp.where(many, 1.0, s))


def _room(stages):
    """(L - 1) pi / 2, and u = c at the maximum of sin(u) sin(c)^L."""
    many, _, L = _finite(stages)
    room = jnp.where(many, jnp.inf, jnp.pi / 2 * (L - 1))
    return room, jnp.where(many, jnp.pi / 2, jnp.pi / 2 * (L - 1) / (L + 1))


def _log_safe_ratio(stages):
    """log of sec(pi / (L + 1))^(L + 1), for L > 1."""
    _, u = _room(stages)
    return -jnp.log(jnp.sin(u)) - _log_sine_power(
        u, jnp.where(jnp.isinf(stages), 1.0, stages) * u, stages
    )


def _log_last_ratio(stages):
    """log of sec(pi / L)^L, from which on stability does not return; infinite for L <= 2."""
    L = jnp.where(stages > 2, stages, 3.0)
    room, _ = _room(L)
    return jnp.where(stages > 2, -_log_sine_power(jnp.pi / 2, room - jnp.pi / 2, L), jnp.inf)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _crossing(upper, log_ratio, stages):
    """m = mu D at the lower or the upper crossing, for a ratio K / mu that has it."""
    many, s, L = _finite(stages)
    room, fold = _room(stages)
    least = _log_safe_ratio(stages)
    root = jnp.sqrt(jnp.maximum(log_ratio - least, 0.0))
    # The curvature at the maximum leads close to it; far below it one sine does all the falling.
    near = root * jnp.sin(fold) * jnp.sqrt(2 / (1 + s))
    few = stages < 2
    shift = jnp.pi / 2 * jnp.maximum(L - 2, 0.0)
    if upper:
        # x is the smaller of L c and pi / 2 - u, so that it may be as small as it likes.
        power = jnp.exp(-s * (log_ratio + jnp.log(jnp.sin(jnp.where(few, room, jnp.pi / 2)))))
        first = L * jnp.arcsin(jnp.minimum(power, 1.0)) - shift
        most = jnp.where(few, L * fold, jnp.pi / 2 - fold)
    else:
        first = jnp.exp(-log_ratio - _log_sine_power(0.0 * fold, room, stages))
        most = fold

    def angles(x):
        """u and L c."""
        if upper:
            return jnp.where(few, room, jnp.pi / 2) - x, x + shift
        return x, jnp.where(many, 1.0, room - x)

    info = jnp.finfo(fold.dtype)
    x = jnp.clip(jnp.maximum(first, most - near), info.tiny / info.eps, most)
    # Newton on the root of the depth below the maximum: smooth there, and the crossings simple.
    for _ in range(6):
        u, left = angles(x)
        sine = jnp.log(jnp.sin(u)) + _log_sine_power(u, left, stages)
        below = jnp.sqrt(jnp.maximum(-least - sine, 0.0))
        rise = 1 / jnp.tan(u) - jnp.where(many, 0.0, 1 / jnp.tan(s * left))
        rise = -rise if upper else rise
        flat = rise <= 0
        step = 2 * below * (below - root) / jnp.where(flat, 1.0, rise)
        x = jnp.where(flat, x, jnp.clip(x + step, x / 1000, most))
    u, left = angles(x)
    # L tan(a) with the angle or its complement, whichever is small.
    a = s * (jnp.pi / 2 + u)
    gentle = a < jnp.pi / 4
    steep = L / jnp.tan(jnp.where(gentle, 1.0, s * left))
    y = jnp.where(gentle, L * jnp.tan(jnp.where(gentle, a, 0.0)), steep)
    y = jnp.where(many, jnp.pi / 2 + u, y)
    if upper:
        beside = x + jnp.pi / 2 * jnp.maximum(2 - L, 0.0)
        return jnp.where(stages < 1.5, y * jnp.tan(u), y / jnp.tan(beside))
    return y * jnp.tan(u)


@_crossing.defjvp
def _crossing_jvp(upper, primals, tangents):
    """A crossing is where the boundary's kappa / m is the ratio K / mu."""
    (log_ratio, stages), (d_ratio, d_stages) = primals, tangents
    m = _crossing(upper, log_ratio, stages)

    def log_of_boundary(m, stages):
        return jnp.log(_boundary(m, stages)[1] / m)

    _, by_m = jax.jvp(lambda m: log_of_boundary(m, stages), (m,), (jnp.ones_like(m),))
    _, change = jax.jvp(lambda L: log_of_boundary(m, L), (stages,), (d_stages,))
    # Where both crossings meet there is no slope, and what rounding leaves of one is none.
    fold = jnp.abs(m * by_m) < 100 * jnp.finfo(m.dtype).eps
    return m, jnp.where(fold, 0.0, (d_ratio - change) / jnp.where(fold, 1.0, by_m))
