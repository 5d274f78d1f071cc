"""Robustness of balance: how far gain, phase and delay may move before an imbalance grows."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._logarithms import log1p
from ..model.delays import Erlang
from ..model.system import System, require_one
from . import axis, domain, loop, stretching
from .boundary import critical_delay
from .erlang import is_erlang, stages_of
from .erlang_boundary import erlang_boundary

# Points over the first turn of the loop, where the sensitivity has one maximum.
PEAK_POINTS = 128
TURN = 2 * math.pi


class Margins(NamedTuple):
    """What the loop can still take; see `margins`."""

    gain: Float[Array, ""]
    phase: Float[Array, ""]
    delay: Float[Array, ""]
    mean_delay: Float[Array, ""]
    crossover: Float[Array, ""]
    stable: Bool[Array, ""]


def margins(system: System) -> Margins:
    """Stability margins of balance, in the sense of Nyquist's criterion.

    **Returns:** a `Margins`; each is infinite where no change of that kind loses stability.

    - `gain`: factor by which the feedback (sensitivity, arrival rate) may grow.
    - `phase`: lag, rad, that the loop may have more at its gain crossover.
    - `delay`: the largest pure delay, s, that the loop may have more: phase over crossover.
    - `mean_delay`: factor by which the mean delay may grow, its law keeping its shape.
    - `crossover`: frequency, rad/s, at which `delay` is lost; infinite where `delay` is.
    - `stable`: whether balance is stable.

    Where balance is unstable, `gain` and `mean_delay` are the factors below which it is stable, all
    the way to zero. They are below one, unless stability returns for a while at a larger gain or
    mean. `phase` is negative: pi plus the argument of G at the crossover, followed from zero
    frequency without a jump; `delay` is negative with it.

    With `Logit` and an `Erlang` or `Deterministic` delay the size of G falls with the frequency, so
    that there is one crossover. For other laws and rules each margin is the least over the first 32
    crossings on a grid of frequencies (`jaxlb.stability.axis`); of a rule that is not linear `gain`
    scales the slope at balance. All are differentiable; zero where infinite.

    **Raises:** `ValueError` unless there are two or more servers of one service rate.

    **Accuracy:** relative; of `phase` relative to pi plus its size, of `delay` to that over the
    crossover. With one crossover `gain` and `mean_delay` are those of `jaxlb.stability.boundary`,
    the others within 3e-15 in float64 and 4e-7 in float32. By the search, over 200 random weights:
    1e-13 and 3e-6, 2e-4 for `mean_delay`.

    **Cost:** fixed; by the search 6000 evaluations of the delay's transform.

    **Source:** Astrom and Murray (2008), Feedback Systems, section 9.3, for the margins.
    """
    require_one(system)
    system.require_two_alike()
    return _margins(system)


@domain.of_system
@eqx.filter_jit
def _margins(system: System) -> Margins:
    return _closed_margins(system) if is_erlang(system) else _found_margins(system)


def _lag(system: System, w: Array) -> Array:
    """-arg G, rad, at w = frequency times mean delay; followed from w = 0."""
    m = system.common_service_rate * system.delay.mean
    if isinstance(system.delay, Erlang):
        stages = system.delay.stages
        return jnp.arctan2(w, m) + stages * jnp.arctan(w / stages)
    return jnp.arctan2(w, m) + w


def _crossover(system: System) -> Array:
    """Frequency times mean delay at which |G| is one; infinity where it is below one everywhere.

    With t = log w^2 the equation is convex in t: Newton's steps from above fall to the root.
    """
    gain, service = -loop.feedback(system)[0], system.common_service_rate
    m = service * system.delay.mean
    crosses = gain > service
    # The difference is exact where the logarithm would cancel.
    excess = jnp.where(crosses, (gain - service) / service, 1.0)
    # Without the stages' share in the fall of |G|: of a pure delay it is one.
    alone = m * jnp.sqrt(excess * (2 + excess))
    if not isinstance(system.delay, Erlang):
        return jnp.where(crosses, alone, jnp.inf)
    stages, level = system.delay.stages, log1p(excess)

    def newton(w):
        x, y = (w / m) ** 2, (w / stages) ** 2
        excess = (log1p(x) + stages * log1p(y)) / 2 - level
        slope = (x / (1 + x) + stages * (y / (1 + y))) / 2
        return w * jnp.exp(-excess / (2 * slope))

    # Either factor of |G| alone bounds w from above; the exponent is kept from overflow.
    bound = stages * jnp.sqrt(jnp.expm1(jnp.minimum(2 * level / stages, 80.0)))
    w = jnp.minimum(alone, bound)
    for _ in range(5):
        w = jax.lax.stop_gradient(newton(w))
    # Two steps with derivatives: the second comes out right as well.
    return jnp.where(crosses, newton(newton(w)), jnp.inf)


def _closed_margins(system: System) -> Margins:
    mean, w = system.delay.mean, _crossover(system)
    crosses = jnp.isfinite(w)
    at = jnp.where(crosses, w, 1.0)
    phase = jnp.pi - _lag(system, at)
    delay = jnp.where(crosses, phase * mean / at, jnp.inf)
    phase = jnp.where(crosses, phase, jnp.inf)
    gain = -loop.feedback(system)[0]
    critical = erlang_boundary(system.common_service_rate, mean, stages_of(system)).gain
    growth = _ratio(critical, gain)
    window = critical_delay(system)
    mean_delay = _ratio(jnp.where(mean >= window.upper, jnp.inf, window.lower), mean)
    crossover = jnp.where(crosses, at / mean, jnp.inf)
    return Margins(growth, phase, delay, mean_delay, crossover, phase > 0)


def _found_margins(system: System) -> Margins:
    """By the crossings of the negative axis and of the unit circle."""
    grid = loop.frequencies(system)

    def curve(w):
        return loop.on_axis(system, w)

    def conditions(w):
        value = curve(w)
        return jnp.stack([value.imag, _square(value) - 1])

    at, rising, there = axis.crossings(conditions, grid)
    on_axis, on_circle = jax.vmap(jax.vmap(curve))(at)
    growths = jnp.where(there[0], _growth(on_axis, _rounding(system, at[0])), jnp.inf)
    # G crosses the axis at frequency zero too, where it is real; this half counts once.
    zero = jnp.zeros_like(grid[0])
    still = _growth(curve(zero), _rounding(system, zero))
    first = jnp.where(curve(grid[0]).imag > 0, 1, -1)
    # Each crossing beyond -1, counted upwards, is a pair of roots on the right.
    pairs = jnp.where(growths < 1, jnp.where(rising[0], 2, -2), 0)
    stable = jnp.sum(pairs) + jnp.where(still < 1, first, 0) == 0
    changes, mean = stretching.delay_crossings(system), system.delay.mean
    ahead = jnp.min(jnp.where(changes.mean > mean, changes.mean, jnp.inf))
    lost = jnp.where(stable, ahead, jnp.where(changes.unstable[0], changes.mean[0], 0.0))
    # For the number of whole turns that the angle of one value leaves out.
    angles = jnp.unwrap(jnp.angle(jax.vmap(curve)(grid)))
    followed = angles[jnp.maximum(jnp.searchsorted(grid, at[1]) - 1, 0)]
    phase = _phase(jnp.where(there[1], on_circle, 1.0), jax.lax.stop_gradient(followed), stable)
    phase = jnp.where(there[1], phase, jnp.inf)
    delay = jnp.where(there[1], jnp.where(there[1], phase, 1.0) / at[1], jnp.inf)
    least = jnp.argmin(delay)
    crossover = jnp.where(there[1, least], at[1, least], jnp.inf)
    return Margins(
        _first(jnp.append(growths, still), stable),
        jnp.min(phase),
        delay[least],
        _ratio(lost, mean),
        crossover,
        stable,
    )


def _growth(value: Array, rounding: Array) -> Array:
    """The factor that takes the real G to -1; infinity where G is positive or rounding."""
    sure = -value.real > rounding
    return jnp.where(sure, 1 / jnp.where(sure, -value.real, 1.0), jnp.inf)


def _ratio(critical: Array, value: Array) -> Array:
    """critical / value, infinity where the one is infinite or the other zero."""
    there = jnp.isfinite(critical) & (value > 0)
    return jnp.where(there, jnp.where(there, critical, 1.0) / jnp.where(there, value, 1.0), jnp.inf)


def _rounding(system: System, w: Array) -> Array:
    """What of the real part of G may be rounding."""
    gain = loop.feedback(system)
    service = jnp.hypot(w, system.common_service_rate)
    size = jnp.abs(gain[0]) / service + jnp.sum(jnp.abs(gain[1:])) * system.delay.mean
    return loop.ROUNDINGS * jnp.finfo(size.dtype).eps * size


def _first(factors: Array, stable: Array) -> Array:
    """The factor at which stability is lost, or under which it is had."""
    return jnp.min(jnp.where((factors >= 1) | ~stable, factors, jnp.inf))


def _phase(value: Array, followed: Array, stable: Array) -> Array:
    """What is missing at a crossover to the argument -pi, `followed` being close to its own."""
    lead = jnp.pi + jnp.angle(value)
    lead = lead + TURN * jnp.round((jnp.pi + followed - lead) / TURN)
    rest = lead - TURN * jnp.floor(lead / TURN)
    return jnp.where(stable, rest, jnp.minimum(lead, rest - TURN))


def _square(value: Array) -> Array:
    """Squared size of a complex number."""
    return value.real * value.real + value.imag * value.imag


class SensitivityPeak(NamedTuple):
    """Largest |1 / (1 + G)| over frequencies, and the frequency, rad/s, where it is."""

    value: Float[Array, ""]
    frequency: Float[Array, ""]


def sensitivity_peak(system: System) -> SensitivityPeak:
    """How much the loop amplifies the disturbance that it amplifies most: M_s, at least one.

    1 / M_s is the least distance of the Nyquist curve from -1. It grows without bound towards the
    Hopf boundary and is infinite where balance is unstable. Where the loop amplifies nothing it is
    one, at infinite frequency.

    **Returns:** a `SensitivityPeak`, differentiable; zero where it is infinite or one. On the
    boundary itself rounding leaves a large number or infinity; where unstable, the frequency means
    nothing.

    **Raises:** as `margins`.

    **Accuracy:** `value` relative to its square: 4e-16 in float64, 2e-7 in float32, at 1 to 10^6
    stages or infinitely many; `frequency` the root of the precision. For other laws and rules the
    maximum is that next to the largest value on the grid of `margins`.

    **Cost:** of `margins`, and some 300 evaluations more.
    """
    require_one(system)
    # A program of its own, which `margins` shares, and without derivatives.
    fixed = jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_array(x) else x, system)
    return _sensitivity_peak(system, margins(fixed).stable)


@domain.of_system
@eqx.filter_jit
def _sensitivity_peak(system: System, stable: Array) -> SensitivityPeak:
    if is_erlang(system):
        grid = _first_turn(system)
        # Later maxima are smaller.
        looked_at = _lag(system, grid * system.delay.mean) < 3 * jnp.pi / 2
    else:
        grid = loop.frequencies(system)
        looked_at = jnp.ones_like(grid, bool)

    def distance(log_w):
        """log |1 + G|."""
        square = _square(1 + loop.on_axis(system, jnp.exp(log_w)))
        return jnp.log(jnp.where(square > 0, square, jnp.finfo(square.dtype).tiny)) / 2

    points = jnp.log(grid)
    values = jnp.where(looked_at, jax.vmap(distance)(points), jnp.inf)
    best = jnp.argmin(values)
    low, high = points[jnp.maximum(best - 1, 0)], points[jnp.minimum(best + 1, grid.size - 1)]
    log_w = axis.lowest(distance, low, high)
    frequency = jnp.exp(log_w)
    value = jnp.exp(-distance(jax.lax.stop_gradient(log_w)))
    amplifies = value > 1
    value = jnp.where(stable, jnp.where(amplifies, value, 1.0), jnp.inf)
    return SensitivityPeak(value, jnp.where(amplifies, frequency, jnp.inf))


def _first_turn(system: System) -> Float[Array, " points"]:
    """Frequencies, rad/s, that hold the maximum of the sensitivity of a stable loop."""
    mean, gain = system.delay.mean, -loop.feedback(system)[0]
    m = system.common_service_rate * mean
    low, high = jnp.minimum(jnp.sqrt(m), 1.0) / 10, 10 * (1 + m + jnp.sqrt(gain * mean))
    ratio = jnp.linspace(0, 1, PEAK_POINTS, dtype=m.dtype)
    return jax.lax.stop_gradient(low * (high / low) ** ratio / mean)
