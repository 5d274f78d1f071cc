"""Stability boundaries: in the sensitivity, in the mean delay, and for every delay."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..model.delays import Erlang, NoDelay
from ..model.routing import AbstractLogit, Logit
from ..model.system import System, require_one
from . import domain, nyquist, stretching
from .erlang import is_erlang, stages_of
from .erlang_boundary import (
    DelayWindow,
    HopfPoint,
    erlang_boundary,
    erlang_delay_window,
    erlang_safe_gain,
)
from .stretching import DelayCrossings


def critical_sensitivity(system: System) -> Float[Array, ""]:
    """Sensitivity theta at which balance loses stability, per job; infinite if it never does.

    Balance is stable for every smaller theta. The rule's own sensitivity is not used.

    **Arguments:** `system`: any delay with a transform, and `Logit`, `WeightedLogit` or another
    rule of that kind. An `Erlang` or `Deterministic` delay with `Logit` takes `erlang_boundary`;
    the rest a search on the imaginary axis (`jaxlb.stability.nyquist`).

    **Returns:** a scalar, differentiable also twice; its derivatives are zero where it is infinite.

    **Raises:** `ValueError` for servers of unequal rates, one server, or another rule.

    **Accuracy:** by `erlang_boundary` as stated there; by the search, relative, 2e-14 in float64
    and 3e-6 in float32 (`tests/stability/test_nyquist.py`). Critical gains beyond
    |i w + mu| / (1000 eps) count as infinite.

    **Cost:** by `erlang_boundary` fixed; by the search 9000 evaluations of the transform: 20 ms for
    60 phases on one core.
    """
    _require_boundary(system)
    return _critical_sensitivity(system)


def hopf_frequency(system: System) -> Float[Array, ""]:
    """Frequency of the oscillation born at the critical sensitivity, rad/s.

    Zero where an imbalance starts to grow without oscillating, as negative weights can make it;
    infinite if balance never loses stability. Otherwise as `critical_sensitivity`.
    """
    _require_boundary(system)
    return _hopf_frequency(system)


def critical_delay(system: System) -> DelayWindow:
    """Mean delays at which balance is unstable under the system's own rule, s.

    The delay's law keeps its shape and only its mean moves; the mean that it has is not used.

    **Arguments:** `system`: any delay with a transform, and any rule; with `Logit` and an `Erlang`
    or `Deterministic` delay it is `erlang_delay_window`, else a search on the imaginary axis.

    **Returns:** a `DelayWindow`; differentiable. Where there are several windows it is the first,
    and `single` false: see `delay_crossings`. A rule that is unstable without delay has `lower` 0.

    **Raises:** `ValueError` for servers of unequal rates, or one server.

    **Accuracy:** by the search, relative, 2e-14 in float64 and 3e-6 in float32 times the condition
    of an end in the gain (`tests/stability/test_nyquist.py`).
    """
    require_pair(system)
    return _critical_delay(system)


def delay_crossings(system: System) -> DelayCrossings:
    """Every mean delay at which balance loses or regains stability, s: all windows of a law.

    **Returns:** a `DelayCrossings`, of two entries by the formulas, else of 33: the changes among
    the first 32 pairs of roots on the imaginary axis and a real one. Otherwise as `critical_delay`.
    """
    require_pair(system)
    return _delay_crossings(system)


def critical_gain_for_every_delay(system: System) -> Float[Array, ""]:
    """Gain lambda theta below which balance is stable whatever the mean delay, 1/s.

    With F the transform of the law at unit mean it is mu / max(-Re F(i y)) over the y with
    Im F(i y) <= 0. For a root i w at mean D, y = w D > 0, the two parts of i w + mu + K F(i y) = 0
    are Re F = -mu / K and Im F = -w / K: the first needs that gain, and at any gain above it, by
    the second, D = y / w solves both.

    **Returns:** a scalar, infinite if no gain suffices; differentiable.

    **Raises:** as `critical_sensitivity`, and for any rule but `Logit`.
    """
    _require_logit(system)
    return _safe_gain(system)


_erlang_boundary = eqx.filter_jit(erlang_boundary)
_erlang_delay_window = eqx.filter_jit(erlang_delay_window)
_erlang_safe_gain = eqx.filter_jit(erlang_safe_gain)


@domain.of_system
def _critical_sensitivity(system: System) -> Float[Array, ""]:
    return per_arrival(_hopf_point(system).gain, system)


@domain.of_system
def _hopf_frequency(system: System) -> Float[Array, ""]:
    return _hopf_point(system).frequency


@domain.of_system
def _critical_delay(system: System) -> DelayWindow:
    if is_erlang(system):
        gain = system.arrival_rate * system.routing.sensitivity  # pyright: ignore
        return _erlang_delay_window(gain, system.common_service_rate, stages_of(system))
    return stretching.delay_window(system)


@domain.of_system
def _delay_crossings(system: System) -> DelayCrossings:
    if is_erlang(system):
        lower, upper, _ = _critical_delay(system)
        return DelayCrossings(jnp.stack([lower, upper]), jnp.array([True, False]) & (lower < upper))
    return stretching.delay_crossings(system)


@domain.of_system
def _safe_gain(system: System) -> Float[Array, ""]:
    if isinstance(system.delay, NoDelay):
        return jnp.full((), jnp.inf, system.arrival_rate.dtype)
    if is_erlang(system):
        return _erlang_safe_gain(system.common_service_rate, stages_of(system))
    return nyquist.safe_gain(system)


def _hopf_point(system: System) -> HopfPoint:
    if isinstance(system.delay, NoDelay):
        never = jnp.full((), jnp.inf, system.arrival_rate.dtype)
        return HopfPoint(never, never)
    if is_erlang(system):
        service_rate, mean = system.common_service_rate, system.delay.mean
        return _erlang_boundary(service_rate, mean, stages_of(system))
    return nyquist.hopf_point(system)


def per_arrival(gain: Float[Array, ""], system: System) -> Float[Array, ""]:
    """The sensitivity of this gain, per job; infinite with derivatives of zero if the gain is."""
    never = jnp.isinf(gain)
    # Masked before the division, not after: its derivatives at infinity are not zero.
    return jnp.where(never, jnp.inf, jnp.where(never, 1.0, gain) / system.arrival_rate)


def require_pair(system: System) -> None:
    """Raise `ValueError` unless there are two servers or more, alike: before tracing hides it."""
    require_one(system)
    system.require_two_alike()


def _require_boundary(system: System) -> None:
    require_pair(system)
    if not isinstance(system.routing, AbstractLogit):
        raise ValueError(
            f"`routing` must be a logit rule here, got {type(system.routing).__name__}."
        )


def _require_logit(system: System) -> None:
    require_pair(system)
    if not isinstance(system.routing, Logit):
        raise ValueError(f"`routing` must be Logit, got {type(system.routing).__name__}.")


def two_stage_critical_gain(system: System) -> Float[Array, ""]:
    """Gain lambda * theta at which two stages lose stability: 2 mu^2/gamma + 4 mu + 2 gamma, 1/s.

    Routh-Hurwitz, equations (22) and (23): stable below, unstable above. The rule and the arrival
    rate of `system` are not used.

    **Raises:** `ValueError` unless the delay is `Erlang` with two stages.
    """
    require_one(system)
    if not (isinstance(system.delay, Erlang) and system.delay.stages == 2):
        raise ValueError(f"`delay` must be Erlang(mean, 2), got {system.delay!r}.")
    system.require_servers_alike()
    return _two_stage_critical_gain(system)


@domain.of_system
def _two_stage_critical_gain(system: System) -> Float[Array, ""]:
    stage, service = system.delay.stage_rate, system.common_service_rate  # pyright: ignore
    return 2 * service**2 / stage + 4 * service + 2 * stage
