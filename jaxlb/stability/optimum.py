"""Sensitivity, and mean delay, of the fastest decay of an imbalance, in closed form.

With an Erlang or deterministic delay and z, m, V, kappa as in `jaxlb.stability.erlang`, the two
real roots meet at z = -(1 + m) / (1 + 1 / L) for kappa* = ((L - m) / (L + 1))^(L + 1), if m < L.
There no other root is further right, and a change of gain either way moves one of the two right.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from .._logarithms import log1p
from ..model.delays import AbstractPhaseDelay, Deterministic, Erlang
from ..model.routing import Logit
from ..model.system import System
from . import domain
from .boundary import require_pair
from .erlang import stages_of


class Optimum(NamedTuple):
    """The best value, in the unit of what is chosen, and the spectral abscissa there, 1/s.

    The abscissa is exact; `spectral_abscissa` at the rounded value has half the digits, because two
    roots meet there.
    """

    value: Float[Array, ""]
    abscissa: Float[Array, ""]


def best_sensitivity(system: System) -> Optimum:
    """Sensitivity of the fastest decay, per job; the rule's own is not used.

    Where the stages are no faster than service, gamma <= mu, feedback only does harm and the best
    is zero; with one stage any theta from (1 - mu D)^2 / (4 lambda D) on is as good, and that is
    returned.

    **Returns:** an `Optimum`, differentiable.

    **Raises:** `ValueError` unless the rule is `Logit` and the delay `Erlang` or `Deterministic`;
    for others search with `jaxlb.stability.search`. Also for servers of unequal rates, or one.
    """
    _require_closed_form(system)
    return _best_sensitivity(system)


@domain.of_system
def _best_sensitivity(system: System) -> Optimum:
    service_rate, mean = system.common_service_rate, system.delay.mean
    best = _erlang_best_gain(service_rate, mean, stages_of(system))
    return Optimum(best.value / system.arrival_rate, best.abscissa)


def best_delay(system: System) -> Optimum:
    """Mean delay of the fastest decay at the system's own sensitivity, s; its own is not used.

    It is never zero: the right delay is better than none. It solves
    lambda theta D = ((L - mu D) / (L + 1))^(L + 1); for the deterministic delay it is
    W_0(mu / (e lambda theta)) / mu. Without sensitivity it is the limit, L / mu.

    **Returns:** an `Optimum`, differentiable; at zero sensitivity the derivative in it, infinite,
    is given as zero.

    **Raises:** as `best_sensitivity`.
    """
    _require_closed_form(system)
    return _best_delay(system)


@domain.of_system
def _best_delay(system: System) -> Optimum:
    gain = system.arrival_rate * system.routing.sensitivity  # pyright: ignore
    return _erlang_best_delay(gain, system.common_service_rate, stages_of(system))


def erlang_best_gain(service_rate: Any, mean: Any, stages: Any) -> Optimum:
    """Gain lambda theta of the fastest decay, 1/s, from numbers or traced scalars.

    Arguments and errors as in `erlang_boundary`. A real number of stages between one and two takes
    the rule of more, since a law that is no sum of stages decays no faster than gamma.

    **Accuracy:** relative 4e-16 (10 + |log kappa*|) in float64.
    """
    service_rate = _checks.positive("service_rate", service_rate, "1/s")
    mean, stages = _checks.positive("mean", mean, "s"), _checks.stages("stages", stages)
    dtype = jnp.result_type(service_rate, mean)
    service_rate, mean, stages = (v.astype(dtype) for v in (service_rate, mean, stages))
    valid = _checks.is_positive(service_rate) & _checks.is_positive(mean)
    return domain.flagged(
        valid & _checks.is_stages(stages), _best_gain_of, service_rate, mean, stages
    )


def _best_gain_of(service_rate, mean, stages) -> Optimum:
    m, many, one = service_rate * mean, jnp.isinf(stages), stages <= 1
    L = jnp.where(many, 1.0, stages)
    slow = ~(many | one) & (m >= L)
    # With one stage the square of (1 - m) / 2 serves on both sides of one.
    c = jnp.where(many, 1.0, jnp.where(slow, 1.0, jnp.where(one, jnp.abs(1 - m), L - m)) / (L + 1))
    q = jnp.where(slow | many, 0.0, (1 + m) / (L + 1))
    close = q < 0.5
    log_c = jnp.where(close, log1p(-jnp.where(close, q, 0.0)), jnp.log(jnp.where(c > 0, c, 1.0)))
    kappa = jnp.exp(jnp.where(many, -1 - m, (L + 1) * log_c))
    kappa = jnp.where(slow | (c <= 0), 0.0, kappa)
    double = -(1 + m) / jnp.where(many, 1.0, 1 + 1 / L)
    return Optimum(kappa / mean, jnp.where(slow, -L, double) / mean)


def erlang_best_delay(gain: Any, service_rate: Any, stages: Any) -> Optimum:
    """Mean delay of the fastest decay, s, from numbers or traced scalars.

    `gain`: lambda theta, 1/s, >= 0; the others, and errors, as in `erlang_boundary`.

    **Accuracy:** relative, for gains of 1e-6 to 1e6 mu: 4e-15 in float64, 2e-6 in float32.
    """
    gain = _checks.not_negative("gain", gain, "1/s")
    service_rate = _checks.positive("service_rate", service_rate, "1/s")
    stages = _checks.stages("stages", stages)
    dtype = jnp.result_type(gain, service_rate)
    gain, service_rate, stages = (v.astype(dtype) for v in (gain, service_rate, stages))
    valid = _checks.is_not_negative(gain) & _checks.is_positive(service_rate)
    return domain.flagged(
        valid & _checks.is_stages(stages), _best_delay_of, gain, service_rate, stages
    )


def _best_delay_of(gain, service_rate, stages) -> Optimum:
    off, many = gain <= 0, jnp.isinf(stages)
    m, _ = _best_mean(jnp.where(off, 1.0, gain / service_rate), stages)
    # Without feedback the limit, where m is L and the abscissa -mu.
    m = jnp.where(off, jnp.where(many, 1.0, stages), m)
    finite = jnp.where(many, 1.0, stages)
    share = jnp.where(many, 1.0, finite / (1 + finite))
    abscissa = -share * service_rate * (1 + 1 / m)
    return Optimum(
        jnp.where(off & many, jnp.inf, m / service_rate),
        jnp.where(off, -service_rate, abscissa),
    )


@jax.custom_jvp
def _best_mean(ratio, stages):
    """m = mu D of the fastest decay at a ratio K / mu, and L - m, which may be small."""
    many = jnp.isinf(stages)
    L = jnp.where(many, 1.0, stages)
    log_ratio = jnp.log(ratio)
    # Lambert's W, the answer for L = infinity, within 1 %: Iacono and Boyd (2017), Adv. Comput.
    # Math. 43, after equation (12); mapped so that m stays below L.
    grown = jnp.logaddexp(-log_ratio - 1, 0.0)
    start = grown * (1 - jnp.log1p(grown) / (2 + jnp.log1p(grown)))
    part = start / L
    mapped = jnp.where(part < 30, jnp.log(jnp.expm1(jnp.minimum(part, 30.0))), part)
    t = jnp.where(many, jnp.log(start), mapped)
    shift = jnp.where(many, 1.0, jnp.log(L) + (L + 1) * log1p(1 / L))
    for _ in range(3):
        # t = log(m / (L - m)), or log m: in it the equation is convex with a bounded slope.
        sigmoid = jax.nn.sigmoid(t)
        value = -jax.nn.softplus(-t) + (L + 1) * jax.nn.softplus(t)
        value = jnp.where(many, t + jnp.exp(t), value) + shift + log_ratio
        bend = jnp.where(many, jnp.exp(t), L * sigmoid * (1 - sigmoid))
        slope = 1 + jnp.where(many, jnp.exp(t), L * sigmoid)
        step = value / slope
        t = t - step / (1 - step * bend / (2 * slope))
    m = jnp.where(many, jnp.exp(t), L * jax.nn.sigmoid(t))
    left = jnp.where(many, jnp.inf, L * jax.nn.sigmoid(-t))
    # Once more with the product K D itself, as both of its logarithms may be large.
    log_c, slope, _ = _power(m, left, stages)
    return m * jnp.exp(-(jnp.log(ratio * m) - log_c) / slope), left


def _power(m, left, stages):
    """log of ((L - m) / (L + 1))^(L + 1); the slope of log m less it in log m, and in L."""
    many = jnp.isinf(stages)
    L = jnp.where(many, 1.0, stages)
    q = jnp.where(many, 0.0, (1 + m) / (L + 1))
    close = q < 0.5
    rest = jnp.where(many, 1.0, left)
    log_c = jnp.where(close, log1p(-jnp.where(close, q, 0.0)), jnp.log(rest / (L + 1)))
    slope = 1 + jnp.where(many, m, (L + 1) * m / rest)
    by_stages = jnp.where(many, 0.0, -log_c - (1 + m) / rest)
    return jnp.where(many, -1 - m, (L + 1) * log_c), slope, by_stages


@_best_mean.defjvp
def _best_mean_jvp(primals, tangents):
    (ratio, stages), (d_ratio, d_stages) = primals, tangents
    m, left = _best_mean(ratio, stages)
    _, slope, by_stages = _power(m, left, stages)
    many = jnp.isinf(stages)
    d_stages = jnp.where(many, 0.0, d_stages)
    d_m = -m * (d_ratio / ratio + by_stages * d_stages) / slope
    return (m, left), (d_m, jnp.where(many, 0.0, d_stages - d_m))


_erlang_best_gain = eqx.filter_jit(erlang_best_gain)
_erlang_best_delay = eqx.filter_jit(erlang_best_delay)


def _require_closed_form(system: System) -> None:
    """Before tracing hides the numbers."""
    require_pair(system)
    phases = isinstance(system.delay, AbstractPhaseDelay)
    advice = f"find it with `jaxlb.stability.{'search' if phases else 'summary'}` instead."
    if not isinstance(system.routing, Logit):
        name = type(system.routing).__name__
        raise ValueError(f"`routing` must be Logit for the closed form, got {name}: {advice}")
    if not isinstance(system.delay, Erlang | Deterministic):
        raise ValueError(
            "`delay` must be Erlang or Deterministic for the closed form, "
            f"got {type(system.delay).__name__}: {advice}"
        )
